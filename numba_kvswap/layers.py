"""Where block b of layer l lies: the records that everything behind the door works with."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from numba_kvswap.driver import Driver, PointerInfo

# Types narrower than a byte, by the names ml_dtypes and torch give them. torch's float4_e2m1fn_x2 is not
# among them: its element is a whole byte that holds two values.
_SUB_BYTE = re.compile(r"u?int[1-7]|float[46]_(?!.*_x\d)\w+|quint\dx\d|bits\dx\d")

#: No address and no size reaches it, on any device or host.
BYTES_END = 1 << 63


@dataclass(frozen=True)
class ArrayFacts:
    """What interop.py learns from any framework's array, before any of it is judged.

    address: of the first element, bytes. strides_bytes: one a dimension. dtype: its name. dtype_fault: why
    its elements are not plain whole bytes, "" where they are. device: ordinal, None for host memory.
    """

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    item_bytes: int
    dtype: str
    dtype_fault: str
    device: int | None
    writable: bool
    owner: object = field(repr=False, compare=False)


@dataclass(frozen=True)
class Layer:
    """One layer of one side: block b is the `block_bytes` bytes at ``address + b * block_stride_bytes``.

    dtype is a name, only ever compared, or None for raw memory, which matches any. `owner` keeps the memory
    alive for as long as the record lives. `name` is how errors call it, e.g. "device layer 3".
    """

    address: int
    blocks: int
    block_bytes: int
    block_stride_bytes: int
    dtype: str | None
    writable: bool = True
    owner: object = field(default=None, repr=False, compare=False)
    name: str = field(default="layer", compare=False)

    @property
    def extent_bytes(self) -> int:
        """From the first byte of the first block to the end of the last block."""
        return (self.blocks - 1) * self.block_stride_bytes + self.block_bytes if self.blocks else 0


#: Of each layer of one side: where its block 0 starts, and how far apart its blocks are, bytes.
StartsAndStrides = Sequence[tuple[int, int]]


def starts_and_strides(layers: Sequence[Layer], starts: Sequence[int] | None = None) -> StartsAndStrides:
    """starts: where others reach the layers, a kernel say; by default their own addresses."""
    if starts is None:
        starts = [layer.address for layer in layers]
    return [(start, layer.block_stride_bytes) for start, layer in zip(starts, layers, strict=True)]


class LayerBytes:
    """A layer as ``numpy.asarray`` takes it: uint8 [blocks, block bytes], sharing the memory.

    Of host memory, or of the simulated device's, which is host memory too. Alive as long as any array made of
    it, and so is the memory.
    """

    def __init__(self, layer: Layer) -> None:
        self._owner = layer.owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (layer.address, not layer.writable),
            "shape": (layer.blocks, layer.block_bytes),
            "strides": (layer.block_stride_bytes, 1),
        }


def dtype_fault(dtype: np.dtype[Any]) -> str:
    """Why elements of `dtype` are not plain whole bytes; "" where they are."""
    if dtype.hasobject:
        return "holds Python objects, not bytes"
    if dtype.names is not None or dtype.subdtype is not None:
        return "is structured"
    return name_fault(dtype.name)


def name_fault(dtype_name: str) -> str:
    return "is narrower than a byte" if _SUB_BYTE.fullmatch(dtype_name) else ""


def layer_of(facts: ArrayFacts, name: str) -> Layer:
    """The record of an array [blocks, ...]; `name` is how errors call it.

    Raises TypeError for a dtype that is not of whole bytes, ValueError for blocks of no bytes, and for blocks
    that are not contiguous at a constant distance of at least their size.
    """
    if facts.dtype_fault:
        raise TypeError(
            f"{name} has dtype {facts.dtype}, which {facts.dtype_fault}; expected a whole-byte dtype; "
            "view the array as uint8 if its bytes are to move"
        )
    block_bytes = prod(facts.shape[1:]) * facts.item_bytes
    if not facts.shape or block_bytes == 0:
        raise ValueError(f"{name} has shape {facts.shape}; expected [blocks, ...] with blocks of 1 byte or more")
    if block_bytes >= BYTES_END:
        raise ValueError(f"{name} has blocks of {block_bytes} bytes; expected fewer than 2**63")
    blocks = facts.shape[0]
    stride = facts.strides_bytes[0] if blocks > 1 else block_bytes
    if blocks and not (_inner_contiguous(facts) and stride >= block_bytes):
        raise ValueError(
            f"{name} has shape {facts.shape} and strides {facts.strides_bytes} bytes; expected contiguous blocks "
            f"at a distance of at least {block_bytes} bytes; make it contiguous first"
        )
    return Layer(facts.address, blocks, block_bytes, stride, facts.dtype, facts.writable, facts.owner, name)


def _inner_contiguous(facts: ArrayFacts) -> bool:
    expected = facts.item_bytes
    for length, stride in zip(reversed(facts.shape[1:]), reversed(facts.strides_bytes[1:]), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def check_layers(layers: Sequence[Layer], side: str) -> None:
    """A cache has layers, and the same number of blocks in each. Raises ValueError."""
    if not layers:
        raise ValueError(f"the {side} cache has no layers; expected one array a layer")
    for layer in layers:
        if layer.blocks != layers[0].blocks:
            raise ValueError(
                f"{layer.name} has {layer.blocks} blocks, {layers[0].name} has {layers[0].blocks}; "
                "expected the same number in every layer"
            )


def check_same_layers(device: Sequence[Layer], host: Sequence[Layer]) -> None:
    """Two caches can be swapped when layer i has one dtype and one block size on both. Raises ValueError."""
    if len(device) != len(host):
        raise ValueError(
            f"the device cache has {len(device)} layers, the host cache {len(host)}; expected as many: "
            "all lists of one cache (K, V, scales) move together"
        )
    for one, other in zip(device, host, strict=True):
        if None not in (one.dtype, other.dtype) and one.dtype != other.dtype:
            raise ValueError(f"{one.name} has dtype {one.dtype}, {other.name} {other.dtype}; expected one dtype")
        if one.block_bytes != other.block_bytes:
            raise ValueError(
                f"{one.name} has blocks of {one.block_bytes} bytes, {other.name} of {other.block_bytes}; "
                "expected one size"
            )


def check_writable(layers: Sequence[Layer]) -> None:
    for layer in layers:
        if not layer.writable:
            raise ValueError(f"{layer.name} is read-only; expected a target that can be written")


def check_device_memory(layers: Sequence[Layer], device: int, driver: Driver) -> tuple[int, ...]:
    """Every byte of every layer lies in plain device memory of `device`, as far as the driver knows, else ValueError.

    The driver is asked once a range of memory, however many layers lie in it: an array over torch's expandable segments
    spans thousands of mappings.
    Returns where the range starts in which each layer begins: one copy over several layers must stay inside one.
    """
    starts, ranges = [0] * len(layers), _DeviceRanges(device, driver)
    for index in sorted(range(len(layers)), key=lambda index: layers[index].address):
        if layers[index].blocks:
            starts[index] = ranges.start_of(layers[index])
    return tuple(starts)


class _DeviceRanges:
    """Ranges of a device's memory, walked through from lower to higher addresses: those side by side that were last
    seen. Only virtual memory goes on in the next range: what lies behind an allocation is somebody else's."""

    def __init__(self, device: int, driver: Driver) -> None:
        self._device, self._driver = device, driver
        self._starts: list[int] = []
        self._end = 0
        self._virtual = False

    def start_of(self, layer: Layer) -> int:
        """Where the range starts that holds the layer's first byte. ValueError unless all of it lies in such ranges."""
        if not (self._starts and self._starts[0] <= layer.address < self._end):
            info = self._driver.pointer_info(layer.address)
            if not self._holds(info, layer.address):
                what, expected = _kind_in_words(info), self._expected(info)
                raise ValueError(f"{layer.name} at {layer.address:#x} is {what}; {expected}")
            self._starts, self._end, self._virtual = [info.start], info.end, info.context == "none"
        while self._end - layer.address < layer.extent_bytes:
            following = self._driver.pointer_info(self._end)
            if not (self._virtual and following.context == "none" and self._holds(following, self._end)):
                raise ValueError(
                    f"{_shortage(layer, self._end - layer.address, 'device', following)}; expected all of it in one "
                    "allocation; is the shape right, and the memory still allocated?"
                )
            self._starts.append(self._end)
            self._end = following.end
        return self._starts[bisect_right(self._starts, layer.address) - 1]

    def _holds(self, info: PointerInfo, address: int) -> bool:
        plain = (info.kind, info.device) == ("device", self._device) and info.context != "another"
        return plain and info.start <= address < info.end

    def _expected(self, info: PointerInfo) -> str:
        expected = f"expected plain memory of device {self._device}"
        if info.kind == "device" and info.context == "another":
            return f"{expected}, of its primary context, in which torch, CuPy and Numba allocate: allocate it there"
        return expected


