"""One side's memory in a world: layers in images with guard bytes around them, and what each block must hold.

A block holds a version: byte `offset` of layer `layer` follows from these three alone (`Content`), so that the device
can make and judge it by itself, and a block in the wrong place, or of an earlier time, cannot pass for the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory
from numba_kvswap.testing.history.order import Operation

Bytes = npt.NDArray[np.uint8]
#: "apart": each layer an allocation of its own, which only a device cache may be.
SideLayout = Literal["layer_major", "block_major", "apart"]

GUARD_BYTES = 32
# Odd, and otherwise any: of a version, a layer, an offset, and to mix them.
BY_VERSION, BY_LAYER, BY_OFFSET, MIX = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD
_WORD_MASK = 2**64 - 1
_SHIFT_32, _SHIFT_56 = np.uint64(32), np.uint64(56)


class Content:
    """What blocks of these layers hold. sizes: block bytes, one a layer."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        places = [
            (layer * BY_LAYER + offset * BY_OFFSET) & _WORD_MASK
            for layer, size in enumerate(sizes)
            for offset in range(size)
        ]
        self._places = np.array(places, np.uint64)
        self._cuts = list(accumulate(sizes))[:-1]

    def of(self, version: int) -> list[Bytes]:
        """The bytes of one block of that version, an array a layer."""
        word = self._places + np.uint64(version * BY_VERSION & _WORD_MASK)
        word = (word ^ (word >> _SHIFT_32)) * np.uint64(MIX)
        row: Bytes = (word >> _SHIFT_56).astype(np.uint8)
        return np.split(row, self._cuts)


@dataclass(frozen=True)
class Place:
    """Where a layer lies: in which image, where there, and how far apart its blocks are."""

    image: int
    offset_bytes: int
    stride_bytes: int


def places_of(layout: SideLayout, sizes: Sequence[int], blocks: int, pad_bytes: int) -> tuple[list[Place], list[int]]:
    """The layers' places, and the images' bytes. pad_bytes: behind each block; block-major, behind each of its layers.

    Guard bytes lie before, between and behind layers.
    """
    places: list[Place] = []
    if layout == "block_major":
        row = sum(sizes) + pad_bytes * len(sizes)
        places = [
            Place(0, GUARD_BYTES + before + pad_bytes * i, row) for i, before in enumerate(accumulate([0, *sizes[:-1]]))
        ]
        return places, [2 * GUARD_BYTES + blocks * row]
    images, offset = [], GUARD_BYTES
    for index, size in enumerate(sizes):
        stride = size + pad_bytes
        if layout == "apart":
            places.append(Place(index, GUARD_BYTES, stride))
            images.append(2 * GUARD_BYTES + blocks * stride)
        else:
            places.append(Place(0, offset, stride))
            offset += blocks * stride + GUARD_BYTES
    return places, images or [offset]


class Side:
    """One device cache or one host pool: its memory, its cache, and a model of what its blocks hold.

    Attributes: versions, None where what a block holds is not defined; last_writes and last_reads, a block each: the
    operations that the next one on that block must come after. Of writers there are several where the last ones
    failed; of readers the last a stream.
    """

    def __init__(
        self,
        driver: Driver,
        kind: Literal["device", "host"],
        content: Content,
        blocks: int,
        layout: SideLayout = "layer_major",
        pad_bytes: int = 0,
    ) -> None:
        self.driver, self.kind, self.content, self.blocks = driver, kind, content, blocks
        self._places, sizes = places_of(layout, content.sizes, blocks, pad_bytes)
        self.images = [DriverMemory(driver, 0, size, kind) for size in sizes]
        self._guards = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in sizes]
        self.layers = [self._layer(index, place) for index, place in enumerate(self._places)]
        #: The layers' own bytes, [blocks, block bytes] each; a real device's are out of the host's reach.
        self.views = [np.asarray(LayerBytes(layer)) for layer in self.layers]
        self.versions: list[int | None] = [None] * blocks
        self.last_writes: list[list[Operation]] = [[] for _ in range(blocks)]
        self.last_reads: list[dict[int, Operation]] = [{} for _ in range(blocks)]

    def _layer(self, index: int, place: Place) -> Layer:
        memory = self.images[place.image]
        return Layer(
            memory.address + place.offset_bytes,
            self.blocks,
            self.content.sizes[index],
            place.stride_bytes,
            "uint8",
            owner=memory,
            name=f"{self.kind} layer {index}",
        )

    def device_cache(self) -> DeviceCache:
        return DeviceCache.of_layers(self.layers, 0, self.driver)

    def host_cache(self) -> HostCache:
        """A pool that owns the memory: its `close` frees it."""
        (memory,) = self.images
        return HostCache.of_layers(self.layers, memory)

    def expected(self) -> list[tuple[Bytes, npt.NDArray[np.bool_]]]:
        """Of each image what it must hold, and which of its bytes are defined."""
        images = [(guards.copy(), np.ones(guards.size, np.bool_)) for guards in self._guards]
        for block, version in enumerate(self.versions):
            rows = self.content.of(version or 0)
            for place, row in zip(self._places, rows, strict=True):
                start = place.offset_bytes + block * place.stride_bytes
                image, defined = images[place.image]
                image[start : start + row.size] = row
                defined[start : start + row.size] = version is not None
        return images

    def place_of_byte(self, image: int, offset_bytes: int) -> str:
        """In words."""
        for index, (place, size) in enumerate(zip(self._places, self.content.sizes, strict=True)):
            block, within = divmod(offset_bytes - place.offset_bytes, place.stride_bytes)
            if place.image == image and 0 <= block < self.blocks and within < size:
                return f"byte {within} of block {block}, layer {index}"
        return f"a guard or padding byte, {offset_bytes} bytes into its allocation"
