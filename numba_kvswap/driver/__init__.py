"""The only code that talks to CUDA, and what stands in for it where there is none."""

from __future__ import annotations

from numba_kvswap.driver.cuda import CudaDriver, cuda_available, cuda_driver, why_no_cuda
from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.simulated import SimulatedDriver, SimulatedHang, SimulatedLatch
from numba_kvswap.driver.simulated_device import SimulatedArray, SimulatedDevice, SimulatedEvent, SimulatedStream
from numba_kvswap.driver.table import Driver, EntryPoints, IdleEvents, PointerInfo

__all__ = [
    "CudaDriver",
    "Driver",
    "EntryPoints",
    "IdleEvents",
    "KVSwapDriverError",
    "PointerInfo",
    "SimulatedArray",
    "SimulatedDevice",
    "SimulatedDriver",
    "SimulatedEvent",
    "SimulatedHang",
    "SimulatedLatch",
    "SimulatedStream",
    "cuda_available",
    "cuda_driver",
    "why_no_cuda",
]
