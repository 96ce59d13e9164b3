"""The door: torch, CuPy, Numba, NumPy and simulated arrays, host addresses and streams, turned into plain facts.

A framework is found through sys.modules, never imported for its own sake: an array of a framework that was
not imported cannot have been passed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from numba_kvswap.driver import Driver, SimulatedArray, SimulatedStream, cuda_driver
from numba_kvswap.layers import ArrayFacts, Layer, dtype_fault, layer_of, name_fault


def array_facts(array: object, where: str) -> ArrayFacts:
    """What can be known of an array without judging it; `where` names it in the TypeError for any other object."""
    if isinstance(array, SimulatedArray):
        return _simulated_facts(array)
    if isinstance(array, np.ndarray):  # Numba's mapped and pinned arrays are ndarrays too
        return _numpy_facts(array)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _torch_facts(array, where)
    if hasattr(array, "__cuda_array_interface__"):
        return _cuda_array_interface_facts(array)
    raise TypeError(
        f"{where} is {type(array).__name__}; expected a torch, CuPy, Numba, NumPy or simulated array "
        "(any __cuda_array_interface__ will do)"
    )


def flat(layer_lists: Iterable[Iterable[Any]]) -> list[Any]:
    """The arrays of K, V and other lists, one list after the other; a generator is used up once, here."""
    return [array for layers in layer_lists for array in layers]


def device_layers(arrays: Sequence[Any], side: str = "device") -> tuple[list[Layer], int, Driver]:
    """Records of device arrays, the ordinal of the one device that holds them all, and its driver.

    Raises TypeError for arrays in host memory, ValueError where the arrays lie on several devices.
    """
    layers, devices = [], []
    for index, array in enumerate(arrays):
        facts = array_facts(array, f"{side} layer {index}")
        if facts.device is None:
            raise TypeError(
                f"{side} layer {index} is {type(array).__name__} in host memory; expected an array on the device"
            )
        layers.append(layer_of(facts, f"{side} layer {index}"))
        devices.append((_driver_of(array), facts.device))
    places = list(dict.fromkeys(devices))
    if not places:
        raise ValueError(f"the {side} cache has no layers; expected one array a layer")
    if len(places) > 1:
        names = ", ".join(f"{driver.name} device {ordinal}" for driver, ordinal in places)
        raise ValueError(f"the {side} layers lie on different devices or drivers: {names}; expected all on one device")
    driver, device = places[0]
    return layers, device, driver


def _driver_of(array: object) -> Driver:
    return array.simulated_device.driver if isinstance(array, SimulatedArray) else cuda_driver()


def host_layers(arrays: Sequence[Any]) -> list[Layer]:
    """Records of host arrays; TypeError for an array on a device."""
    names = [f"host layer {index}" for index in range(len(arrays))]
    return [layer_of(host_facts(array, name), name) for array, name in zip(arrays, names, strict=True)]


def host_facts(array: object, where: str) -> ArrayFacts:
    """`array_facts` of an array in host memory; TypeError for one on a device."""
    facts = array_facts(array, where)
    if facts.device is not None:
        raise TypeError(f"{where} is {type(array).__name__} on device {facts.device}; expected pinned host memory")
    return facts


def _numpy_facts(array: np.ndarray[Any, Any]) -> ArrayFacts:
    return ArrayFacts(
        address=array.ctypes.data,
        shape=array.shape,
        strides_bytes=array.strides,
        item_bytes=array.itemsize,
        dtype=_dtype_name(array.dtype),
        dtype_fault=dtype_fault(array.dtype),
        device=None,
        writable=array.flags.writeable,
        owner=array,
    )


def _simulated_facts(array: SimulatedArray) -> ArrayFacts:
    return ArrayFacts(
        address=array.address,
        shape=array.shape,
        strides_bytes=array.strides,
        item_bytes=array.dtype.itemsize,
        dtype=_dtype_name(array.dtype),
        dtype_fault=dtype_fault(array.dtype),
        device=array.device,
        writable=True,
        owner=array,
    )


def _torch_facts(tensor: Any, where: str) -> ArrayFacts:
    # data_ptr works for every dtype; torch's CUDA array interface raises KeyError for fp8 and has no bf16.
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{where} is a tensor with layout {tensor.layout}; expected a strided tensor")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{where} is a tensor on {tensor.device}; expected cuda, or pinned cpu memory")
    item_bytes = tensor.element_size()
    name = str(tensor.dtype).removeprefix("torch.")
    return ArrayFacts(
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides_bytes=tuple(stride * item_bytes for stride in tensor.stride()),
        item_bytes=item_bytes,
        dtype=name,
        dtype_fault=name_fault(name),
        device=tensor.device.index if tensor.device.type == "cuda" else None,
        writable=True,
        owner=tensor,
    )


def _cuda_array_interface_facts(array: Any) -> ArrayFacts:
    # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 2 and 3
    interface = array.__cuda_array_interface__
    own_dtype = getattr(array, "dtype", None)  # knows ml_dtypes, whose typestr is only a void
    dtype = own_dtype if isinstance(own_dtype, np.dtype) else np.dtype(interface["typestr"])
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    return ArrayFacts(
        address=int(address or 0),
        shape=shape,
        strides_bytes=tuple(interface.get("strides") or _dense_strides_bytes(shape, dtype.itemsize)),
        item_bytes=dtype.itemsize,
        dtype=_dtype_name(dtype),
        dtype_fault=dtype_fault(dtype),
        device=_device_at(int(address or 0)),
        writable=not read_only,
        owner=array,
    )


def _device_at(address: int) -> int:
    """The ordinal of a CUDA array's device: by the driver, since the interface does not say.

    0 where the driver does not know the address either; the check of the memory's kind will refuse it.
    """
    return max(0, cuda_driver().pointer_info(address).device)


def _dense_strides_bytes(shape: tuple[int, ...], item_bytes: int) -> list[int]:
    return [prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The name frameworks share; other byte orders, which share a name, keep their code."""
    return dtype.name if dtype.isnative else dtype.str


