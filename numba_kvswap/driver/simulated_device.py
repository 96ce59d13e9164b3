"""Arrays, streams and events of the simulated device: what a framework's tensors are to a real one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kvswap.driver.simulated import SimulatedDriver, SimulatedLatch
from numba_kvswap.driver.simulated_memory import Context, MemoryKind

ArrayOfAny = npt.NDArray[Any]


class SimulatedDevice:
    """One or more simulated devices behind one driver. The arguments are SimulatedDriver's.

    Everything it hands out keeps the driver alive, and gives back what it holds when it is garbage
    collected; the driver does so at the next call made to it.
    """

    def __init__(
        self,
        seed: int = 0,
        schedule: bytes | None = None,
        *,
        devices: int = 1,
        pitch_bytes_max: int = 2**31 - 1,
        memory_bytes_max: int = 64 << 30,
        hang_seconds: float = 0.0,
        has_batch: bool = True,
        ring_slot_bytes: int = 1 << 20,
        fault_rate: float = 0.0,
    ) -> None:
        self.driver = SimulatedDriver(
            seed,
            schedule,
            devices=devices,
            pitch_bytes_max=pitch_bytes_max,
            memory_bytes_max=memory_bytes_max,
            hang_seconds=hang_seconds,
            has_batch=has_batch,
            ring_slot_bytes=ring_slot_bytes,
            fault_rate=fault_rate,
        )

    def device_array(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        device: int = 0,
        strides_bytes: Sequence[int] | None = None,
    ) -> SimulatedArray:
        """An array in the memory of a simulated device, holding 0xCD bytes.

        Raises:
            ValueError: negative lengths or strides, or as many strides as the shape has not.
            KVSwapDriverError: no such device, or out of memory.
        """
        layout = _Layout(shape, dtype, strides_bytes)
        with self.driver.activate(device):
            # An empty array has an address too; the driver, as CUDA, allocates no nothing.
            memory = _DeviceMemory(self, self.driver.device_alloc(max(layout.span_bytes, 1)))
        return SimulatedArray(memory, memory.start, layout)

    def staged_array(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        *,
        kind: MemoryKind = "device",
        context: Context = "primary",
        mapping_bytes: int = 0,
    ) -> SimulatedArray:
        """An array in memory that others made, on device 0: see SimulatedDriver.stage_memory."""
        layout = _Layout(shape, dtype, None)
        with self.driver.activate(0):
            size = max(layout.span_bytes, 1)
            start = self.driver.stage_memory(kind, size, context=context, mapping_bytes=mapping_bytes)
        return SimulatedArray(_DeviceMemory(self, start), start, layout)

    def pinned_array(self, shape: int | Sequence[int], dtype: npt.DTypeLike, *, mapped: bool = True) -> ArrayOfAny:
        """A C-ordered NumPy array in pinned host memory, which is freed with the last view of it.

        mapped: whether kernels reach it.
        """
        layout = _Layout(shape, dtype, None)
        with self.driver.activate(0):
            start = self.driver.host_alloc(max(layout.span_bytes, 1))
        self.driver.allocation_at(start).mapped = mapped
        owner = _PinnedBytes(self.driver, start, layout.span_bytes)
        return np.asarray(owner).view(layout.dtype).reshape(layout.shape)

    def stream(self, *, blocking: bool = False, device: int = 0) -> SimulatedStream:
        """A new stream; a blocking one is ordered with the legacy default stream."""
        with self.driver.activate(device):
            create = self.driver.stream_create_blocking if blocking else self.driver.stream_create
            return SimulatedStream(self, create())

    def event(self, *, device: int = 0) -> SimulatedEvent:
        with self.driver.activate(device):
            return SimulatedEvent(self, self.driver.event_create())

    def synchronize(self) -> None:
        """Wait for every stream of every device; raises a failure of theirs that nobody was told of."""
        self.driver.synchronize_all()


class SimulatedArray:
    """A strided array in simulated device memory.

    It has no ``__cuda_array_interface__``, on purpose: a real framework would believe it and read the address
    on a real device. Views share the memory, which is freed when the last of them is garbage collected, or
    by `free`.

    Attributes:
        address: of the first element.
        shape, dtype: as NumPy's; ml_dtypes' types too.
        strides: bytes, one a dimension.
        nbytes: bytes of all elements, padding between them not counted.
        device: ordinal of the device.
        simulated_device: the SimulatedDevice that made it.
        stream: handle of the stream its producer uses, 0 at first; set it as a producer would.
    """

    def __init__(self, memory: _DeviceMemory, address: int, layout: _Layout) -> None:
        self._memory = memory
        self.address = address
        self.shape = layout.shape
        self.dtype = layout.dtype
        self.strides = layout.strides
        self.nbytes = prod(layout.shape) * layout.dtype.itemsize
        self.device = memory.device
        self.simulated_device = memory.simulated_device
        self.stream = 0

    def __repr__(self) -> str:
        return f"SimulatedArray({self.shape}, {self.dtype}, device={self.device}, address={self.address:#x})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("this array has no axes, and so no length")
        return self.shape[0]

    def __array__(self, *_arguments: object, **_options: object) -> ArrayOfAny:
        raise TypeError("a simulated device array does not turn into a NumPy array by itself; use to_numpy()")

    def __getitem__(self, index: int) -> SimulatedArray:
        """A view of one element along the first axis, e.g. of one layer. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index}; expected 0 <= index < {len(self)}")
        return self.view(index * self.strides[0], self.shape[1:], self.dtype, self.strides[1:])

    def view(
        self,
        offset_bytes: int,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        strides_bytes: Sequence[int] | None = None,
    ) -> SimulatedArray:
        """Another array over the same memory, `offset_bytes` from this one's address.

        Raises:
            ValueError: it would reach out of the memory, or its lengths or strides are not possible.
        """
        layout = _Layout(shape, dtype, strides_bytes)
        start = self.address + offset_bytes
        if not self._memory.start <= start <= start + layout.span_bytes <= self._memory.end:
            raise ValueError(
                f"a view of {layout.span_bytes} bytes, {offset_bytes} from {self.address:#x}, leaves the memory "
                f"{self._memory.start:#x} to {self._memory.end:#x}; ask for fewer bytes or another offset"
            )
        view = SimulatedArray(self._memory, start, layout)
        view.stream = self.stream
        return view

    def live(self) -> ArrayOfAny:
        """The memory itself as a NumPy array, waiting for nothing: to be read and written in launched functions,
        and to look at what has happened so far.

        Raises:
            ValueError: the memory was freed.
        """
        memory = self._memory.bytes()
        return np.ndarray(self.shape, self.dtype, memory.data, self.address - self._memory.start, self.strides)

    def to_numpy(self) -> ArrayOfAny:
        """A copy, made after every stream has finished (at once, within a launched function)."""
        self._settle()
        return self.live().copy()

    def fill_from(self, array: npt.ArrayLike) -> None:
        """Copy values in, after every stream has finished (at once, within a launched function).

        Raises:
            ValueError: another shape or another dtype; nothing is broadcast or converted.
        """
        values = np.asarray(array)
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError(
                f"values are {values.shape} {values.dtype}, the array is {self.shape} {self.dtype}; convert them first"
            )
        self._settle()
        self.live()[...] = values

    def free(self) -> None:
        """Free the memory now, under any view and any queued copy of it. A second call does nothing."""
        self._memory.free()

    def _settle(self) -> None:
        driver = self.simulated_device.driver
        if not driver.inside_launch():
            driver.synchronize_all()


