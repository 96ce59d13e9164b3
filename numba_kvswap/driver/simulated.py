"""A driver without a device: real host memory, queues for streams, fences for events.

What CUDA's ordering rules allow may happen here and nothing they forbid, and what does happen is drawn from a seed or
a tape of bytes, so that a test can search the orders and replay the one that failed.

What may happen:

- Work runs at any call to the driver, and at any synchronize, of whatever stream, in any order that streams, events
  and the legacy default stream leave open: the legacy stream comes after what is on the blocking streams of its device,
  these and each thread's own come after what is on the legacy stream, non-blocking streams are free of both.
- An operation is done in steps, with steps of other streams and the host's own code in between. A copy moves its bytes
  in pieces, cut anywhere, in any order, or reads all of them at its first step and writes them at its later ones. The
  rows of a 2-D copy and the copies of a batch come in any order, some of them in pieces. A kernel's lanes run in
  stretches, which come in any order. A launched Python function is one step; where it returns an iterator, each `next`
  is one.
- The copies of a batch with the source access order ANY are read when it is submitted, or later; with
  DURING_API_CALL, when it is submitted.
- A wait takes the event's last record of its own time. A destroyed stream's work still runs, a destroyed event's waits
  still hold.

What never happens: an event that is done, or work after it, before the last step of what was recorded or waited for;
an order within one stream other than that of submission; a host that waits and finds part of the work not done.

Where it is stricter than CUDA: a 2-D copy must stay in one allocation, from its first byte to its last; an asynchronous
copy must not name pageable memory; memory must be live at every step of what names it, so cuMemFree, which may wait for
the device, does not wait here, nor does any allocating call; handles are never used twice; synchronizing the legacy
stream waits for that stream alone.

Where it is laxer: work runs at calls to the driver only, not between any two lines of the host's; within a stretch the
lanes of a kernel run one after the other; streams never wait for each other for want of room on the device; a copy
whose source and target overlap, which CUDA leaves undefined, is not refused; a failure ends neither the context nor the
work queued behind it; `copy_now` returns when its bytes have landed, as the real driver's does; a thread that waits
lets no other thread submit meanwhile, unless it waits for a latch; what was freed may be allocated anew at the same
address, where a kernel that comes too late is not found out.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import TypeVar

from numba_kvswap.driver import statuses
from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.simulated_memory import Allocation, Context, MemoryKind, MemoryMap
from numba_kvswap.driver.simulated_schedule import Choices, Schedule, SimulatedHang
from numba_kvswap.driver.simulated_work import (
    Batch,
    Copy,
    Copy2D,
    Event,
    Hold,
    Launch,
    Operation,
    Record,
    Stream,
    Wait,
)
from numba_kvswap.driver.table import Driver, EntryPoints, PointerInfo

__all__ = ["CALLS", "LEGACY_STREAM", "PER_THREAD_STREAM", "SimulatedDriver", "SimulatedHang", "SimulatedLatch"]

_T = TypeVar("_T", Stream, Event)

_THREADS_MAX = 1024
LEGACY_STREAM = 1  # CU_STREAM_LEGACY; the handle 0 means the same
PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD

#: Driver functions that can be told to fail, and that `SimulatedDriver.calls` counts.
CALLS = (
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuLaunchKernel",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemcpy",
    "cuMemcpy2DAsync",
    "cuMemcpyAsync",
    "cuMemcpyBatchAsync",
    "cuPointerGetAttributes",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
)

_MEMORY_HOST, _MEMORY_DEVICE, _MEMORY_UNIFIED = 1, 2, 4
_MEMCPY_2D = ctypes.c_uint64 * 16  # CUDA_MEMCPY2D: every field is 8 bytes, or 4 and padding
# CUmemcpyAttributes: source access order, two locations of a type and an id each, flags. The order is one of three.
_BATCH_ATTRIBUTES = ctypes.c_uint32 * 6
_ORDER_STREAM, _ORDER_DURING_API_CALL, _ORDER_ANY = _ACCESS_ORDERS = (1, 2, 3)
_WORD_BYTES = 8

#: A kernel's stand-in: called with the parameters' values, the number of CUDA blocks and the threads in each. Returns
#: None, or an iterator each of whose `next`s does a further step; see SimulatedDriver.stretches.
SimulatedKernel = Callable[[list[int], int, int], "Iterator[object] | None"]


class _Refused(Exception):
    """A call that CUDA would answer with an error status."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class _TimedOut(Exception):
    """A wait with a timeout came to that."""


class SimulatedLatch:
    """Holds a stream, as a spinning kernel would, until `open` is called."""

    def __init__(self, driver: SimulatedDriver, operation: Hold) -> None:
        self._driver = driver
        self._operation = operation

    @property
    def is_open(self) -> bool:
        return not self._operation.held

    def open(self) -> None:
        """Let the stream go on. A second call does nothing. May be called from any thread."""
        self._driver.open_hold(self._operation)


