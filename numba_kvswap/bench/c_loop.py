"""The loop in submit_loop.c, compiled when it is needed and called without the GIL."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

SOURCE = Path(__file__).with_name("submit_loop.c")

# nvcc last: it hands C to a host compiler, which it finds in places of its own.
_COMPILERS = {"cc": ["-fPIC"], "gcc": ["-fPIC"], "clang": ["-fPIC"], "nvcc": ["-Xcompiler", "-fPIC"]}
_COMPILE_SECONDS_MAX = 120


class NoCompiler(RuntimeError):
    """No C compiler here makes a library that loads. The message says what was tried."""


class CLoop:
    """The compiled loop. `compiler` is the path of what compiled it.

    Raises NoCompiler.
    """

    def __init__(self) -> None:
        self._function, self.compiler = _compiled(SOURCE)

    def __call__(
        self, memcpy_async: int, targets: Words, sources: Words, size_bytes: int, stream: int
    ) -> tuple[int, int]:
        """Copy `size_bytes` bytes from each of `sources` to its target, by calls of the C function at `memcpy_async`.

        Returns the first CUresult that is not 0, else 0, and the loop's nanoseconds by C's own clock. The
        device's context must be current in the calling thread.
        """
        host_ns = ctypes.c_int64()
        status = self._function(
            memcpy_async,
            targets.ctypes.data,
            sources.ctypes.data,
            targets.size,
            size_bytes,
            stream,
            ctypes.byref(host_ns),
        )
        return int(status), host_ns.value


def _compiled(source: Path) -> tuple[Any, str]:
    """The C function and the compiler's path."""
    faults = []
    for name, options in _COMPILERS.items():
        compiler = shutil.which(name)
        if compiler is None:
            continue
        try:
            return _load(_build(compiler, options, source)), compiler
        except (OSError, subprocess.SubprocessError) as error:
            faults.append(f"{compiler}: {_why(error)}")
    if faults:
        raise NoCompiler("no C compiler worked: " + "; ".join(faults))
    raise NoCompiler(f"no C compiler on PATH, looked for {', '.join(_COMPILERS)}; install gcc")


def _build(compiler: str, options: list[str], source: Path) -> ctypes.CDLL:
    # The library may go once it is loaded: what is mapped stays.
    with tempfile.TemporaryDirectory(prefix="numba_kvswap_") as folder:
        library = Path(folder, "submit_loop.so")
        subprocess.run(
            [compiler, "-O2", "-shared", *options, "-o", str(library), str(source)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS_MAX,
        )
        return ctypes.CDLL(str(library))


def _load(library: ctypes.CDLL) -> Any:
    function = library.submit_loop
    address, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [address, address, address, size, size, address, address]
    function.restype = ctypes.c_int
    return function


def _why(error: Exception) -> str:
    """The line that matters of what a compiler or the loader said."""
    lines = str(getattr(error, "stderr", None) or error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[-1])