class SimulatedStream:
    """A stream, destroyed when garbage collected; what is queued on it then still runs.

    Attributes:
        handle: its integer, as the driver takes it.
        driver: whose stream it is.
    """

    def __init__(self, device: SimulatedDevice, handle: int) -> None:
        self.handle = handle
        self.driver = device.driver
        _at_death(self, self.driver.discard_stream, handle)

    def __repr__(self) -> str:
        return f"SimulatedStream({self.handle:#x})"

    def synchronize(self) -> None:
        self.driver.stream_synchronize(self.handle)

    def launch(self, function: Callable[[], object]) -> None:
        """Queue a Python function as a kernel; see SimulatedDriver.launch."""
        self.driver.launch(self.handle, function)

    def latch(self) -> SimulatedLatch:
        """Hold the stream until the latch returned is opened."""
        return self.driver.latch(self.handle)

    def wait(self, event: SimulatedEvent) -> None:
        """What is queued from now on comes after the event's last record."""
        self.driver.stream_wait_event(self.handle, event.handle)


class SimulatedEvent:
    """An event, destroyed when garbage collected.

    Attributes:
        handle: its integer, as the driver takes it.
    """

    def __init__(self, device: SimulatedDevice, handle: int) -> None:
        self.handle = handle
        self._driver = device.driver
        _at_death(self, self._driver.discard_event, handle)

    def __repr__(self) -> str:
        return f"SimulatedEvent({self.handle:#x})"

    def record(self, stream: SimulatedStream) -> None:
        self._driver.event_record(self.handle, stream.handle)

    def done(self) -> bool:
        return self._driver.event_done(self.handle)

    def synchronize(self) -> None:
        self._driver.event_synchronize(self.handle)


