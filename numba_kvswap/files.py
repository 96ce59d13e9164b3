"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` and a line end, in place of what the file held: at every moment it holds one or the other.

    What is no plain file, such as a pipe or a terminal, is written as it comes. Raises OSError.
    """
    path = path.resolve()  # the file that a link leads to is replaced, not the link
    if path.exists() and not path.is_file():
        path.write_text(text + "\n", encoding="utf-8")
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
