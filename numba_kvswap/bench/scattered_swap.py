"""The swap that is measured: scattered blocks, a copy each in every layer, and what the host must hold after it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from numba_kvswap import reference
from numba_kvswap.bench.copy_list import copy_list
from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver
from numba_kvswap.ids import Ids
from numba_kvswap.memory import DriverMemory
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper

Bytes = npt.NDArray[np.uint8]
Layers = list[Bytes]

# What the target holds before a checked swap. No random block of any size worth swapping holds it.
_UNTOUCHED = 0xA5


@dataclass(frozen=True)
class Geometry:
    """`blocks_moved` blocks of `block_bytes` bytes in each of `layers` layers, out of `cache_blocks` on either side.

    cache_blocks is at least twice blocks_moved, so that no two blocks need to be neighbours.
    """

    blocks_moved: int
    layers: int
    block_bytes: int
    cache_blocks: int

    @property
    def copies(self) -> int:
        return self.blocks_moved * self.layers

    @property
    def bytes(self) -> int:
        return self.copies * self.block_bytes


class ScatteredSwap:
    """Caches on `driver`, ids of which none are consecutive, a stream of its own, and the same swap as single copies.

    Each device layer is an allocation of its own and the host pool is layer-major, so no copy spans layers, and
    the ids leave nothing to merge. Closed by `close`, or at the end of a ``with`` block. All methods need the
    current context of device 0.

    Attributes:
        copies: every copy, in the order in which engine copies are submitted: by layer, then by ascending host block.

    Raises KVSwapDriverError where the memory is not to be had.
    """

    def __init__(self, driver: Driver, geometry: Geometry, seed: int = 0) -> None:
        self.driver, self.geometry = driver, geometry
        self._random = np.random.default_rng(seed)
        self.device_ids, self.host_ids = self._scattered_ids(), self._scattered_ids()
        self.device = DeviceCache.allocate(
            driver, blocks=geometry.cache_blocks, block_bytes=[geometry.block_bytes] * geometry.layers
        )
        self.host = HostCache.allocate(self.device, blocks=geometry.cache_blocks, layout="layer_major")
        #: One copy a run and layer, as FastDeploy swaps.
        self.swapper = Swapper(self.device, self.host, transport="copies")
        self.copies = copy_list(Plan(self.device_ids, self.host_ids), self.device.layers, self.host.layers)
        self.stream = driver.stream_create()
        # What device and host hold before swaps out of the one or the other, and what the reference makes of it.
        self._content: dict[Direction, tuple[Layers, Layers]] = {}
        self._expected: dict[Direction, Layers] = {}

    def prepare_content(self) -> None:
        """Draw what is swapped, and let the reference say what either side must hold after it."""
        shape, layers = (self.geometry.cache_blocks, self.geometry.block_bytes), range(self.geometry.layers)
        blocks = [np.frombuffer(self._random.bytes(shape[0] * shape[1]), np.uint8).reshape(shape) for _ in layers]
        untouched = [np.full(shape, _UNTOUCHED, np.uint8) for _ in layers]
        self._content = {"out": (blocks, untouched), "in": (untouched, blocks)}
        ids: dict[Direction, tuple[Ids, Ids]] = {
            "out": (self.device_ids, self.host_ids),
            "in": (self.host_ids, self.device_ids),
        }
        for direction, source_and_target in ids.items():
            self._expected[direction] = [layer.copy() for layer in untouched]
            reference.swap_blocks(blocks, self._expected[direction], *source_and_target)

    def reset(self, direction: Direction) -> None:
        """Take every swapped block off the target again, for the next way of that direction to be checked."""
        device, host = self._content[direction]
        for index, (device_layer, host_layer) in enumerate(zip(device, host, strict=True)):
            self.driver.copy_now(self.device.layers[index].address, device_layer.ctypes.data, device_layer.nbytes)
            self.host.layer(index)[:] = host_layer

    def fault(self, direction: Direction) -> str:
        """Where the target differs from what the reference says, in words; "" where it does not."""
        side = "host" if direction == "out" else "device"
        for index, expected in enumerate(self._expected[direction]):
            wrong = np.flatnonzero((self._found(side, index) != expected).any(axis=1))
            if wrong.size:
                return f"wrong bytes: layer {index}, {side} block {wrong[0]} differs from the reference"
        return ""

    def _found(self, side: str, index: int) -> Bytes:
        if side == "host":
            return self.host.layer(index)
        found = np.empty((self.geometry.cache_blocks, self.geometry.block_bytes), np.uint8)
        self.driver.copy_now(found.ctypes.data, self.device.layers[index].address, found.nbytes)
        return found

    def drop_content(self) -> None:
        """Let go of what `fault` compares with."""
        self._content, self._expected = {}, {}

    def close(self) -> None:
        """Wait for the stream, then free it and both caches; a second call does nothing."""
        stream, self.stream = self.stream, 0
        if stream:
            self.driver.stream_synchronize(stream)
            self.driver.stream_destroy(stream)
        self.host.close()
        for layer in self.device.layers:
            # By hand: the driver keeps a landed transfer, and with it these, until the next one is submitted.
            if isinstance(layer.owner, DriverMemory):
                layer.owner.close()

    def _scattered_ids(self) -> npt.NDArray[np.int64]:
        """Even ids only: no two of them are consecutive, in whatever order they are merged."""
        return 2 * self._random.permutation(self.geometry.cache_blocks // 2)[: self.geometry.blocks_moved]

    def __enter__(self) -> ScatteredSwap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