#: Where a layer lies: (start of an allocation or registration, first block of the layer in it), in ascending order.
Places = tuple[tuple[int, int], ...]


def check_pinned_memory(layers: Sequence[Layer], driver: Driver, pieces: Collection[int] = ()) -> tuple[Places, ...]:
    """Every layer lies, whole, in one range of pinned host memory, else ValueError.

    Pageable memory would be copied, synchronously and slowly, without a word; hence the refusal.

    pieces: where the registrations of a pool start, each of which goes on where the one before it ends. Only there
        may a layer go on: what else lies behind an allocation is somebody else's.
    Returns where each layer lies. A copy must stay within one place.
    """
    return tuple(_pinned_places(layer, driver, pieces) for layer in layers)


def _pinned_places(layer: Layer, driver: Driver, pieces: Collection[int]) -> Places:
    info = driver.pointer_info(layer.address)
    if layer.blocks == 0:
        return ((info.start, 0),)
    if info.kind != "host":
        raise ValueError(
            f"{layer.name} at {layer.address:#x} is {_kind_in_words(info)}; expected pinned host memory: "
            "allocate it with HostCache.allocate or register it with the driver"
        )
    places = [(info.start, 0)]
    while (found := info.end - layer.address) < layer.extent_bytes:
        following = driver.pointer_info(info.end) if info.end in pieces else info
        if (following.kind, following.start) != ("host", info.end):
            behind = driver.pointer_info(info.end)
            raise ValueError(
                f"{_shortage(layer, found, 'pinned', behind)}; pass fewer blocks, or memory that was allocated or "
                "registered in one piece"
            )
        info = following
        places.append((info.start, -(-found // layer.block_stride_bytes)))  # a pool is cut between blocks
    return tuple(places)


def overlapping_layers(layers: Sequence[Layer]) -> tuple[str, str]:
    """Names of two layers that share bytes, or whose strides differ so that they may; two empty ones where none do.

    Layers may lie within each other's stretches, as those of a block-major pool do: at one stride, each at a place of
    its own.
    """
    entwined: list[Layer] = []
    end = 0
    for layer in sorted((layer for layer in layers if layer.blocks), key=lambda layer: layer.address):
        if layer.address >= end:
            if found := _sharing(entwined):
                return found
            entwined = []
        entwined.append(layer)
        end = max(end, layer.address + layer.extent_bytes)
    return _sharing(entwined) or ("", "")


def _sharing(entwined: list[Layer]) -> tuple[str, str] | None:
    """Of layers whose stretches overlap, two that share bytes, were there as many blocks as it takes."""
    if len(entwined) < 2:
        return None
    first = entwined[0]
    for other in entwined:
        if other.block_stride_bytes != first.block_stride_bytes:
            return first.name, other.name
    stride = first.block_stride_bytes
    others = [((layer.address - first.address) % stride, layer) for layer in entwined[1:]]
    places = [(0, first), *sorted(others, key=lambda place: place[0]), (stride, first)]
    for (at, one), (next_at, other) in pairwise(places):
        if at + one.block_bytes > next_at:
            return one.name, other.name
    return None


def _shortage(layer: Layer, found: int, kind: str, behind: PointerInfo) -> str:
    """behind: what the driver knows of the address where the `found` bytes end."""
    what = _kind_in_words(behind)
    if behind.kind != "unknown":
        what = f"another piece of {behind.bytes} bytes, {what}"
    return (
        f"{layer.name} at {layer.address:#x} needs {layer.extent_bytes} bytes for {layer.blocks} blocks, "
        f"found {found} {kind} bytes there; at {layer.address + found:#x} begins {what}"
    )


def _kind_in_words(info: PointerInfo) -> str:
    if info.kind == "device":
        return f"memory of device {info.device}" + (", of another context" if info.context == "another" else "")
    return {
        "host": "pinned host memory",
        "managed": "managed memory",
        "unknown": "not known to the driver (null, pageable, freed, another driver's, or never allocated)",
    }[info.kind]
