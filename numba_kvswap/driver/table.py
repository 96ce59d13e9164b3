"""The verbs every driver has, real or simulated, and the table of C entry points submit.py calls."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.in_flight import InFlight


@dataclass(frozen=True)
class EntryPoints:
    """Addresses of C functions, called without the GIL by submit.py.

    memcpy_async:    ``CUresult f(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)``
    memcpy_2d_async: ``CUresult f(const CUDA_MEMCPY2D *copy, CUstream stream)``
    event_record:    ``CUresult f(CUevent event, CUstream stream)``

    An address is checked for null here, once: calling null kills the process.

    CALLS names the functions in the order of the fields, which is also the order of `words`.
    """

    CALLS: ClassVar[tuple[str, ...]] = ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuEventRecord")

    memcpy_async: int
    memcpy_2d_async: int
    event_record: int

    def __post_init__(self) -> None:
        for call, address in zip(self.CALLS, self.words, strict=True):
            if address == 0:
                raise KVSwapDriverError(
                    "cuGetProcAddress", "CUDA_ERROR_NOT_FOUND", advice=f"the driver has no {call}; update it"
                )

    @cached_property
    def words(self) -> npt.NDArray[np.uint64]:
        """The addresses as compiled loops take them."""
        return np.array([self.memcpy_async, self.memcpy_2d_async, self.event_record], np.uint64)


@dataclass(frozen=True)
class PointerInfo:
    """What the driver knows of an address.

    kind:   "device"; "host" (pinned: allocated or registered by the driver); "managed"; "unknown"
            (pageable, freed, or never allocated).
    start, bytes: the allocation that holds the address; 0 and 0 where kind is "unknown".
    device: ordinal of the device, -1 where kind is "unknown".
    """

    kind: Literal["device", "host", "managed", "unknown"]
    start: int
    bytes: int
    device: int

    @property
    def end(self) -> int:
        return self.start + self.bytes


class Driver(ABC):
    """One way to reach a device. Streams, events and addresses are plain integers, as in the C API.

    Stream 0 is the legacy default stream. Every verb raises KVSwapDriverError when its call fails; nothing
    of a failed call is left for a later one to report. Verbs that need a current context use the calling
    thread's: wrap them in ``with driver.activate(device):``.
    """

    name: Literal["cuda", "simulated"]
    entry_points: EntryPoints
    #: Largest row distance a 2-D copy may have (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
    pitch_bytes_max: int

    def __init__(self) -> None:
        #: What this driver still works on, kept alive until it has landed.
        self.in_flight = InFlight()
        self._never_unregistered: list[object] = []

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """Facts for ``info``: device name, driver version, memory."""

    @abstractmethod
    def activate(self, device: int) -> AbstractContextManager[None]:
        """Make the primary context of `device` current in this thread; on exit restore what was current."""

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Around a stretch of entry point calls: no Python signal handler runs within."""
        return contextlib.nullcontext()  # compiled code meets no signal handler

    @abstractmethod
    def current_device(self) -> int | None:
        """Ordinal of the calling thread's current device, None where no context is current."""

    @abstractmethod
    def device_alloc(self, size_bytes: int) -> int: ...

    @abstractmethod
    def device_free(self, address: int) -> None: ...

    @abstractmethod
    def host_alloc(self, size_bytes: int) -> int:
        """Pinned host memory, portable across contexts and mapped into the device's address space."""

    @abstractmethod
    def host_free(self, address: int) -> None: ...

    @abstractmethod
    def host_register(self, address: int, size_bytes: int) -> None:
        """Pin `size_bytes` of mapped memory, portable and mapped into the device's address space.

        The memory must stay mapped until `host_unregister`. No copy may span two registrations.
        """

    @abstractmethod
    def host_unregister(self, address: int) -> None:
        """Undo the registration that starts at `address`; the memory itself is the caller's."""

    @abstractmethod
    def pointer_info(self, address: int) -> PointerInfo: ...

    @abstractmethod
    def copy_now(self, target: int, source: int, size_bytes: int) -> None:
        """A synchronous copy between any two addresses, for set-up and inspection, never on a hot path."""

    @abstractmethod
    def stream_create(self) -> int:
        """A non-blocking stream: not ordered with the legacy default stream."""

    @abstractmethod
    def stream_destroy(self, stream: int) -> None: ...

    @abstractmethod
    def stream_synchronize(self, stream: int) -> None: ...

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything on the calling thread's current device."""

    @abstractmethod
    def stream_wait_event(self, stream: int, event: int) -> None:
        """What is put on `stream` from now on starts after the event's last record, if it has one."""

    @abstractmethod
    def event_create(self) -> int: ...

    @abstractmethod
    def event_destroy(self, event: int) -> None: ...

    def discard_event(self, event: int) -> None:
        """Destroy an event whose owner was garbage collected, which may happen in the midst of any call."""
        with contextlib.suppress(KVSwapDriverError):
            self.event_destroy(event)

    def discard_memory(self, address: int, kind: Literal["device", "host"], device: int) -> None:
        """Free memory whose owner was garbage collected, which may happen in the midst of any call."""
        with contextlib.suppress(KVSwapDriverError), self.activate(device):
            (self.device_free if kind == "device" else self.host_free)(address)

    def discard_registrations(self, starts: Sequence[int], backing: object, device: int) -> None:
        """Unregister memory whose owner was garbage collected, which may happen in the midst of any call.

        `backing` keeps the memory mapped. It is dropped once nothing of it is registered, and kept for ever where the
        driver refuses: the device would go on writing to what the system has given to somebody else.
        """
        try:
            with self.activate(device):
                for start in starts:
                    self.host_unregister(start)
        except KVSwapDriverError:
            self._never_unregistered.append(backing)

    @abstractmethod
    def event_record(self, event: int, stream: int) -> None: ...

    @abstractmethod
    def event_done(self, event: int) -> bool: ...

    @abstractmethod
    def event_synchronize(self, event: int) -> None: ...

    @abstractmethod
    def event_seconds(self, start: int, end: int) -> float:
        """Seconds between two recorded and completed events."""

    @abstractmethod
    def result_name(self, status: int) -> str:
        """The name of a CUresult value, e.g. "CUDA_ERROR_INVALID_VALUE"."""