def stream_handle(stream: object, driver: Driver) -> int:
    """The driver's handle of a stream: None and 0 are the legacy default stream.

    Takes an integer, anything with `__cuda_stream__`, and the streams of torch (`cuda_stream`), CuPy (`ptr`),
    Numba and the simulated device (`handle`). Raises TypeError for the rest, ValueError for a negative integer or a
    simulated stream of another driver than `driver`, whose handle would name another stream there.
    """
    if stream is None:
        return 0
    if type(stream) is int and 0 <= stream < 1 << 64:  # the common case, in every swap
        return stream
    if isinstance(stream, SimulatedStream) and stream.driver is not driver:
        raise ValueError(f"{stream!r} is a stream of another driver; expected one of the device that holds the cache")
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
    else:
        found = [getattr(stream, name) for name in ("cuda_stream", "ptr", "handle") if hasattr(stream, name)]
        handle = found[0] if found else stream
        handle = getattr(handle, "value", handle)  # Numba's is a ctypes pointer, whose null is None
    if isinstance(handle, bool) or not isinstance(handle, (int, np.integer, type(None))):
        raise TypeError(
            f"stream is {stream!r}; expected None, an integer handle, or a torch, CuPy, Numba or simulated stream"
        )
    if handle is not None and not 0 <= handle < 1 << 64:
        raise ValueError(f"stream is {stream!r}; expected a handle of 0 or more, as the driver gives them")
    return int(handle or 0)


def producer_stream(array: object) -> int:
    """The stream on which the work that writes `array` is being put: its framework's current one, else 0."""
    if isinstance(array, SimulatedArray):
        return array.stream
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(array.device).cuda_stream)
    interface = getattr(array, "__cuda_array_interface__", {})
    return int(interface.get("stream") or 0)  # version 3; absent or None: no stream to wait for
