"""Move paged KV-cache blocks between a GPU and pinned host memory, for all layers in one call.

Names are loaded when first used: importing the package touches neither CUDA nor Numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_kvswap.block_allocator import BlockAllocator
    from numba_kvswap.caches import DeviceCache, HostCache
    from numba_kvswap.driver import Driver, KVSwapDriverError, SimulatedDevice, cuda_available, cuda_driver
    from numba_kvswap.ops import swap_cache_all_layers
    from numba_kvswap.plan import Plan
    from numba_kvswap.swapper import Swapper
    from numba_kvswap.transfer import Transfer

__version__ = "0.1.0"

__all__ = [
    "BlockAllocator",
    "DeviceCache",
    "Driver",
    "HostCache",
    "KVSwapDriverError",
    "Plan",
    "SimulatedDevice",
    "Swapper",
    "Transfer",
    "__version__",
    "cuda_available",
    "cuda_driver",
    "swap_cache_all_layers",
]

_HOMES = {
    "BlockAllocator": "block_allocator",
    "DeviceCache": "caches",
    "Driver": "driver",
    "HostCache": "caches",
    "KVSwapDriverError": "driver",
    "Plan": "plan",
    "SimulatedDevice": "driver",
    "Swapper": "swapper",
    "Transfer": "transfer",
    "cuda_available": "driver",
    "cuda_driver": "driver",
    "swap_cache_all_layers": "ops",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
