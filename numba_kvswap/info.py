"""What this machine offers, and what is missing and how to get it: ``python -m numba_kvswap info``."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator

from numba_kvswap import __version__, disk_cache
from numba_kvswap.driver import Driver, cuda_available, cuda_driver, why_no_cuda
from numba_kvswap.host_room import locked_memory_limit, memory_in_words

_PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-bindings", "torch", "cupy-cuda13x", "cupy-cuda12x", "hypothesis")
_TOOLKIT_PACKAGES = (
    "cuda-toolkit",
    "nvidia-nvvm",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
)


def lines() -> Iterator[str]:
    """The report, a line each."""
    yield f"numba_kvswap   {__version__}, Python {platform.python_version()}, {platform.machine()}"
    for package in _PACKAGES:
        yield f"{package:<14} {_version(package)}"
    yield f"toolkit        {_toolkit()}"
    yield f"pinned memory  limit {locked_memory_limit()}, host memory {memory_in_words(_host_memory_bytes())}"
    yield f"cache folder   {disk_cache.cache_folder()}"
    yield (
        f"ring           {Driver.ring_slots} slots of {Driver.ring_slot_bytes >> 20} MiB of device memory each way "
        "that is used, once a process"
    )
    yield from _cuda_lines() if cuda_available() else _simulated_lines()


def _cuda_lines() -> Iterator[str]:
    driver = cuda_driver()
    facts = driver.describe()
    yield "engine         cuda"
    for name, value in facts.items():
        yield f"{name:<14} {value}"
    for call, address in zip(driver.entry_points.CALLS, driver.entry_points.words.tolist(), strict=True):
        yield f"entry point    {call} at {address:#x}"
    from numba_kvswap.calibration_report import kept_lines
    from numba_kvswap.kernels.loaded import HOW_TO_GET_KERNELS
    from numba_kvswap.replay.device_blocks import why_no_kernels

    with driver.activate(0):
        yield from kept_lines(driver)
    missing = why_no_kernels()
    yield f"kernels        cannot be compiled: {missing}; {HOW_TO_GET_KERNELS}" if missing else "kernels        compile"


def _simulated_lines() -> Iterator[str]:
    from numba_kvswap.kernels.loaded import HOW_TO_GET_KERNELS

    yield "engine         simulated: everything runs, on a simulated device in host memory"
    yield f"cuda missing   {why_no_cuda()}"
    yield (
        "to use a GPU   install an NVIDIA driver (nvidia-smi must list the GPU; in a container, start it with the GPU "
        f"passed in), then for kernels: {HOW_TO_GET_KERNELS}"
    )


def _version(package: str) -> str:
    return _installed(package) or f"not installed; pip install {package}, if you need it"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _toolkit() -> str:
    """What there is to compile kernels with: the packages that numba-cuda looks for, and nvcc."""
    found = [f"{name} {_installed(name)}" for name in _TOOLKIT_PACKAGES if _installed(name)]
    nvcc = shutil.which("nvcc") or "not on PATH"
    return f"{', '.join(found) or 'no packages of it'}; nvcc {nvcc}"


def _host_memory_bytes() -> int:
    with open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) << 10
