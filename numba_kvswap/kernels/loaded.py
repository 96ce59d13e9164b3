"""Kernels as a driver launches them: by a handle. Compiled once a machine, loaded once a process and device."""

from __future__ import annotations

import contextlib
import importlib.metadata
from pathlib import Path

from numba_kvswap import disk_cache
from numba_kvswap.driver import CudaDriver, Driver, SimulatedDriver
from numba_kvswap.kernels.body import PARAMETERS

HOW_TO_GET_KERNELS = "install this package with its extra cu13 (cu12 for a CUDA 12 driver), and NumPy below 2.5"


_COMPILERS = (
    "numba-cuda",
    "cuda-core",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-nvjitlink-cu12",
)


class NoKernels(RuntimeError):
    """Kernels cannot be had on this machine; the message says why, and what to install."""


def load_kernel(driver: Driver, device: int, name: str) -> int:
    """The handle of kernel `name` of the ladder. Needs the current context of `device`.

    numba.cuda is imported only where the machine code is not on disk yet, from this or an earlier process.

    Raises NoKernels, and KVSwapDriverError where the driver does not load what was compiled.
    """
    if isinstance(driver, SimulatedDriver):
        from numba_kvswap.kernels.simulated import kernel_on

        return driver.add_kernel(kernel_on(driver, name), len(PARAMETERS))
    if not isinstance(driver, CudaDriver):
        raise NoKernels(f"no kernels are known for {type(driver).__name__}")
    try:
        code, symbol = _machine_code(name, driver.compute_capability(device))
    except Exception as error:  # whatever a missing compiler, library or NumPy function raises
        reason = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {reason[0] if reason else ''}"
        raise NoKernels(f"kernels cannot be compiled ({why}); {HOW_TO_GET_KERNELS}") from error
    return driver.load_kernel(code, symbol)


def _compilers() -> list[tuple[str, str]]:
    """Of the packages that have a hand in it, those installed and their versions."""
    found = []
    for package in _COMPILERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((package, importlib.metadata.version(package)))
    return found


def _machine_code(name: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code and the symbol in it."""
    folder = Path(__file__).parent
    sources = [(folder / file).read_bytes() for file in ("body.py", "compiled.py", "words.py")]
    key = disk_cache.key_of(name, compute_capability, _compilers(), *sources)
    kept = disk_cache.load(f"{key}.cubin")
    if kept is not None:
        symbol, _, code = kept.partition(b"\n")
        return code, symbol.decode()
    from numba_kvswap.kernels.compiled import cubin

    code, found = cubin(name, compute_capability)
    disk_cache.store(f"{key}.cubin", found.encode() + b"\n" + code)
    return code, found
