"""Files read if they are what they should be, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, or what a link to one leads to, open for reading. Raises OSError: for a folder IsADirectoryError,
    and for a pipe, socket or device too, which might be silent, or endless."""
    # Not to wait, where it is a pipe, for somebody to write to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "this is a folder; expected a file", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "this is no plain file (a pipe, socket or device); expected one", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_plain(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """All of a plain file. Raises OSError as `open_plain`, ValueError where it is longer than `bytes_max`."""
    with open_plain(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"{path}: came more than {bytes_max} bytes; expected a smaller file")
    return content


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
