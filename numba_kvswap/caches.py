"""The two sides of a swap: a cache in device memory and a cache in pinned host memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numba_kvswap.driver import Driver
from numba_kvswap.host_memory import pinned_memory
from numba_kvswap.ids import check_integer, checked_timeout_s
from numba_kvswap.interop import device_layers, flat, host_layers
from numba_kvswap.layers import BYTES_END, Layer, LayerBytes, check_device_memory, check_layers, name_fault
from numba_kvswap.memory import DriverMemory, OwnedMemory

Layout = Literal["block_major", "layer_major"]


class DeviceCache:
    """All layers of one cache on one device.

    ``DeviceCache(k_layers, v_layers, scale_layers)``: each argument is a list of arrays, one a layer, or one
    array whose first axis is the layer. All lists of one cache belong together and move together; layers may
    differ in dtype and block bytes. An array is [blocks, ...], its blocks contiguous and at a constant
    distance that may exceed their size; torch, CuPy, Numba and simulated arrays will do. They are not copied,
    and are kept alive.

    Attributes:
        depth: layers of the model. Model layer i has entry i of each list where all lists are equally long; else, and
            in a cache of one list, each entry is a layer of the model.

    Raises:
        TypeError: not an array on a device; a dtype that is not of whole bytes.
        ValueError: no layers; different numbers of blocks; blocks that are not contiguous; layers on several
            devices; memory that is not plain device memory.
    """

    def __init__(self, *layer_lists: Iterable[Any]) -> None:
        lists = [list(layers) for layers in layer_lists]  # a generator is used up once, here
        self._fill(*device_layers(flat(lists)))
        lengths = {len(layers) for layers in lists}
        if len(lengths) == 1:
            self.depth = lengths.pop()

    def _fill(self, layers: list[Layer], device: int, driver: Driver) -> None:
        check_layers(layers, "device")
        self.driver, self.device = driver, device
        self.layers = tuple(layers)
        self.depth = len(layers)
        with self.driver.activate(device):
            self.allocations = check_device_memory(layers, device, self.driver)

    @classmethod
    def allocate(
        cls,
        driver: Driver,
        *,
        blocks: int,
        block_bytes: Sequence[int],
        dtype: str = "uint8",
        device: int = 0,
    ) -> DeviceCache:
        """A cache of its own memory: layer i holds `blocks` blocks of ``block_bytes[i]`` bytes, uninitialised.

        Each layer is an allocation of its own, as serving engines make them. The memory is freed once nobody holds
        the cache and no transfer that uses it is under way; the library lets go of a landed transfer at its `wait`,
        or else at the next swap on this driver.

        Raises TypeError or ValueError for arguments that make no cache, KVSwapDriverError where the memory is not
        to be had.
        """
        blocks = _checked_blocks(blocks)
        if fault := name_fault(dtype):
            raise TypeError(f"dtype is {dtype!r}, which {fault}; expected the name of a whole-byte dtype")
        # Python's integers: NumPy's would overflow where a layer's bytes are counted.
        sizes = [check_integer(size, f"block_bytes[{index}]") for index, size in enumerate(block_bytes)]
        for index, size in enumerate(sizes):
            if size < 1:
                raise ValueError(f"block_bytes[{index}] is {size}; expected 1 or more")
        _check_bytes(blocks, sum(sizes))
        layers: list[Layer] = []
        for size in sizes:
            memory = DriverMemory(driver, device, blocks * size, "device")
            name = f"device layer {len(layers)}"
            layers.append(Layer(memory.address, blocks, size, size, dtype, owner=memory, name=name))
        return cls.of_layers(layers, device, driver)

    @classmethod
    def of_layers(cls, layers: list[Layer], device: int, driver: Driver) -> DeviceCache:
        """A cache of ready records."""
        cache = cls.__new__(cls)
        cache._fill(layers, device, driver)
        return cache

    def part(self, indexes: Sequence[int]) -> DeviceCache:
        """A cache of some of the layers, sharing their memory, which was checked already."""
        part = DeviceCache.__new__(DeviceCache)
        part.driver, part.device, part.depth = self.driver, self.device, len(indexes)
        part.layers = tuple(self.layers[index] for index in indexes)
        part.allocations = tuple(self.allocations[index] for index in indexes)
        return part

    @property
    def blocks(self) -> int:
        return self.layers[0].blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes for layer in self.layers)

    def __repr__(self) -> str:
        return (
            f"DeviceCache({len(self.layers)} layers, {self.blocks} blocks of {self.block_bytes} bytes over all "
            f"layers, on {self.driver.name} device {self.device})"
        )


class HostCache:
    """All layers of one cache in pinned host memory.

    ``HostCache(k_layers, v_layers, ...)`` takes the user's own pinned arrays, as `DeviceCache` does: NumPy views
    of pinned memory, Numba mapped or pinned arrays, pinned torch tensors. Whether they are pinned is checked
    when a Swapper is made, since the device's driver knows. `HostCache.allocate` makes a pool of its own.

    Raises TypeError and ValueError as `DeviceCache` does.
    """

    def __init__(self, *layer_lists: Iterable[Any]) -> None:
        self._fill(host_layers(flat(layer_lists)))

    def _fill(self, layers: list[Layer], memory: OwnedMemory | None = None) -> None:
        check_layers(layers, "host")
        self._layers = tuple(layers)
        self._memory = memory
        self._closed = False
        self._whole: HostCache | None = None
        self._views: weakref.WeakSet[LayerBytes] = weakref.WeakSet()

    @classmethod
    def allocate(cls, like: DeviceCache, *, blocks: int, layout: Layout = "block_major") -> HostCache:
        """A pool of `blocks` host blocks with the layers of `like`, in one range of pinned memory, uninitialised.

        layout: "block_major" lays a block's layers side by side, [blocks, layers, block bytes]; "layer_major" a
            layer's blocks, [layers, blocks, block bytes].

        The memory is pinned for every context (portable) and mapped. It is freed by `close`, at the end of a
        ``with`` block, or as a device cache's own memory is. Pools of 64 MiB and more are this process's own memory,
        touched by all CPUs near the device and registered with the driver, which is many times faster than the driver's
        allocation; those of 8 GiB and more show their progress on a terminal.

        Raises TypeError or ValueError for arguments like these, MemoryError where the system has not that much memory
        left (the machine, or this process's cgroup), KVSwapDriverError where the driver refuses it.
        """
        if not isinstance(like, DeviceCache):
            raise TypeError(f"like is {type(like).__name__}; expected a DeviceCache, whose layers the pool will have")
        blocks = _checked_blocks(blocks)
        if layout not in ("block_major", "layer_major"):
            raise ValueError(f"layout is {layout!r}; expected 'block_major' or 'layer_major'")
        size_bytes = _check_bytes(blocks, like.block_bytes)
        unit_bytes = like.block_bytes if layout == "block_major" else blocks * _layer_unit_bytes(like)
        memory = pinned_memory(like.driver, like.device, size_bytes, unit_bytes)
        before = [0, *accumulate(layer.block_bytes for layer in like.layers)]
        layers = [
            Layer(
                address=memory.address + offset * (1 if layout == "block_major" else blocks),
                blocks=blocks,
                block_bytes=layer.block_bytes,
                block_stride_bytes=like.block_bytes if layout == "block_major" else layer.block_bytes,
                dtype=layer.dtype,
                owner=memory,
                name=f"host layer {index}",
            )
            for index, (offset, layer) in enumerate(zip(before, like.layers, strict=False))
        ]
        return cls.of_layers(layers, memory)

    @classmethod
    def of_layers(cls, layers: list[Layer], memory: OwnedMemory | None = None) -> HostCache:
        """A cache of ready records, e.g. of raw addresses; `memory` is what it owns and closes."""
        cache = cls.__new__(cls)
        cache._fill(layers, memory)
        return cache

    def part(self, indexes: Sequence[int]) -> HostCache:
        """A cache of some of the layers, sharing their memory: it is closed when this one is, and closes nothing."""
        layers = self.layers
        part = HostCache.of_layers([layers[index] for index in indexes])
        part._whole = self
        return part

    @property
    def layers(self) -> tuple[Layer, ...]:
        self.check_open()
        return self._layers

    def check_open(self) -> None:
        """ValueError where the cache is closed."""
        if self.closed:
            raise ValueError("this HostCache is closed; allocate another")

    @property
    def pieces(self) -> tuple[int, ...]:
        """Where each registration of a pool's memory starts; () where the driver or the user allocated it."""
        return self._memory.pieces if self._memory is not None else ()

    @property
    def closed(self) -> bool:
        return (self._whole or self)._closed

    @property
    def blocks(self) -> int:
        return self._layers[0].blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes for layer in self._layers)

    def layer(self, index: int) -> npt.NDArray[np.uint8]:
        """Layer `index` as bytes [blocks, block bytes], sharing the memory.

        What a running transfer writes may be read only after its `wait`. A pool with such views alive
        refuses to close.
        """
        layers = self.layers
        if not 0 <= index < len(layers):
            raise IndexError(f"layer {index}; expected 0 <= layer < {len(layers)}")
        view = LayerBytes(layers[index])
        self._views.add(view)
        self.check_open()  # again: a close in another thread looks for views after it has said that it closes
        return np.asarray(view)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the transfers that use this pool, then free it. A call after one that succeeded does nothing.

        A swap in another thread either comes first, and is waited for, or finds the pool closed. Arrays passed in by
        the user stay the user's, and are let alone. timeout_s: as of `Transfer.wait`.

        Raises:
            TimeoutError: a transfer has not landed within `timeout_s` seconds. The memory is kept, the pool takes no
                more swaps; call again.
            BufferError: views made by `layer` are alive; they would point to freed memory.
            KVSwapDriverError: the driver failed, or cannot say that a transfer has ended. The memory is kept; call
                again.
        """
        timeout_s = checked_timeout_s(timeout_s)
        if self._memory is None or not self._memory.address:
            return
        # First: swaps and views look at this after they have made themselves known.
        was_closed, self._closed = self._closed, True
        if len(self._views):
            self._closed = was_closed
            raise BufferError(f"{len(self._views)} views of this pool's layers are alive; delete them, then close")
        doubt = self._memory.driver.in_flight.wait_for(self._memory, timeout_s)
        if doubt is not None:
            raise doubt
        self._memory.close()

    def __enter__(self) -> HostCache:
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or not len(self._views):  # an error under way matters more than a view left alive
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"HostCache({len(self._layers)} layers, {self.blocks} blocks of {self.block_bytes} bytes over all "
            f"layers{state})"
        )


def _layer_unit_bytes(like: DeviceCache) -> int:
    """Bytes of a block at whose multiples layers start: of one layer where all are of one size, else of all."""
    first = like.layers[0].block_bytes
    return first if all(layer.block_bytes == first for layer in like.layers) else like.block_bytes


def _check_bytes(blocks: int, block_bytes: int) -> int:
    """What they take together. ValueError, before anything is allocated, where no address would reach it."""
    size_bytes = blocks * block_bytes
    if max(size_bytes, block_bytes) >= BYTES_END:
        raise ValueError(f"{blocks} blocks of {block_bytes} bytes over all layers came; expected below 2**63 bytes")
    return size_bytes


def _checked_blocks(blocks: object) -> int:
    checked = check_integer(blocks, "blocks")
    if checked < 0:
        raise ValueError(f"blocks is {checked}; expected 0 or more")
    return checked
