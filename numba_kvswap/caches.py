"""The two sides of a swap: a cache in device memory and a cache in pinned host memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from numba_kvswap.driver import Driver, cuda_driver
from numba_kvswap.interop import check_integer, device_layers, flat, host_layers, simulated_driver_of
from numba_kvswap.layers import Layer, LayerBytes, check_device_memory, check_layers, check_pinned_memory
from numba_kvswap.memory import DriverMemory

Layout = Literal["block_major", "layer_major"]


class DeviceCache:
    """All layers of one cache on one device.

    ``DeviceCache(k_layers, v_layers, scale_layers)``: each argument is a list of arrays, one a layer, or one
    array whose first axis is the layer. All lists of one cache belong together and move together; layers may
    differ in dtype and block bytes. An array is [blocks, ...], its blocks contiguous and at a constant
    distance that may exceed their size; torch, CuPy, Numba and simulated arrays will do. They are not copied,
    and are kept alive.

    Raises:
        TypeError: not an array on a device; a dtype that is not of whole bytes.
        ValueError: no layers; different numbers of blocks; blocks that are not contiguous; layers on several
            devices; memory that is not plain device memory.
    """

    def __init__(self, *layer_lists: Iterable[Any]) -> None:
        arrays = flat(layer_lists)
        layers, device = device_layers(arrays)
        self._fill(layers, device, simulated_driver_of(arrays))

    def _fill(self, layers: list[Layer], device: int, driver: Driver | None) -> None:
        check_layers(layers, "device")
        self.driver = driver or cuda_driver()
        self.device = device
        self.layers = tuple(layers)
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

        Each layer is an allocation of its own, as serving engines make them. The memory is freed when the
        cache and every transfer that uses it are gone.
        """
        layers = []
        for size in block_bytes:
            memory = DriverMemory(driver, device, blocks * size, "device")
            layers.append(Layer(memory.address, blocks, size, size, dtype, True, memory))
        return cls.of_layers(layers, device, driver)

    @classmethod
    def of_layers(cls, layers: list[Layer], device: int, driver: Driver | None) -> DeviceCache:
        """A cache of ready records; `driver` None is the real one."""
        cache = cls.__new__(cls)
        cache._fill(layers, device, driver)
        return cache

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
        self._fill(host_layers(flat(layer_lists)), None)

    def _fill(self, layers: list[Layer], memory: DriverMemory | None) -> None:
        check_layers(layers, "host")
        self._layers = tuple(layers)
        self._memory = memory
        self._views: weakref.WeakSet[LayerBytes] = weakref.WeakSet()

    @classmethod
    def allocate(cls, like: DeviceCache, *, blocks: int, layout: Layout = "block_major") -> HostCache:
        """A pool of `blocks` host blocks with the layers of `like`, in one pinned allocation, uninitialised.

        layout: "block_major" lays a block's layers side by side, [blocks, layers, block bytes]; "layer_major" a
            layer's blocks, [layers, blocks, block bytes].

        The memory is pinned for every context (portable) and mapped. It is freed by `close`, at the end of a
        ``with`` block, or when the cache, its views and every transfer that uses it are gone.

        Raises TypeError or ValueError for arguments like these, KVSwapDriverError where the memory is not to
        be had.
        """
        blocks = check_integer(blocks, "blocks")
        if blocks < 0:
            raise ValueError(f"blocks is {blocks}; expected 0 or more")
        if layout not in ("block_major", "layer_major"):
            raise ValueError(f"layout is {layout!r}; expected 'block_major' or 'layer_major'")
        memory = DriverMemory(like.driver, like.device, blocks * like.block_bytes, "pinned")
        before = [0, *accumulate(layer.block_bytes for layer in like.layers)]
        layers = [
            Layer(
                address=memory.address + offset * (1 if layout == "block_major" else blocks),
                blocks=blocks,
                block_bytes=layer.block_bytes,
                block_stride_bytes=like.block_bytes if layout == "block_major" else layer.block_bytes,
                dtype=layer.dtype,
                owner=memory,
            )
            for offset, layer in zip(before, like.layers, strict=False)
        ]
        cache = cls.__new__(cls)
        cache._fill(layers, memory)
        return cache

    @classmethod
    def of_layers(cls, layers: list[Layer]) -> HostCache:
        """A cache of ready records, e.g. of raw addresses."""
        cache = cls.__new__(cls)
        cache._fill(layers, None)
        return cache

    @property
    def layers(self) -> tuple[Layer, ...]:
        if self.closed:
            raise ValueError("this HostCache is closed; allocate another")
        return self._layers

    @property
    def closed(self) -> bool:
        return self._memory is not None and self._memory.address == 0

    @property
    def blocks(self) -> int:
        return self._layers[0].blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes for layer in self._layers)

    def check_pinned(self, driver: Driver) -> tuple[int, ...]:
        """Where each layer's allocation starts; ValueError where a layer is not, whole, in pinned memory."""
        return check_pinned_memory(self.layers, driver)

    def layer(self, index: int) -> npt.NDArray[np.uint8]:
        """Layer `index` as bytes [blocks, block bytes], sharing the memory.

        What a running transfer writes may be read only after its `wait`. A pool with such views alive
        refuses to close.
        """
        view = LayerBytes(self.layers[index])
        self._views.add(view)
        return np.asarray(view)

    def close(self) -> None:
        """Wait for the transfers that use this pool, then free it. A second call does nothing.

        Raises BufferError while views made by `layer` are alive: they would point to freed memory. Arrays
        passed in by the user stay the user's, and are let alone.
        """
        if self._memory is None or self.closed:
            return
        if len(self._views):
            raise BufferError(f"{len(self._views)} views of this pool's layers are alive; delete them, then close")
        self._memory.driver.in_flight.wait_for(self._memory)
        self._memory.close()

    def __enter__(self) -> HostCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"HostCache({len(self._layers)} layers, {self.blocks} blocks of {self.block_bytes} bytes over all "
            f"layers{state})"
        )
