"""What is kept between processes: compiled kernels and calibrations, small files in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from numba_kvswap.files import read_plain

# Kernels take some 100 KB, costs some 10.
_BYTES_MAX = 16 << 20


def cache_folder() -> Path:
    """``$NUMBA_KVSWAP_CACHE_DIR``, or else numba_kvswap in ``$XDG_CACHE_HOME`` (by default ``~/.cache``)."""
    chosen = os.environ.get("NUMBA_KVSWAP_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "numba_kvswap")


def key_of(*facts: object) -> str:
    """A file's stem: the same for the same facts only."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def load(name: str) -> bytes | None:
    """What `store` kept under `name`; None where there is nothing, or not all of it."""
    try:
        digest, _, content = read_plain(Path(cache_folder(), name), _BYTES_MAX).partition(b"\n")
    except (OSError, RuntimeError, ValueError):  # RuntimeError: there is no home folder; ValueError: it is too long
        return None
    return content if digest == _digest(content) else None


def store(name: str, content: bytes) -> None:
    """Keep `content`, all at once: whoever loads at this moment finds the old file or the new one.

    Where the folder cannot be written nothing is kept, and nobody is told: it would only have saved time.
    """
    with contextlib.suppress(OSError, RuntimeError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(content) + b"\n" + content)
            os.replace(path, folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
