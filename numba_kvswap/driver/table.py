"""The verbs every driver has, real or simulated, and the table of C entry points submit.py calls."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from time import perf_counter
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from numba_kvswap.driver.discards import Discards
from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.forked import fresh_locks_in_children, useless_in_children
from numba_kvswap.driver.in_flight import InFlight
from numba_kvswap.driver.statuses import HOST_MEMORY_NOT_REGISTERED, NAMES

#: Two events that nobody holds, and the array of their handles.
IdleEvents = tuple[int, int, npt.NDArray[np.uint64]]


@dataclass(frozen=True)
class EntryPoints:
    """Addresses of C functions, called without the GIL by submit.py.

    memcpy_async:       ``CUresult f(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)``
    memcpy_2d_async:    ``CUresult f(const CUDA_MEMCPY2D *copy, CUstream stream)``
    event_record:       ``CUresult f(CUevent event, CUstream stream)``
    stream_wait_event:  ``CUresult f(CUstream stream, CUevent event, unsigned flags)``
    launch_kernel:      ``CUresult f(CUfunction, unsigned grid x, y, z, unsigned block x, y, z, unsigned shared bytes,
                        CUstream stream, void **parameters, void **extra)``
    memcpy_batch_async: ``CUresult f(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count,
                        CUmemcpyAttributes *attributes, size_t *first, size_t attributes, size_t *failed,
                        CUstream stream)``, as of CUDA 12.8; 0 where the driver is older.

    An address is checked for null here, once: calling null kills the process.

    CALLS names the functions in the order of the fields, which is also the order of `words`.
    """

    CALLS: ClassVar[tuple[str, ...]] = (
        "cuMemcpyAsync",
        "cuMemcpy2DAsync",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuLaunchKernel",
        "cuMemcpyBatchAsync",
    )

    memcpy_async: int
    memcpy_2d_async: int
    event_record: int
    stream_wait_event: int
    launch_kernel: int
    memcpy_batch_async: int = 0

    def __post_init__(self) -> None:
        for call, address in zip(self.CALLS[:-1], self.words, strict=False):
            if address == 0:
                raise KVSwapDriverError(
                    "cuGetProcAddress", "CUDA_ERROR_NOT_FOUND", advice=f"the driver has no {call}; update it"
                )

    @cached_property
    def words(self) -> npt.NDArray[np.uint64]:
        """The addresses as compiled loops take them."""
        return np.array([getattr(self, each.name) for each in fields(self)], np.uint64)


fresh_locks_in_children(EntryPoints)


@dataclass(frozen=True)
class PointerInfo:
    """What the driver knows of an address.

    kind:   "device"; "host" (pinned: allocated or registered by the driver); "managed"; "unknown"
            (pageable, freed, or never allocated).
    start, bytes: the allocation that holds the address; of virtual memory the mapping; 0 and 0 where kind is "unknown".
    device: ordinal of the device, -1 where kind is "unknown".
    device_address: by which kernels reach it, 0 where they cannot.
    context: of device memory, whose it is: of the device's primary context; of another one; or of none, as virtual
            memory (cuMemMap), where an array may span mappings side by side, and stream-ordered memory are.
    """

    kind: Literal["device", "host", "managed", "unknown"]
    start: int
    bytes: int
    device: int
    device_address: int = 0
    context: Literal["primary", "another", "none"] = "primary"

    @property
    def end(self) -> int:
        return self.start + self.bytes


class Driver(ABC):
    """One way to reach a device. Streams, events and addresses are plain integers, as in the C API.

    Stream 0 is the legacy default stream. Every verb raises KVSwapDriverError when its call fails; nothing
    of a failed call is left for a later one to report. Verbs that need a current context use the calling
    thread's: wrap them in ``with driver.activate(device):``. In a forked child every verb of a driver made
    before the fork raises: see forked.py.
    """

    name: Literal["cuda", "simulated"]
    entry_points: EntryPoints
    #: Largest row distance a 2-D copy may have (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
    pitch_bytes_max: int
    #: So many pairs of events of a device are kept for the next to need one: making an event takes microseconds.
    idle_events_max: int = 0
    #: Of a ring, each way. A slot is long enough that the pause between two copies does not show: with slots of 4, 8,
    #: 16 and 32 MiB an H200 reaches 0.97, 0.98, 0.99 and 0.99 of the link. All together they are 2.4 ms at 55 GB/s.
    #: What waiting for multiprocessors costs with these and with others, docs/notes.md says.
    ring_slots: int = 8
    ring_slot_bytes: int = 16 << 20
    #: Of a split swap, what goes by batches: 48 to 80 MiB did as well beside a GEMM, more was worse at 1 GiB
    #: (docs/notes.md).
    split_batch_bytes: int = 64 << 20

    def __init__(self) -> None:
        #: The host's, seconds. A simulation that is to run alike again puts its own in place.
        self.clock: Callable[[], float] = perf_counter
        #: What this driver still works on, kept alive until it has landed.
        self.in_flight = InFlight()
        #: By device: pairs of events that nobody holds.
        self.idle_events: dict[int, deque[IdleEvents]] = {}
        #: By device: what device_tools.py has made for it.
        self.tools: dict[int, object] = {}
        self._discards = Discards()
        useless_in_children(self)

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """Facts for ``info``: device name, driver version, memory."""

    @abstractmethod
    def activate(self, device: int) -> AbstractContextManager[None]:
        """Make the primary context of `device` current in this thread; on exit restore what was current."""

    def uninterrupted(self) -> AbstractContextManager[None]:
        """Around a stretch of entry point calls: no Python of others runs within, by a signal or by a collection."""
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
    def stream_create(self, *, urgent: bool = False) -> int:
        """A non-blocking stream: not ordered with the legacy default stream.

        urgent: its kernels are given free multiprocessors before those of other streams.
        """

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
    def event_create(self, *, timed: bool = True) -> int:
        """timed: whether `event_seconds` may be asked of it; without, recording it costs the device less."""

    @abstractmethod
    def event_destroy(self, event: int) -> None: ...

    # What objects that own something call when they are garbage collected, which may happen in the midst of any call.
    # What the driver refuses to free is kept, and tried again by later discards.

    def discard_event(self, event: int) -> None:
        self._discards.free(f"event {event:#x}", lambda: self.event_destroy(event))

    def discard_stream(self, stream: int) -> None:
        """What is queued on it still runs."""
        self._discards.free(f"stream {stream:#x}", lambda: self.stream_destroy(stream))

    def discard_memory(self, address: int, kind: Literal["device", "host"], device: int) -> None:
        def free() -> None:
            with self.activate(device):
                (self.device_free if kind == "device" else self.host_free)(address)

        self._discards.free(f"{kind} memory at {address:#x}", free)

    def discard_registrations(self, starts: Sequence[int], backing: object, device: int) -> None:
        """Unregister memory that `backing` keeps mapped. It is dropped once nothing of it is registered, and kept for
        as long as the driver refuses: the device would go on writing to what the system has given to somebody else."""
        kept = [backing]

        def free() -> None:
            with self.activate(device):
                for start in starts:
                    self.unregister_if_registered(start)
            kept.clear()

        self._discards.free(f"registered memory at {starts[0]:#x}" if starts else "no memory", free)

    def not_freed(self) -> tuple[str, ...]:
        """What the driver refused to free for dead owners and, asked once more, still does: by kind and handle."""
        return self._discards.refused()

    def unregister_if_registered(self, start: int) -> None:
        """`host_unregister`, where an interrupt may have come between an earlier one and its caller's note of it."""
        try:
            self.host_unregister(start)
        except KVSwapDriverError as error:
            if error.result_name != NAMES[HOST_MEMORY_NOT_REGISTERED]:
                raise

    @abstractmethod
    def event_record(self, event: int, stream: int) -> None: ...

    @abstractmethod
    def event_done(self, event: int) -> bool: ...

    @abstractmethod
    def event_synchronize(self, event: int, *, soon: bool = False, timeout_s: float | None = None) -> bool:
        """Wait for the event, without the GIL; one that is due `soon` is first asked for a while with the GIL held.

        Whether it has come; False only once `timeout_s` seconds have passed. Signal handlers run meanwhile, within some
        50 ms of their signal.
        """

    @abstractmethod
    def event_seconds(self, start: int, end: int) -> float:
        """Seconds between two recorded and completed events."""

    @abstractmethod
    def result_name(self, status: int) -> str:
        """The name of a CUresult value, e.g. "CUDA_ERROR_INVALID_VALUE"."""