class _ThreadStreams(dict[int, Stream]):
    """A thread's own streams, by device."""

    def __del__(self) -> None:
        for stream in self.values():
            stream.destroyed = True


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Within it no Python signal handler runs; after it those whose signals came. Handlers run in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    with ExitStack() as at_the_end:  # all of it, whatever a handler raises on the way
        at_the_end.callback(_raise_signals, came)
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                at_the_end.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, _frame: came.append(number))
        yield


def _raise_signals(numbers: Sequence[int]) -> None:
    with ExitStack() as each:  # the others too where the handler of one raises
        for number in reversed(numbers):
            each.callback(signal.raise_signal, number)


class _CollectionsPutOff(AbstractContextManager[None]):
    """Within it, in whatever thread, the garbage collector does not start by itself."""

    def __init__(self) -> None:
        # May be taken again: a collection may start before it is put off, and a finalizer swap.
        self._lock, self._within, self._was_enabled = threading.RLock(), 0, False
        os.register_at_fork(after_in_child=self._end_in_child)

    def _end_in_child(self) -> None:
        """The threads that were within are not there, and one may have held the lock."""
        if self._within and self._was_enabled:
            gc.enable()
        self._lock, self._within = threading.RLock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within and self._was_enabled:
                gc.enable()


_collections_put_off = _CollectionsPutOff()


