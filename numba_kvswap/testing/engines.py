"""The engines under test, each a place for two images of bytes and a way to make the case's call on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from numba_kvswap import reference
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver, SimulatedDevice, cuda_driver
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory
from numba_kvswap.ops import swap_cache_all_layers
from numba_kvswap.swapper import Swapper
from numba_kvswap.testing.cases import LayerView, SwapCase
from numba_kvswap.transports.named import TRANSPORTS

Bytes = npt.NDArray[np.uint8]


class Placed(Protocol):
    """Two images laid where an engine wants them."""

    def device_array(self, view: LayerView) -> Any: ...

    def host_array(self, view: LayerView) -> npt.NDArray[Any]: ...

    def images(self) -> tuple[Bytes, Bytes]:
        """Copies of the device's and the host's bytes, once everything submitted is done."""


class Engine(Protocol):
    """One implementation of the op and of a swap between two lists of layers."""

    name: str

    def place(self, case: SwapCase, device_image: Bytes, host_image: Bytes) -> Placed:
        """Copy both images to where the engine works, e.g. with ``ReferenceEngine().place``: NumPy arrays."""

    def op(self, *arguments: Any) -> None:
        """`swap_cache_all_layers`, FastDeploy's order of arguments."""

    def swap(self, direction: str, device: Sequence[Any], host: Sequence[Any], ids: tuple[Any, Any]) -> None:
        """Swap between two lists of layers; `ids` are the device's and the host's. Returns when landed."""


def host_view(image: Bytes, view: LayerView) -> npt.NDArray[Any]:
    return np.ndarray(view.shape, view.dtype, image.data, view.offset_bytes, view.strides_bytes)


class ReferenceEngine:
    """The reference, with NumPy arrays for both sides."""

    name = "reference"

    def place(self, case: SwapCase, device_image: Bytes, host_image: Bytes) -> Placed:
        return _PlacedInNumPy(device_image.copy(), host_image.copy())

    def op(self, *arguments: Any) -> None:
        reference.swap_cache_all_layers(*arguments)

    def swap(self, direction: str, device: Sequence[Any], host: Sequence[Any], ids: tuple[Any, Any]) -> None:
        if direction == "out":
            reference.swap_blocks(device, host, ids[0], ids[1])
        else:
            reference.swap_blocks(host, device, ids[1], ids[0])


class _PlacedInNumPy:
    def __init__(self, device: Bytes, host: Bytes) -> None:
        self._device, self._host = device, host

    def device_array(self, view: LayerView) -> npt.NDArray[Any]:
        return host_view(self._device, view)

    def host_array(self, view: LayerView) -> npt.NDArray[Any]:
        return host_view(self._host, view)

    def images(self) -> tuple[Bytes, Bytes]:
        return self._device.copy(), self._host.copy()


class _PackageEngine:
    """What the simulated and the real engine share: this package's entry points, with one transport."""

    device_name: str

    def __init__(self, transport: str = "auto") -> None:
        self._transport = transport
        self.name = self.device_name if transport == "auto" else f"{self.device_name}-{transport}"

    def op(self, *arguments: Any) -> None:
        swap_cache_all_layers(*arguments, transport=self._transport)

    def swap(self, direction: str, device: Sequence[Any], host: Sequence[Any], ids: tuple[Any, Any]) -> None:
        swapper = Swapper(DeviceCache(device), HostCache(host), transport=self._transport)
        (swapper.swap_out if direction == "out" else swapper.swap_in)(*ids).wait()


class SimulatedEngine(_PackageEngine):
    """A fresh simulated device a case, its scheduler driven by the case's schedule."""

    device_name = "simulated"

    def place(self, case: SwapCase, device_image: Bytes, host_image: Bytes) -> Placed:
        block_bytes = sum(layer.block_bytes for layer in case.layers)
        device = SimulatedDevice(schedule=case.schedule, ring_slot_bytes=_RING_BLOCKS * block_bytes)
        return _PlacedOnSimulated(device, device_image, host_image)


