"""How long a pinned pool takes until it can be swapped with, beside an allocation of the driver's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from numba_kvswap.bench.must_show import verdict
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.host_memory import PinnedPool
from numba_kvswap.memory import DriverMemory
from numba_kvswap.swapper import Swapper
from numba_kvswap.text_table import number

_LAYERS, _BLOCK_BYTES = 40, 1 << 20
#: What the pool is held to on a host of an H200, seconds for so many bytes.
SECONDS_MAX, JUDGED_BYTES = 3.0, 40 << 30


@dataclass(frozen=True)
class PoolSizes:
    """blocks: of the pool, each of 40 layers of 1 MiB. driver_bytes: of the driver's allocation."""

    blocks: int
    driver_bytes: int


CUDA_SIZES, SIMULATED_SIZES = PoolSizes(1024, 2 << 30), PoolSizes(2, 64 << 20)


@dataclass(frozen=True)
class PoolReport:
    """pool_s: seconds of ``HostCache.allocate`` for `bytes` bytes, one pool after the other, this process's first one
    first; touch_s, register_s: the most of it; driver_s: of one cuMemHostAlloc for `driver_bytes`. Empty and None, and
    `missing` says why, where they are not to be had, or where a block did not come back from the pool as it was."""

    bytes: int
    pool_s: Sequence[float]
    touch_s: Sequence[float]
    register_s: Sequence[float]
    driver_bytes: int
    driver_s: float | None
    missing: str

    def table(self) -> str:
        if self.missing or self.driver_s is None:
            return f"pool      of {self.bytes:,} bytes: {self.missing}"
        driver_s = self.driver_s / self.driver_bytes * self.bytes
        pool, touch, register = map(_in_words, (self.pool_s, self.touch_s, self.register_s))
        lines = [
            f"pool      of {self.bytes:,} bytes: {pool} s, of which touching it {touch}, registering it {register};",
            f"          at worst {driver_s / max(self.pool_s):.1f} times as fast a byte as one cuMemHostAlloc of "
            f"{self.driver_bytes:,} bytes, {self.driver_s:.2f} s",
        ]
        if self.bytes == JUDGED_BYTES:
            met = max(self.pool_s) <= SECONDS_MAX
            lines.append(f"must show a pool of 40 GiB {max(self.pool_s):.2f} s <= {SECONDS_MAX:.0f} s {verdict(met)}")
        return "\n".join(lines)


def _in_words(seconds: Sequence[float]) -> str:
    return ", ".join(number(each, 2) for each in seconds)


def _none(size_bytes: int, sizes: PoolSizes, why: str) -> PoolReport:
    return PoolReport(size_bytes, [], [], [], sizes.driver_bytes, None, why)


def measure_pool(driver: Driver, sizes: PoolSizes, pools: int = 3) -> PoolReport:
    """`pools` pools, each closed before the next. Needs the current context of device 0."""
    size_bytes = sizes.blocks * _LAYERS * _BLOCK_BYTES
    pool_s, touch_s, register_s = [], [], []
    try:
        like = DeviceCache.allocate(driver, blocks=1, block_bytes=[_BLOCK_BYTES] * _LAYERS)
        for _ in range(pools):
            start = perf_counter()
            pool = HostCache.allocate(like, blocks=sizes.blocks)
            pool_s.append(perf_counter() - start)
            memory = pool.layers[0].owner
            if isinstance(memory, PinnedPool):
                touch_s.append(memory.touch_seconds)
                register_s.append(memory.register_seconds)
            with pool:
                fault = _fault(like, pool)
            if fault:
                return _none(size_bytes, sizes, fault)
        start = perf_counter()
        of_driver = DriverMemory(driver, 0, sizes.driver_bytes, "host")
        driver_s = perf_counter() - start
        of_driver.close()
    except (KVSwapDriverError, MemoryError) as error:
        return _none(size_bytes, sizes, str(error))
    return PoolReport(size_bytes, pool_s, touch_s, register_s, sizes.driver_bytes, driver_s, "")


def _fault(device_cache: DeviceCache, pool: HostCache) -> str:
    """The pool's last block through the device into its first one; what is wrong with it then, "" where nothing is."""
    last = pool.blocks - 1
    expected = np.random.default_rng(0).integers(0, 256, (_LAYERS, _BLOCK_BYTES), np.uint8)
    for layer, content in enumerate(expected):
        pool.layer(layer)[last] = content
    swapper = Swapper(device_cache, pool, transport="copies")
    swapper.swap_in([0], [last]).wait()
    swapper.swap_out([0], [0]).wait()
    wrong = [layer for layer, content in enumerate(expected) if not np.array_equal(pool.layer(layer)[0], content)]
    return f"a block did not come back as it was in layers {wrong}" if wrong else ""
