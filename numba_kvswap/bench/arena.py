"""One stretch of memory a side for every cell, its random content, and what the reference says it must become.

Allocating and filling a cache would cost far more than swapping it, and a comparison of the whole side is dear: so
content is written once, kept on the device, and put back from there at the speed of the link.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from numba_kvswap import reference
from numba_kvswap.bench.places import GUARD_BYTES, Move, Place, Side
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver
from numba_kvswap.host_memory import pinned_memory
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory, OwnedMemory

Bytes = npt.NDArray[np.uint8]

SIDES: tuple[Side, ...] = ("device", "host")
_COMPARE_BYTES = 1 << 20  # at a time, where something differs
_MEMCMP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ("memcmp", ctypes.CDLL(None))
)


class Arena:
    """`size_bytes` bytes a side, filled at random. It takes three times as much device memory, twice as much pinned
    memory, and four times as much of other memory.

    Closed by `close`, or at the end of a ``with`` block. All methods need the current context of device 0. Raises
    KVSwapDriverError where the memory is not to be had.
    """

    def __init__(self, driver: Driver, size_bytes: int, seed: int = 0) -> None:
        self.driver, self.size_bytes = driver, size_bytes
        self._memories: list[OwnedMemory] = []
        try:
            self._fill(np.random.default_rng(seed))
        except BaseException:
            self.close()
            raise

    def _fill(self, random: np.random.Generator) -> None:
        size = self.size_bytes
        self.memory = {side: self._allocated(side) for side in SIDES}
        self._kept = {side: self._allocated("device") for side in SIDES}
        self._read = self._allocated("host")
        self.content: dict[Side, Bytes] = {}
        for side in SIDES:
            words: npt.NDArray[np.uint64] = random.integers(0, 1 << 64, -(-size // 8), np.uint64, endpoint=False)
            self.content[side] = words.view(np.uint8)[:size]
            self.driver.copy_now(self._kept[side].address, self.content[side].ctypes.data, size)
            self.restore(side, size)
        #: What a side must hold after a cell's swap; written anew for each cell.
        self.expected = {side: np.empty(size, np.uint8) for side in SIDES}

    def _allocated(self, kind: Side) -> OwnedMemory:
        """On the host as a pool is: an engine's copies from the driver's own small system blocks are slower by 1 %."""
        size = self.size_bytes
        on_host = kind == "host"
        memory = pinned_memory(self.driver, 0, size, size) if on_host else DriverMemory(self.driver, 0, size, kind)
        self._memories.append(memory)
        return memory

    def restore(self, side: Side, size_bytes: int) -> None:
        """Give a side's first bytes the content they had at first."""
        self.driver.copy_now(self.memory[side].address, self._kept[side].address, size_bytes)

    def found(self, side: Side, size_bytes: int) -> Bytes:
        """A side's first bytes, as they are now. Of the host they are the memory itself."""
        memory = self.memory[side]
        if side == "device":
            self.driver.copy_now(self._read.address, memory.address, size_bytes)
            memory = self._read
        blocks: Bytes = np.asarray(LayerBytes(Layer(memory.address, 1, size_bytes, size_bytes, None, owner=memory)))
        return blocks.reshape(-1)

    def close(self) -> None:
        """A second call does nothing. No swap may be under way."""
        while self._memories:
            self._memories.pop().close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PlacedSwap:
    """A place laid out in an arena: its caches, its ids, and the reference's word on both sides after its swap.

    One at a time an arena: the next one overwrites what the first compares with.
    """

    def __init__(self, arena: Arena, place: Place, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.arena, self.place = arena, place
        self._offsets: dict[Side, list[int]] = {"device": place.device_offsets(random), "host": place.host_offsets()}
        self._strides = {"device": place.block_bytes, "host": place.host_stride_bytes}
        device_layer_bytes = place.slots("device") * place.block_bytes
        self._extents = {
            "device": max(self._offsets["device"]) + device_layer_bytes + GUARD_BYTES,
            "host": place.host_bytes,
        }
        self.moves: list[Move] = place.moves(random)
        self.device_cache = DeviceCache.of_layers(self._layers("device"), 0, arena.driver)
        self.host_cache = HostCache.of_layers(self._layers("host"))
        self._expect()

    def _layers(self, side: Side) -> list[Layer]:
        memory, place = self.arena.memory[side], self.place
        return [
            Layer(
                address=memory.address + offset,
                blocks=place.slots(side),
                block_bytes=place.block_bytes,
                block_stride_bytes=self._strides[side],
                dtype="uint8",
                owner=memory,
                name=f"{side} layer {index}",
            )
            for index, offset in enumerate(self._offsets[side])
        ]

    def _views(self, side: Side, image: Bytes) -> list[Bytes]:
        shape, strides = (self.place.slots(side), self.place.block_bytes), (self._strides[side], 1)
        return [np.ndarray(shape, np.uint8, image.data, offset, strides) for offset in self._offsets[side]]

    def _expect(self) -> None:
        content, expected = self.arena.content, self.arena.expected
        for side in SIDES:
            np.copyto(expected[side][: self._extents[side]], content[side][: self._extents[side]])
        device, host = (self._views(side, content[side]) for side in SIDES)
        device_after, host_after = (self._views(side, expected[side]) for side in SIDES)
        for move in self.moves:
            if move.direction == "out":
                reference.swap_blocks(device, host_after, move.device_ids, move.host_ids)
            else:
                reference.swap_blocks(host, device_after, move.host_ids, move.device_ids)

    @property
    def target_sides(self) -> list[Side]:
        return ["host" if move.direction == "out" else "device" for move in self.moves]

    def restore(self) -> None:
        """Take what was swapped off again, for the next way to be checked."""
        for side in SIDES:
            self.arena.restore(side, self._extents[side])

    def fault(self, sides: Sequence[Side] = SIDES) -> str:
        """Where these sides differ from what the reference says, in words; "" where they do not.

        Every byte from the arena's start to the guard behind the last layer counts, named or not.
        """
        for side in sides:
            found = self.arena.found(side, self._extents[side])
            offset = _first_difference(found, self.arena.expected[side][: found.size])
            if offset >= 0:
                where = self._whose(side, offset)
                return f"wrong bytes: the {side}'s byte {offset:,} differs from the reference, {where}"
        return ""

    def _whose(self, side: Side, offset: int) -> str:
        stride, place = self._strides[side], self.place
        for layer, start in enumerate(self._offsets[side]):
            block, within = divmod(offset - start, stride)
            if 0 <= block < place.slots(side) and within < place.block_bytes:
                return f"in layer {layer}, block {block}"
        return "in no block"


def _first_difference(found: Bytes, expected: Bytes) -> int:
    """-1 where there is none. Both contiguous and of one size."""
    if _MEMCMP(found.ctypes.data, expected.ctypes.data, found.size) == 0:  # twice as fast as NumPy's ==
        return -1
    for start in range(0, found.size, _COMPARE_BYTES):
        part = slice(start, start + _COMPARE_BYTES)
        if not np.array_equal(found[part], expected[part]):
            return start + int(np.flatnonzero(found[part] != expected[part])[0])
    return -1