class SimulatedDriver(Driver):
    """The simulated driver. Any thread may use it; one lock is around every call.

    Args:
        seed: of the scheduler's choices, and of the faults. The same seed and the same calls give the same order, the
            same pieces and the same faults. Some seeds cut nothing into pieces.
        schedule: choices as a tape of bytes, in place of the seed. Used up, or empty, it is the laziest
            order: nothing runs until something waits for it, and then each operation in one go.
        devices: how many devices there are. Each has its own legacy default stream.
        pitch_bytes_max: largest row distance of a 2-D copy.
        memory_bytes_max: what a device, and the host, can hold; past it CUDA_ERROR_OUT_OF_MEMORY.
        hang_seconds: how long a synchronize that nothing can bring about waits for another thread to open
            a latch, before it raises SimulatedHang.
        has_batch: whether it has cuMemcpyBatchAsync, which drivers before CUDA 12.8 have not.
        ring_slot_bytes: what one of a ring's three slots holds; a short one turns often.
        fault_rate: with which probability each use of a function in CALLS fails with CUDA_ERROR_UNKNOWN, finalizers'
            uses too. ValueError unless from 0 to 1.

    Attributes:
        calls: how often each driver function was used, by its CUDA name, failed uses included.
        fault_rate: as above; may be set at any time, e.g. once everything is set up.
        faults: how many uses of each function were made to fail, by `fault_rate` or by `fail`.
        last_refusal: why the latest entry point was refused, in words; its status says little.

    A failure of queued work (memory freed under a copy, an exception in a launched function) is raised by the first
    synchronize of a stream or device that the work comes before, and by every synchronize or query of an event that it
    comes before; unlike on a real device, what is queued once it has been raised is free of it.
    The entry points' addresses are valid for as long as the driver lives.
    """

    name = "simulated"

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
        if not 0 <= fault_rate <= 1:
            raise ValueError(f"fault_rate is {fault_rate}; expected a probability, from 0 to 1")
        super().__init__()
        self.has_batch = has_batch
        self.ring_slots, self.ring_slot_bytes = 3, ring_slot_bytes
        self.split_batch_bytes = ring_slot_bytes
        self.pitch_bytes_max = pitch_bytes_max
        self.memory_bytes_max = memory_bytes_max
        self.hang_seconds = hang_seconds
        self.devices = devices
        self.fault_rate = fault_rate
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.last_refusal = ""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._current = threading.local()
        self._memory = MemoryMap()
        self._schedule = Schedule(Choices(seed, schedule))
        self._legacy = [Stream(LEGACY_STREAM, device, blocking=False) for device in range(devices)]
        self._streams: dict[int, Stream] = {}
        # Blocking streams of each device, in order of creation: what the legacy stream waits for.
        self._blocking: list[dict[Stream, None]] = [{} for _ in range(devices)]
        self._events: dict[int, Event] = {}
        # Handles are never used twice, so that one kept too long is found out.
        self._stream_handles = count(0x51000000, 0x10)
        self._event_handles = count(0xE1000000, 0x10)
        self._kernels: dict[int, tuple[SimulatedKernel, int]] = {}
        self._planned_faults: dict[str, list[tuple[int, float, int]]] = {}
        # Their own, so that a fault, or its absence, leaves the schedule's choices as they are.
        self._fault_choices = random.Random(f"faults {seed}")
        self._remembered: BaseException | None = None
        self._discarded: deque[tuple[str, Callable[[], None]]] = deque()
        nothing = Allocation("host", 0, 1)
        nothing.alive = False
        self._last_target = self._last_source = nothing
        self.entry_points = self._make_entry_points()

    # ---- facts ----

    def describe(self) -> Mapping[str, object]:
        return {
            "driver": "simulated",
            "driver_version": "none",
            "devices": self.devices,
            "device_name": "simulated device",
            "memory_bytes": self.memory_bytes_max,
        }

    def result_name(self, status: int) -> str:
        return statuses.NAMES.get(status, f"CUresult {status}")

    def live_allocations(self) -> int:
        """Allocations, of the devices and the host together, not yet freed."""
        with self._lock:
            self._drop_discarded()
            return len(self._memory)

    def live_events(self) -> int:
        with self._lock:
            self._drop_discarded()
            return len(self._events)

    def live_streams(self) -> int:
        """Streams created and not yet destroyed; the default streams are not counted."""
        with self._lock:
            self._drop_discarded()
            return len(self._streams)

    # ---- contexts ----

    @contextmanager
    def activate(self, device: int) -> Iterator[None]:
        with self._verb("cuCtxSetCurrent"):
            if not 0 <= device < self.devices:
                raise KVSwapDriverError(
                    "cuDeviceGet",
                    self.result_name(statuses.INVALID_DEVICE),
                    advice=f"there is no device {device}; this driver has devices 0 to {self.devices - 1}",
                )
        before = self._device_or_none()
        self._current.device = device
        try:
            yield
        finally:
            self._current.device = before

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """As Driver.uninterrupted. Signals and collections are put off: an entry point is Python here, where handlers
        and finalizers could swap in the midst of a submission, and ctypes would swallow a KeyboardInterrupt and take
        the copy for done."""
        with _signals_put_off(), _collections_put_off:
            yield

    def current_device(self) -> int | None:
        with self._verb("cuCtxGetDevice"):
            return self._device_or_none()

    # ---- memory ----

    def device_alloc(self, size_bytes: int) -> int:
        return self._allocate("cuMemAlloc", "device", size_bytes)

    def device_free(self, address: int) -> None:
        self._free("cuMemFree", "device", address)

    def host_alloc(self, size_bytes: int) -> int:
        return self._allocate("cuMemHostAlloc", "host", size_bytes)

    def host_free(self, address: int) -> None:
        self._free("cuMemFreeHost", "host", address)

    def host_register(self, address: int, size_bytes: int) -> None:
        with self._verb("cuMemHostRegister"):
            device = self._device()
            if address <= 0 or size_bytes <= 0:
                raise _Refused(statuses.INVALID_VALUE, f"{size_bytes} bytes at {address:#x}; expected at least 1")
            if self._memory.overlaps(address, address + size_bytes):
                raise _Refused(
                    statuses.HOST_MEMORY_ALREADY_REGISTERED,
                    f"some of the {size_bytes} bytes at {address:#x} are of live memory of this driver",
                )
            self._memory.add(self._new_allocation("host", device, size_bytes, registered_at=address))

    def host_unregister(self, address: int) -> None:
        with self._verb("cuMemHostUnregister"):
            found = self._memory.find(address)
            if found is None or found.start != address or not found.registered:
                raise _Refused(
                    statuses.HOST_MEMORY_NOT_REGISTERED,
                    f"{address:#x} is not the start of registered memory; was it unregistered already?",
                )
            self._retire(found)

    def pointer_info(self, address: int) -> PointerInfo:
        with self._verb("cuPointerGetAttributes"):
            found = self._memory.find(address)
        if found is None:
            return PointerInfo("unknown", 0, 0, -1)
        device_address = address if found.mapped else 0
        return PointerInfo(found.kind, *found.range_at(address), found.device, device_address, found.context)

    def stage_memory(
        self, kind: MemoryKind, size_bytes: int, *, context: Context = "primary", mapping_bytes: int = 0
    ) -> int:
        """Memory as others make it and no verb here does, to see what is said of it: managed memory; device memory of
        a context of their own, or, of no context, virtual memory in mappings of `mapping_bytes`. Freed as its kind is,
        by `device_free` where it is managed."""
        start = self._allocate("cuMemAlloc", kind, size_bytes)
        allocation = self.allocation_at(start)
        allocation.context, allocation.mapping_bytes = context, mapping_bytes
        return start

    def allocation_at(self, address: int) -> Allocation:
        """The live allocation that holds `address`, with its bytes; ValueError where there is none."""
        with self._lock:
            self._drop_discarded()
            found = self._memory.find(address)
        if found is None:
            raise ValueError(f"{address:#x} lies in no live allocation of this driver")
        return found

    def copy_now(self, target: int, source: int, size_bytes: int) -> None:
        """As Driver.copy_now. An address in no live allocation is taken for pageable memory, and trusted."""
        with self._verb("cuMemcpy"):
            copy = Copy(
                self._stream(0),
                target,
                self._span_or_pageable("target", target, size_bytes),
                source,
                self._span_or_pageable("source", source, size_bytes),
                size_bytes,
            )
            if size_bytes:
                self._put(copy)
                self._schedule.finish(copy, self._wait_for_a_change)

    # ---- kernels ----

    def add_kernel(self, kernel: SimulatedKernel, parameters: int) -> int:
        """A handle by which `kernel`, which takes so many parameters of 8 bytes, can be launched."""
        with self._lock:
            handle = 0xF1000000 + 0x10 * len(self._kernels)
            self._kernels[handle] = (kernel, parameters)
            return handle

    def stretches(self, count: int) -> list[tuple[int, int]]:
        """How a kernel that runs now is to do `count` parts of its work, which may be done in any order: in one
        stretch [first, end), or in several, one a step, in this order."""
        return self._schedule.stretches(count)

    def refuse_untouchable(self, address: int, size_bytes: int) -> None:
        """KVSwapDriverError, as of a kernel's fault, unless live allocations that kernels reach hold the whole span.

        A kernel reaches its own device's memory and mapped host memory: nobody enables access to a peer's.
        """
        reached, end = address, address + size_bytes
        while reached < end:
            found = self._memory.find(reached)
            if found is None or not found.mapped or self._is_a_peers(found):
                raise KVSwapDriverError(
                    "cuLaunchKernel",
                    self.result_name(statuses.ILLEGAL_ADDRESS),
                    advice=f"the kernel touches {size_bytes} bytes at {address:#x}, not all of them live and mapped "
                    "where it runs",
                )
            reached = found.end

    def _is_a_peers(self, allocation: Allocation) -> bool:
        stream = self._schedule.running
        return allocation.kind == "device" and stream is not None and stream.device != allocation.device

    # ---- streams ----

    def stream_create(self, *, urgent: bool = False) -> int:
        return self._create_stream(blocking=False)  # no order is promised between urgent and other streams

    def stream_create_blocking(self) -> int:
        """A stream that is ordered with the legacy default stream, as CU_STREAM_DEFAULT makes them."""
        return self._create_stream(blocking=True)

    def stream_destroy(self, stream: int) -> None:
        """As Driver.stream_destroy: what is queued still runs."""
        with self._verb("cuStreamDestroy"):
            self._known(self._streams, stream)
            self._destroy_stream(stream)

    def stream_synchronize(self, stream: int) -> None:
        with self._verb("cuStreamSynchronize"):
            last = self._stream(stream).last
            if last is not None:
                self._schedule.finish(last, self._wait_for_a_change)

    def synchronize(self) -> None:
        """Wait for every stream of the current device; where none is current, which CUDA refuses, of every device."""
        with self._verb("cuCtxSynchronize"):
            self._schedule.finish_all(self._wait_for_a_change, self._device_or_none())

    def synchronize_all(self) -> None:
        """Wait for every stream of every device. Counts as one cuCtxSynchronize."""
        with self._verb("cuCtxSynchronize"):
            self._schedule.finish_all(self._wait_for_a_change)

    def stream_wait_event(self, stream: int, event: int) -> None:
        with self._verb("cuStreamWaitEvent"):
            self._enqueue_wait(stream, event, 0)

    def launch(self, stream: int, function: Callable[[], object]) -> None:
        """Queue `function()`, a stand-in for a kernel. What it raises surfaces at the next synchronize.

        Where it returns an iterator, as a generator function does, it is done once that comes to its end, and work of
        other streams may come in between two `next`s. It runs in whichever thread moves the stream on, with the
        driver's lock held: it must neither synchronize nor wait for a thread that uses this driver.
        """
        with self._verb("cuLaunchKernel"):
            self._put(Launch(self._stream(stream), function))

    def inside_launch(self) -> bool:
        """Whether the calling thread is within a launched function."""
        # Another thread's launch holds the lock, so here `running` can only be this thread's.
        with self._lock:
            return self._schedule.running is not None

    def latch(self, stream: int) -> SimulatedLatch:
        """Queue something that holds the stream until the latch returned is opened."""
        with self._verb("cuLaunchKernel"):
            hold = Hold(self._stream(stream))
            self._put(hold)
            return SimulatedLatch(self, hold)

    def open_hold(self, hold: Hold) -> None:
        """What SimulatedLatch.open does."""
        with self._lock:
            hold.held = False
            self._changed.notify_all()
            self._schedule.advance()

    # ---- events ----

    def event_create(self, *, timed: bool = True) -> int:
        with self._verb("cuEventCreate"):
            event = Event(self._device(), timed=timed)
            handle = next(self._event_handles)
            self._events[handle] = event
            return handle

    def event_destroy(self, event: int) -> None:
        with self._verb("cuEventDestroy"):
            self._known(self._events, event)
            del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        with self._verb("cuEventRecord"):
            self._enqueue_record(event, stream)

    def event_done(self, event: int) -> bool:
        """As Driver.event_done. Raises the failure of work before the event, if nobody was told of it yet."""
        with self._verb("cuEventQuery"):
            record = self._known(self._events, event).record
            if record is not None and record.done:
                self._schedule.finish(record, self._wait_for_a_change, again=True)
            return record is None or record.done

    def event_synchronize(self, event: int, *, soon: bool = False, timeout_s: float | None = None) -> bool:
        """As Driver.event_synchronize. With a timeout, what nothing can bring about is waited for until then."""
        with self._verb("cuEventSynchronize"):
            record = self._known(self._events, event).record
            if record is None:
                return True
            try:
                self._schedule.finish(record, self._waiting(timeout_s), again=True)
            except _TimedOut:
                return False
            return True

    def event_seconds(self, start: int, end: int) -> float:
        with self._verb("cuEventElapsedTime"):
            of_start, of_end = self._known(self._events, start), self._known(self._events, end)
            first, last = of_start.record, of_end.record
            if not (of_start.timed and of_end.timed) or of_start.device != of_end.device:
                raise _Refused(statuses.INVALID_HANDLE, "both events must be timed, and of one device")
            if first is None or last is None:
                raise _Refused(statuses.INVALID_HANDLE, "an event was never recorded; call event_record first")
            if not (first.done and last.done):
                raise _Refused(statuses.NOT_READY, "an event has not been reached; call event_synchronize first")
            return last.seconds - first.seconds

    # ---- faults ----

    def fail(self, call: str, at: int = 0, times: int | None = 1, status: int = statuses.UNKNOWN) -> None:
        """Make uses of a driver function fail without doing anything.

        Args:
            call: the function's name, one of CALLS.
            at: how many uses from now on succeed before the first failure.
            times: how many uses fail; None for all that follow.
            status: the CUresult they fail with.

        Raises:
            ValueError: an unknown call, a negative count, or the status of success.
        """
        if call not in CALLS:
            raise ValueError(f"no driver function {call!r} is simulated; expected one of {', '.join(CALLS)}")
        if at < 0 or (times is not None and times < 0) or status == statuses.SUCCESS:
            raise ValueError(f"at={at}, times={times}, status={status}: expected counts >= 0 and an error status")
        with self._lock:
            first = self.calls[call] + at
            end = float("inf") if times is None else first + times
            self._planned_faults.setdefault(call, []).append((first, end, status))

    def fail_no_more(self) -> None:
        """Take back all that `fail` was told and that has not come yet."""
        with self._lock:
            self._planned_faults.clear()

    # ---- what objects that own memory or streams call when they die ----

    # Freed at the next call: the garbage collector may run in the midst of one.

    def discard_allocation(self, start: int) -> None:
        self._discard(f"memory at {start:#x}", lambda: self._drop_allocation(start))

    def discard_memory(self, address: int, kind: MemoryKind, device: int) -> None:
        self._discard(f"{kind} memory at {address:#x}", lambda: self._drop_allocation(address))

    def discard_registrations(self, starts: Sequence[int], backing: object, device: int) -> None:
        kept = [backing]

        def drop() -> None:
            for start in starts:
                self._drop_allocation(start)
            kept.clear()

        self._discard(f"registered memory at {starts[0]:#x}" if starts else "no memory", drop)

    def discard_stream(self, stream: int) -> None:
        self._discard(f"stream {stream:#x}", lambda: self._drop_stream(stream))

    def discard_event(self, event: int) -> None:
        self._discard(f"event {event:#x}", lambda: self._drop_event(event))

    def not_freed(self) -> tuple[str, ...]:
        with self._lock:
            self._drop_discarded()
            return super().not_freed()

    def _discard(self, what: str, drop: Callable[[], None]) -> None:
        self._discarded.append((what, drop))

    def _drop_discarded(self) -> None:
        while self._discarded:
            try:
                what, drop = self._discarded.popleft()
            except IndexError:  # a signal handler came between and dropped it
                return
            self._discards.free(what, drop)

    # The owner may have freed by hand what it owns, so each of these takes "gone already" for an answer.

    def _drop_allocation(self, start: int) -> None:
        found = self._memory.find(start)
        if found is not None and found.start == start:
            free = "cuMemHostUnregister" if found.registered else "cuMemFreeHost"
            self._use_to_drop("cuMemFree" if found.kind == "device" else free)
            self._retire(found)

    def _drop_stream(self, stream: int) -> None:
        if stream in self._streams:
            self._use_to_drop("cuStreamDestroy")
            self._destroy_stream(stream)

    def _drop_event(self, event: int) -> None:
        if event in self._events:
            self._use_to_drop("cuEventDestroy")
            del self._events[event]

    def _use_to_drop(self, call: str) -> None:
        if status := self._counted(call):
            raise KVSwapDriverError(call, self.result_name(status))

    # ---- entry points ----

    def _make_entry_points(self) -> EntryPoints:
        self._callbacks: list[object] = []
        return EntryPoints(
            memcpy_async=self._entry_point("cuMemcpyAsync", self._enqueue_copy, arguments=4),
            memcpy_2d_async=self._entry_point("cuMemcpy2DAsync", self._enqueue_copy_2d, arguments=2),
            event_record=self._entry_point("cuEventRecord", self._enqueue_record, arguments=2),
            stream_wait_event=self._entry_point("cuStreamWaitEvent", self._enqueue_wait, arguments=3),
            launch_kernel=self._entry_point("cuLaunchKernel", self._enqueue_launch, arguments=11),
            memcpy_batch_async=self._entry_point("cuMemcpyBatchAsync", self._enqueue_batch, arguments=9)
            if self.has_batch
            else 0,
        )

    def _entry_point(self, call: str, enqueue: Callable[..., None], arguments: int) -> int:
        """The address of a C function that calls `enqueue` with the lock held; its status tells of a refusal."""

        def callback(*words: int) -> int:
            # Nothing may leave a callback: ctypes would print it and hand the caller garbage as a status.
            try:
                with self._lock:
                    if status := self._used(call):
                        return status
                    try:
                        enqueue(*words)
                    except _Refused as refused:
                        self.last_refusal = str(refused)
                        return refused.status
                    return statuses.SUCCESS
            except BaseException as error:
                self._remembered = error
                return statuses.UNKNOWN

        function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * arguments)(callback)
        # Kept on self: ctypes frees the machine code of a callback with its Python object.
        self._callbacks.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def _enqueue_copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self._device()
        queue = self._stream(stream)
        if size_bytes:
            target_in = self._target_span(target, size_bytes)
            source_in = self._source_span(source, size_bytes)
            self._put(Copy(queue, target, target_in, source, source_in, size_bytes))

    def _enqueue_copy_2d(self, address: int, stream: int) -> None:
        self._device()
        queue = self._stream(stream)
        if not address:
            raise _Refused(statuses.INVALID_VALUE, "the CUDA_MEMCPY2D is null")
        words = _MEMCPY_2D.from_address(address)[:]
        width, rows = words[14], words[15]
        if width and rows:
            source = self._side_2d("source", words[0:7], width, rows)
            target = self._side_2d("target", words[7:14], width, rows)
            self._put(Copy2D(queue, target, source, width, rows))

    def _enqueue_batch(
        self,
        targets: int,
        sources: int,
        sizes: int,
        count: int,
        attributes: int,
        first: int,
        attribute_count: int,
        failed: int,
        stream: int,
    ) -> None:
        self._device()
        queue = self._stream(stream)
        if queue.handle == LEGACY_STREAM:
            raise _Refused(statuses.INVALID_VALUE, "a batch came on the legacy default stream")
        if not count or attribute_count != 1 or ctypes.c_uint64.from_address(first).value:
            raise _Refused(statuses.INVALID_VALUE, f"{count} copies, {attribute_count} attributes; expected 1 for all")
        order = _BATCH_ATTRIBUTES.from_address(attributes)[0]
        if order not in _ACCESS_ORDERS:
            raise _Refused(statuses.INVALID_VALUE, f"source access order {order}; expected 1, 2 or 3")
        copies = []
        for index in range(count):
            target, source, size = (
                ctypes.c_uint64.from_address(array + _WORD_BYTES * index).value for array in (targets, sources, sizes)
            )
            ctypes.c_uint64.from_address(failed).value = index
            if not size:
                raise _Refused(statuses.INVALID_VALUE, f"copy {index} of a batch has no bytes")
            target_in, source_in = self._target_span(target, size), self._source_span(source, size)
            copies.append(Copy(queue, target, target_in, source, source_in, size))
        batch = Batch(queue, copies, self._schedule.below)
        if order == _ORDER_DURING_API_CALL or (order == _ORDER_ANY and self._schedule.below(2)):
            batch.read_sources_now()
        self._put(batch)

    def _enqueue_wait(self, stream: int, event: int, flags: int) -> None:
        if flags:
            raise _Refused(statuses.INVALID_VALUE, f"flags {flags} of a wait; expected 0")
        record = self._known(self._events, event).record
        wait = Wait(self._stream(stream))
        if record is not None:
            wait.come_after(record)
            self._put(wait)

    def _enqueue_launch(self, function: int, *words: int) -> None:
        grid, block, stream, parameters = words[0:3], words[3:6], words[7], words[8]
        self._device()
        queue = self._stream(stream)
        if function not in self._kernels:
            raise _Refused(statuses.INVALID_HANDLE, f"no kernel has the handle {function:#x}")
        blocks, threads = (sizes[0] * sizes[1] * sizes[2] for sizes in (grid, block))
        if not blocks or not 0 < threads <= _THREADS_MAX:
            raise _Refused(
                statuses.INVALID_VALUE, f"{blocks} blocks of {threads} threads; expected 1 to {_THREADS_MAX}"
            )
        if queue.device != self._device():
            raise _Refused(
                statuses.INVALID_HANDLE, f"a kernel of device {self._device()} came on {queue}; activate its device"
            )
        kernel, count = self._kernels[function]
        places = (ctypes.c_uint64 * count).from_address(parameters)
        # Read now, as CUDA does: the caller may change them once the launch has returned.
        values = [ctypes.c_uint64.from_address(place).value for place in places]
        self._put(Launch(queue, lambda: kernel(values, blocks, threads)))

    def _enqueue_record(self, event: int, stream: int) -> None:
        found = self._known(self._events, event)
        record = Record(self._stream(stream))
        if record.stream.device != found.device:
            raise _Refused(
                statuses.INVALID_HANDLE,
                f"the event is of device {found.device}, the stream of device {record.stream.device}",
            )
        found.record = record
        self._put(record)

    def _side_2d(self, side: str, words: list[int], width: int, rows: int) -> tuple[int, int, Allocation]:
        """One side of a CUDA_MEMCPY2D: first row's address, pitch, allocation."""
        x, y, memory, host, device, _array, pitch = words
        memory &= 0xFFFFFFFF  # the enum is 4 bytes, the rest is padding and may hold anything
        if memory not in (_MEMORY_HOST, _MEMORY_DEVICE, _MEMORY_UNIFIED):
            raise _Refused(statuses.INVALID_VALUE, f"{side}: memory type {memory}; expected 1, 2 or 4")
        if not x + width <= pitch <= self.pitch_bytes_max:
            raise _Refused(
                statuses.INVALID_VALUE,
                f"{side}: pitch {pitch}; expected at least x + width = {x + width} and at most {self.pitch_bytes_max}",
            )
        start = (host if memory == _MEMORY_HOST else device) + y * pitch + x
        found = self._span(side, start, (rows - 1) * pitch + width)
        kinds = {_MEMORY_HOST: ("host",), _MEMORY_DEVICE: ("device",), _MEMORY_UNIFIED: ("host", "device")}
        if found.kind not in kinds[memory]:
            raise _Refused(statuses.INVALID_VALUE, f"{side}: {found.kind} memory given as memory type {memory}")
        return start, pitch, found

    # ---- the steps that calls share; but for `_verb`, which takes it, each is called with the lock held ----

    @contextmanager
    def _verb(self, call: str) -> Iterator[None]:
        """Around the body of a Python verb: take the lock, begin, and raise a refusal as the call's error."""
        with self._lock:
            self._begin(call)
            try:
                yield
            except _Refused as refused:
                raise KVSwapDriverError(call, self.result_name(refused.status), advice=str(refused)) from None

    def _begin(self, call: str) -> None:
        """Tell of an exception a callback swallowed, count the use, fail if told to, let work run."""
        if self._remembered is not None:
            error, self._remembered = self._remembered, None
            raise error
        if status := self._used(call):
            raise KVSwapDriverError(call, self.result_name(status))
        self._schedule.advance()

    def _used(self, call: str) -> int:
        """Count a use; the status it is to fail with, 0 for none."""
        if self._discarded:
            self._drop_discarded()
        return self._counted(call)

    def _counted(self, call: str) -> int:
        use = self.calls[call]
        self.calls[call] = use + 1
        if not (self._planned_faults or self.fault_rate):
            return statuses.SUCCESS
        status = self._fault(call, use)
        if status:
            self.faults[call] += 1
        return status

    def _fault(self, call: str, use: int) -> int:
        by_chance = self.fault_rate > 0 and self._fault_choices.random() < self.fault_rate
        for first, end, status in self._planned_faults.get(call, ()):
            if first <= use < end:
                return status
        return statuses.UNKNOWN if by_chance else statuses.SUCCESS

    def _known(self, table: dict[int, _T], handle: int) -> _T:
        found = table.get(handle)
        if found is None:
            raise _Refused(
                statuses.INVALID_HANDLE,
                f"no stream or event has the handle {handle:#x}; it was destroyed, or is another driver's",
            )
        return found

    def _device_or_none(self) -> int | None:
        device: int | None = getattr(self._current, "device", None)
        return device

    def _device(self) -> int:
        device = self._device_or_none()
        if device is None:
            raise _Refused(
                statuses.INVALID_CONTEXT, "no context is current in this thread; use it within driver.activate(device)"
            )
        return device

    def _stream(self, handle: int) -> Stream:
        found = self._streams.get(handle)
        if found is not None:
            return found
        if handle in (0, LEGACY_STREAM):
            return self._legacy[self._device()]
        if handle == PER_THREAD_STREAM:
            return self._thread_stream()
        raise _Refused(statuses.INVALID_HANDLE, f"stream {handle:#x} is unknown or destroyed")

    def _thread_stream(self) -> Stream:
        device = self._device()
        # With the thread they go: a later one, which may have its identifier, has streams of its own.
        streams: _ThreadStreams | None = getattr(self._current, "streams", None)
        if streams is None:
            streams = self._current.streams = _ThreadStreams()
        if device not in streams:
            stream = streams[device] = Stream(PER_THREAD_STREAM, device, blocking=True)
            self._blocking[device][stream] = None
        return streams[device]

    def _put(self, operation: Operation) -> None:
        """Queue it after what its stream's kind makes it wait for, and perhaps let work run."""
        stream = operation.stream
        if stream.blocking:
            operation.come_after(self._legacy[stream.device].last)
        elif stream.handle == LEGACY_STREAM:
            blocking = self._blocking[stream.device]
            for other in tuple(blocking):
                operation.come_after(other.last)
                if other.destroyed and not other.queue:
                    del blocking[other]
        self._schedule.put(operation)
        self._schedule.advance()

    def _create_stream(self, *, blocking: bool) -> int:
        with self._verb("cuStreamCreate"):
            device = self._device()
            handle = next(self._stream_handles)
            stream = Stream(handle, device, blocking=blocking)
            self._streams[handle] = stream
            if blocking:
                self._blocking[device][stream] = None
            return handle

    def _destroy_stream(self, handle: int) -> None:
        stream = self._streams.pop(handle)
        stream.destroyed = True
        # Only the handle is gone: what is queued still runs, and the legacy stream still waits for it.
        if not stream.queue:
            self._blocking[stream.device].pop(stream, None)

    def _wait_for_a_change(self) -> bool:
        return self._changed.wait(self.hang_seconds) if self.hang_seconds else False

    def _waiting(self, timeout_s: float | None) -> Callable[[], bool]:
        """What to do where nothing can run: wait for another thread to change that, until so many seconds from now."""
        if timeout_s is None:
            return self._wait_for_a_change
        until = time.monotonic() + timeout_s

        def wait_for_a_change() -> bool:
            if not self._changed.wait(max(0.0, until - time.monotonic())):
                raise _TimedOut
            return True

        return wait_for_a_change

    def _allocate(self, call: str, kind: MemoryKind, size_bytes: int) -> int:
        with self._verb(call):
            device = self._device()
            if size_bytes <= 0:
                raise _Refused(statuses.INVALID_VALUE, f"size_bytes is {size_bytes}; expected at least 1")
            allocation = self._new_allocation(kind, device, size_bytes)
            self._memory.add(allocation)
            return allocation.start

    def _new_allocation(self, kind: MemoryKind, device: int, size_bytes: int, *, registered_at: int = 0) -> Allocation:
        held = self._memory.live_bytes(kind, device)
        why = (
            f"{size_bytes} bytes asked; the simulated device's memory_bytes_max is {self.memory_bytes_max}, {held} held"
        )
        if held + size_bytes > self.memory_bytes_max:
            raise _Refused(statuses.OUT_OF_MEMORY, why)
        try:
            return Allocation(kind, device, size_bytes, registered_at=registered_at)
        except MemoryError:
            raise _Refused(statuses.OUT_OF_MEMORY, f"this machine has no {size_bytes} bytes; ask for less") from None

    def _free(self, call: str, kind: MemoryKind, address: int) -> None:
        with self._verb(call):
            found = self._memory.find(address)
            kinds = ("device", "managed") if kind == "device" else ("host",)
            if found is None or found.start != address or found.kind not in kinds or found.registered:
                raise _Refused(
                    statuses.INVALID_VALUE,
                    f"{address:#x} is not the start of live {kind} memory; was it freed already?",
                )
            self._retire(found)

    def _retire(self, allocation: Allocation) -> None:
        self._memory.remove(allocation)
        allocation.retire()

    def _target_span(self, address: int, size_bytes: int) -> Allocation:
        last = self._last_target
        if last.alive and last.start <= address and address + size_bytes <= last.end:
            return last
        self._last_target = found = self._span("target", address, size_bytes)
        return found

    def _source_span(self, address: int, size_bytes: int) -> Allocation:
        last = self._last_source
        if last.alive and last.start <= address and address + size_bytes <= last.end:
            return last
        self._last_source = found = self._span("source", address, size_bytes)
        return found

    def _span(self, side: str, address: int, size_bytes: int) -> Allocation:
        """The live allocation that holds all of a span."""
        found = self._memory.find(address)
        if found is None:
            raise _Refused(statuses.INVALID_VALUE, f"{side}: {address:#x} lies in no live allocation")
        if address + size_bytes > found.end:
            past = address + size_bytes - found.end
            raise _Refused(
                statuses.INVALID_VALUE,
                f"{side}: {size_bytes} bytes at {address:#x} end {past} bytes past the {found.kind} allocation "
                f"of {found.bytes} bytes at {found.start:#x}",
            )
        return found

    def _span_or_pageable(self, side: str, address: int, size_bytes: int) -> Allocation | None:
        if address <= 0 or size_bytes < 0:
            raise _Refused(statuses.INVALID_VALUE, f"{side}: {size_bytes} bytes at {address:#x}")
        if size_bytes == 0 or self._memory.find(address) is None:
            return None
        return self._span(side, address, size_bytes)