# That fit a slot of the ring: few, so that a dozen pairs go round it more than once.
_RING_BLOCKS = 2


class _PlacedOnSimulated:
    def __init__(self, device: SimulatedDevice, device_image: Bytes, host_image: Bytes) -> None:
        self._device = device.device_array(device_image.shape, np.uint8)
        self._device.live()[:] = device_image
        self._host = device.pinned_array(host_image.shape, np.uint8)
        self._host[:] = host_image

    def device_array(self, view: LayerView) -> Any:
        return self._device.view(view.offset_bytes, view.shape, view.dtype, view.strides_bytes)

    def host_array(self, view: LayerView) -> npt.NDArray[Any]:
        return host_view(self._host, view)

    def images(self) -> tuple[Bytes, Bytes]:
        return self._device.to_numpy(), self._host.copy()


class CudaEngine(_PackageEngine):
    """The real device: one arena on each side for all cases, since allocating costs more than a swap."""

    device_name = "cuda"
    _ARENA_BYTES = 1 << 20

    def __init__(self, transport: str = "auto") -> None:
        super().__init__(transport)
        self._driver: Driver = cuda_driver()
        self._device = DriverMemory(self._driver, 0, self._ARENA_BYTES, "device")
        self._pinned = DriverMemory(self._driver, 0, self._ARENA_BYTES, "host")

    def place(self, case: SwapCase, device_image: Bytes, host_image: Bytes) -> Placed:
        return _PlacedOnCuda(self._driver, self._device, self._pinned, device_image, host_image)


class CudaView:
    """An array in device memory as the CUDA array interface describes it, with its NumPy dtype."""

    def __init__(self, address: int, view: LayerView, owner: object) -> None:
        self.shape, self.dtype, self._owner = view.shape, view.dtype, owner
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": view.shape,
            "strides": view.strides_bytes,
            "typestr": view.dtype.str,
            "data": (address, False),
            "stream": None,
        }


class _PlacedOnCuda:
    def __init__(
        self, driver: Driver, device: DriverMemory, pinned: DriverMemory, device_image: Bytes, host_image: Bytes
    ) -> None:
        if max(device_image.size, host_image.size) > device.size_bytes:
            raise ValueError(f"images of {device_image.size} and {host_image.size} bytes; the arenas hold less")
        self._driver, self._device, self._device_bytes = driver, device, device_image.size
        size = host_image.size
        self._host = np.asarray(LayerBytes(Layer(pinned.address, 1, size, size, "uint8", owner=pinned)))[0]
        self._host[:] = host_image
        with driver.activate(0):
            driver.copy_now(device.address, device_image.ctypes.data, device_image.size)

    def device_array(self, view: LayerView) -> Any:
        return CudaView(self._device.address + view.offset_bytes, view, self._device)

    def host_array(self, view: LayerView) -> npt.NDArray[Any]:
        return host_view(self._host, view)

    def images(self) -> tuple[Bytes, Bytes]:
        device = np.empty(self._device_bytes, np.uint8)
        with self._driver.activate(0):
            self._driver.copy_now(device.ctypes.data, self._device.address, device.size)
        return device, self._host.copy()


ENGINES: dict[str, Callable[[], Any]] = {"reference": ReferenceEngine}
for _engine in (SimulatedEngine, CudaEngine):
    ENGINES[_engine.device_name] = _engine
    for _transport in TRANSPORTS:
        ENGINES[f"{_engine.device_name}-{_transport}"] = partial(_engine, _transport)


def engine_named(name: str) -> Engine:
    """The engine "reference", "simulated" or "cuda", or one of the last two with a transport: "simulated-ring".

    Raises ValueError for another name, KVSwapDriverError where there is no GPU.
    """
    if name not in ENGINES:
        raise ValueError(f"engine is {name!r}; expected one of {', '.join(ENGINES)}")
    engine: Engine = ENGINES[name]()
    return engine