class _Layout:
    """Shape, dtype and strides, checked; `span_bytes` is from the first byte to the last one's end."""

    def __init__(self, shape: int | Sequence[int], dtype: npt.DTypeLike, strides_bytes: Sequence[int] | None) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
        if self.dtype.hasobject:
            raise ValueError(f"dtype {self.dtype} holds Python objects; a device array holds bytes")
        if min(self.shape, default=0) < 0:
            raise ValueError(f"shape {self.shape} has a negative length; expected 0 or more")
        self.strides = self._c_strides() if strides_bytes is None else tuple(int(n) for n in strides_bytes)
        if len(self.strides) != len(self.shape) or min(self.strides, default=0) < 0:
            raise ValueError(f"strides {self.strides} for shape {self.shape}; expected one a dimension, 0 or more")
        self.span_bytes = 0 if 0 in self.shape else self._last_byte_end()

    def _c_strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[i + 1 :]) * self.dtype.itemsize for i in range(len(self.shape)))

    def _last_byte_end(self) -> int:
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return last + self.dtype.itemsize


class _DeviceMemory:
    """Owns one device allocation on behalf of an array and its views."""

    def __init__(self, simulated_device: SimulatedDevice, start: int) -> None:
        self.simulated_device = simulated_device
        self._driver = simulated_device.driver
        allocation = self._driver.allocation_at(start)
        self.start, self.end, self.device = allocation.start, allocation.end, allocation.device
        self._allocation = allocation
        self._death = _at_death(self, self._driver.discard_allocation, start)

    def bytes(self) -> npt.NDArray[np.uint8]:
        if not self._allocation.alive:
            raise ValueError(f"the device memory at {self.start:#x} was freed; keep the array until you have read it")
        return self._allocation.memory

    def free(self) -> None:
        if self._death.detach() is not None:
            self._driver.device_free(self.start)


class _PinnedBytes:
    """Owns one pinned allocation: the base of every NumPy view of it, so that it dies with the last."""

    def __init__(self, driver: SimulatedDriver, start: int, size_bytes: int) -> None:
        # A view over the real bytes, not over the address: should somebody free the allocation by hand,
        # the views left over read poison and not whatever came to lie there.
        self._bytes = driver.allocation_at(start).memory
        self.__array_interface__ = {**self._bytes.__array_interface__, "shape": (size_bytes,)}
        _at_death(self, driver.discard_allocation, start)


def _at_death(owner: object, release: Callable[[int], None], handle: int) -> weakref.finalize[..., Any]:
    # Weakly: the driver's unfinished work may keep the owner alive, and a finalizer is kept by the interpreter, so
    # a strong reference to the driver here would keep all three for ever.
    death = weakref.finalize(owner, _release_if_alive, weakref.WeakMethod(release), handle)
    # At the interpreter's end the process's memory goes all at once; there is nothing to give back to.
    death.atexit = False
    return death


def _release_if_alive(release: weakref.WeakMethod[Callable[[int], None]], handle: int) -> None:
    method = release()
    if method is not None:
        method(handle)
