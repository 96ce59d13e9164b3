"""Where a trace is replayed: a device, a stream on it, and how its blocks are filled and judged there."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from numba_kvswap.caches import DeviceCache
from numba_kvswap.driver import Driver, SimulatedDevice, cuda_driver
from numba_kvswap.ids import Ids
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.link import Link, measure_link
from numba_kvswap.replay.content import count_mismatched_blocks, fill_blocks

_LINK_BYTES, _LINK_REPEATS = 1 << 30, 5


class Stage(Protocol):
    """Work is queued on `stream` and done in its order, between the swaps that are put there."""

    engine: str
    device_name: str
    driver: Driver
    stream: int

    def prepare(self, cache: DeviceCache) -> None:
        """Say which cache the other verbs speak of."""

    def fill(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        """Queue the writing of device blocks, in all layers, with what these positions of these ids hold."""

    def judge(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        """Queue a comparison of the same."""

    def mismatches(self) -> int:
        """Blocks and layers found different so far, once the stream is done."""

    def link(self) -> Link | None:
        """What one large copy reaches each way, None where there is no link."""


class SimulatedStage:
    """The simulated device; `seed` decides what its scheduler does when."""

    engine = "simulated"
    device_name = "simulated device"

    def __init__(self, seed: int = 0) -> None:
        self._device = SimulatedDevice(seed)
        self._stream = self._device.stream()
        self.driver: Driver = self._device.driver
        self.stream = self._stream.handle
        self._mismatches = 0

    def prepare(self, cache: DeviceCache) -> None:
        self._layers = [np.asarray(LayerBytes(layer)) for layer in cache.layers]

    def fill(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        def kernel() -> None:
            for index, layer in enumerate(self._layers):
                fill_blocks(layer, block_ids, ids, positions, index)

        self._stream.launch(kernel)

    def judge(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        def kernel() -> None:
            for index, layer in enumerate(self._layers):
                self._mismatches += count_mismatched_blocks(layer, block_ids, ids, positions, index)

        self._stream.launch(kernel)

    def mismatches(self) -> int:
        self._stream.synchronize()
        return self._mismatches

    def link(self) -> Link | None:
        return None


class CudaStage:
    """The first GPU. ImportError where kernels cannot be compiled: they need the extra cu12 or cu13."""

    engine = "cuda"

    def __init__(self) -> None:
        from numba_kvswap.kernels.loaded import HOW_TO_GET_KERNELS
        from numba_kvswap.replay.device_blocks import why_no_kernels

        self.driver: Driver = cuda_driver()
        if missing := why_no_kernels():
            raise ImportError(f"kernels cannot be compiled ({missing}); {HOW_TO_GET_KERNELS}")
        self.device_name = str(self.driver.describe()["device_name"])
        with self.driver.activate(0):
            self.stream = self.driver.stream_create()

    def prepare(self, cache: DeviceCache) -> None:
        from numba_kvswap.replay.device_blocks import ContentKernels

        with self.driver.activate(0):
            self._kernels = ContentKernels(cache.layers, self.stream)

    def fill(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        with self.driver.activate(0):
            self._kernels.fill(block_ids, ids, positions)

    def judge(self, block_ids: Ids, ids: Ids, positions: Ids) -> None:
        with self.driver.activate(0):
            self._kernels.judge(block_ids, ids, positions)

    def mismatches(self) -> int:
        with self.driver.activate(0):
            return self._kernels.mismatches()

    def link(self) -> Link | None:
        with self.driver.activate(0):
            return measure_link(self.driver, self.stream, _LINK_BYTES, _LINK_REPEATS)


def host_mismatches(layers: Iterable[Layer], block_ids: Ids, ids: Ids, positions: Ids) -> int:
    """Blocks and layers of host memory that differ from what they must hold; layers side by side on all cores."""

    def judge(indexed: tuple[int, Layer]) -> int:
        index, layer = indexed
        return count_mismatched_blocks(np.asarray(LayerBytes(layer)), block_ids, ids, positions, index)

    with ThreadPoolExecutor() as threads:
        return sum(threads.map(judge, enumerate(layers)))


def stage_named(engine: str, seed: int = 0) -> Stage:
    """ "simulated" or "cuda"; ValueError for another name, KVSwapDriverError or ImportError where there is no GPU."""
    if engine == "simulated":
        return SimulatedStage(seed)
    if engine == "cuda":
        return CudaStage()
    raise ValueError(f"engine is {engine!r}; expected 'simulated' or 'cuda'")
