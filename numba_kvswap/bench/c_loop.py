"""The loops in submit_loop.c, compiled when they are needed and called without the GIL."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba_kvswap.bench.copy_list import CopyList
from numba_kvswap.driver import EntryPoints
from numba_kvswap.ids import Words

_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t

SOURCE = Path(__file__).with_name("submit_loop.c")

# nvcc last: it hands C to a host compiler, which it finds in places of its own.
_COMPILERS = {"cc": ["-fPIC"], "gcc": ["-fPIC"], "clang": ["-fPIC"], "nvcc": ["-Xcompiler", "-fPIC"]}
_COMPILE_SECONDS_MAX = 120


class NoCompiler(RuntimeError):
    """No C compiler here makes a library that loads. The message says what was tried."""


class CLoop:
    """The compiled loop of copies. `compiler` is the path of what compiled it.

    Raises NoCompiler.
    """

    def __init__(self) -> None:
        library, self.compiler = _compiled(SOURCE)
        self._function = library.submit_loop
        self._function.argtypes = [_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _ADDRESS]
        self._function.restype = ctypes.c_int

    def __call__(self, memcpy_async: int, copies: CopyList, stream: int) -> tuple[int, int]:
        """Put `copies` on `stream`, in order, by calls of the C function at `memcpy_async`.

        Returns the first CUresult that is not 0, else 0, and the loop's nanoseconds by C's own clock. The
        device's context must be current in the calling thread.
        """
        host_ns = ctypes.c_int64()
        status = self._function(
            memcpy_async,
            copies.targets.ctypes.data,
            copies.sources.ctypes.data,
            copies.sizes_bytes.ctypes.data,
            copies.targets.size,
            stream,
            ctypes.byref(host_ns),
        )
        return int(status), host_ns.value


class LaunchSwap:
    """The driver calls of a swap by one kernel, from C: what they cost the host where nothing stands in between.

    Raises NoCompiler.
    """

    def __init__(self) -> None:
        library, self.compiler = _compiled(SOURCE)
        self._function = library.launch_swap
        word, grid = ctypes.c_uint64, ctypes.c_uint
        table: list[Any] = [word, word, _SIZE]
        launch: list[Any] = [_ADDRESS, grid, grid]
        self._function.argtypes = [*[_ADDRESS] * 5, *table, *launch, *[_ADDRESS] * 3]
        self._function.restype = ctypes.c_int

    def ready(
        self,
        entry_points: EntryPoints,
        events: tuple[int, int],
        table: tuple[int, int, int],
        launch: tuple[int, int, int],
        parameters: Words,
        stream: int,
    ) -> Callable[[], tuple[int, int]]:
        """A function that puts one swap on `stream`, between records of the two events, as often as it is called.

        table: of the pairs' ids, its address on the device and in pinned memory, and its bytes: 0 where nothing is to
        be copied. launch: CUfunction, CUDA blocks and threads in each. parameters: uint64, the address of each
        argument, as cuLaunchKernel's kernelParams; the caller keeps them.
        It returns the first CUresult that is not 0, else 0, and the nanoseconds of all by C's own clock. The device's
        context must be current in the calling thread.
        """
        function, host_ns = self._function, ctypes.c_int64()
        calls = entry_points.event_record, entry_points.memcpy_async, entry_points.launch_kernel
        words = (*calls, *events, *table, *launch, parameters.ctypes.data, stream, ctypes.addressof(host_ns))
        # Converted here, and not within what is measured from the call to the last byte.
        arguments = [kind(word) for kind, word in zip(function.argtypes, words, strict=True)]

        def submit() -> tuple[int, int]:
            return int(function(*arguments)), host_ns.value

        return submit


def _compiled(source: Path) -> tuple[ctypes.CDLL, str]:
    """The library and the compiler's path."""
    faults = []
    for name, options in _COMPILERS.items():
        compiler = shutil.which(name)
        if compiler is None:
            continue
        try:
            return _build(compiler, options, source), compiler
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


def _why(error: Exception) -> str:
    """The line that matters of what a compiler or the loader said."""
    lines = str(getattr(error, "stderr", None) or error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[-1])
