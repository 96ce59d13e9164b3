"""What this machine offers, and what is missing and how to get it: ``python -m numba_kvswap info``."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
from collections.abc import Iterator

from numba_kvswap import __version__
from numba_kvswap.driver import cuda_available, cuda_driver, why_no_cuda

_PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-bindings", "torch", "cupy", "hypothesis")
_KERNELS_EXTRA = "pip install 'numba-kvswap[cu13]', or [cu12] for a CUDA 12 driver"


def lines() -> Iterator[str]:
    """The report, a line each."""
    yield f"numba_kvswap   {__version__}, Python {platform.python_version()}, {platform.machine()}"
    for package in _PACKAGES:
        yield f"{package:<14} {_version(package)}"
    yield f"pinned memory  limit {_locked_memory_limit()}, host memory {_memory_in_words(_host_memory_bytes())}"
    yield from _cuda_lines() if cuda_available() else _simulated_lines()


def _cuda_lines() -> Iterator[str]:
    driver = cuda_driver()
    facts = driver.describe()
    yield "engine         cuda"
    for name, value in facts.items():
        yield f"{name:<14} {value}"
    for name, address in vars(driver.entry_points).items():
        yield f"entry point    {name} at {address:#x}"
    missing = _why_no_kernels()
    yield f"kernels        missing: {missing}; get them by: {_KERNELS_EXTRA}" if missing else "kernels        compile"


def _simulated_lines() -> Iterator[str]:
    yield "engine         simulated: everything runs, on a simulated device in host memory"
    yield f"cuda missing   {why_no_cuda()}"
    yield (
        "to use a GPU   install an NVIDIA driver (nvidia-smi must list the GPU; in a container, start it with the GPU "
        f"passed in), then for kernels: {_KERNELS_EXTRA}"
    )


def _why_no_kernels() -> str:
    """Why kernels cannot be compiled here, "" where one could be: it compiles one."""
    try:
        from numba import cuda, types

        with cuda_driver().activate(0):
            cuda.jit(types.void(types.int64[::1]))(lambda array: None)
    except Exception as error:  # whatever a missing compiler, library or NumPy symbol raises
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed; pip install {package}, if you need it"


def _locked_memory_limit() -> str:
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "none" if soft == resource.RLIM_INFINITY else _memory_in_words(soft)


def _host_memory_bytes() -> int:
    with open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) << 10


def _memory_in_words(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"
