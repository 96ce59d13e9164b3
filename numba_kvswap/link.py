"""What the link itself carries: one large copy between pinned host memory and the device, each way and both at once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Literal

from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.memory import DriverMemory

LinkDirection = Literal["out", "in", "both"]

_MEMCPY_ASYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


@dataclass(frozen=True)
class Link:
    """Median seconds of one pinned copy of `bytes` bytes, device to host (out) and host to device (in).

    both_s: of an out and an in of `bytes` bytes each, at once; None where that was not measured.
    """

    bytes: int
    out_s: float
    in_s: float
    both_s: float | None = None

    @property
    def out_gb_per_s(self) -> float:
        """GB/s, 10^9 bytes."""
        return self.bytes / self.out_s / 1e9

    @property
    def in_gb_per_s(self) -> float:
        """GB/s, 10^9 bytes."""
        return self.bytes / self.in_s / 1e9

    @property
    def both_gb_per_s(self) -> float | None:
        """GB/s of both ways together, 10^9 bytes."""
        return None if self.both_s is None else 2 * self.bytes / self.both_s / 1e9

    def gb_per_s(self, direction: LinkDirection) -> float | None:
        """GB/s, 10^9 bytes; None for "both" where that was not measured."""
        return {"out": self.out_gb_per_s, "in": self.in_gb_per_s, "both": self.both_gb_per_s}[direction]


class DeviceSpan:
    """Device time from one moment on several streams to the last of their ends.

    Call `begin`, put the work on the streams, call `end`; `seconds` waits for it. Needs the current context of the
    streams' device. Raises KVSwapDriverError.
    """

    def __init__(self, driver: Driver, streams: Sequence[int]) -> None:
        self._streams = streams
        self._start, self._ends = Event(driver), [Event(driver) for _ in streams]

    def begin(self) -> None:
        """What is put on any of the streams from now on starts after this."""
        self._start.record(self._streams[0])
        for stream in self._streams[1:]:
            self._start.make_wait(stream)

    def end(self) -> None:
        for end, stream in zip(self._ends, self._streams, strict=True):
            end.record(stream)

    def wait(self) -> None:
        for end in self._ends:
            end.synchronize()

    def seconds(self) -> float:
        self.wait()
        return max(end.seconds_since(self._start) for end in self._ends)


class LinkProbe:
    """Memory for one large copy each way, to measure the link now and then during a run.

    Holds twice `size_bytes` bytes of device and of pinned host memory until `close`, or the end of a ``with`` block.
    All methods need the current context of device 0. Raises KVSwapDriverError.
    """

    def __init__(self, driver: Driver, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._driver = driver
        self._memories: list[DriverMemory] = []
        self._streams: list[int] = []
        self._seconds: dict[LinkDirection, list[float]] = {"out": [], "in": [], "both": []}
        try:
            self._ways = {direction: self._new_way(direction) for direction in ("out", "in")}
            self._measure(["out", "in"])  # dropped: the first wakes the link up
        except BaseException:
            self.close()
            raise

    def _new_way(self, direction: str) -> tuple[int, int, int]:
        """A stream, a target and a source of its own."""
        sides: tuple[Literal["device", "host"], ...] = ("host", "device") if direction == "out" else ("device", "host")
        for side in sides:
            self._memories.append(DriverMemory(self._driver, 0, self.size_bytes, side))
        self._streams.append(self._driver.stream_create())
        target, source = self._memories[-2:]
        return self._streams[-1], target.address, source.address

    def take(self) -> None:
        """One copy out, one in, and both at once."""
        self._seconds["out"].append(self._measure(["out"]))
        self._seconds["in"].append(self._measure(["in"]))
        self._seconds["both"].append(self._measure(["out", "in"]))

    def link(self) -> Link:
        """Medians of what was taken, at least once."""
        return Link(self.size_bytes, *(median(self._seconds[direction]) for direction in ("out", "in", "both")))

    def _measure(self, directions: Sequence[str]) -> float:
        ways = [self._ways[direction] for direction in directions]
        return _copies_seconds(self._driver, ways, self.size_bytes)

    def close(self) -> None:
        """A second call does nothing."""
        while self._streams:
            stream = self._streams.pop()
            self._driver.stream_synchronize(stream)
            self._driver.stream_destroy(stream)
        while self._memories:
            self._memories.pop().close()

    def __enter__(self) -> LinkProbe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def measure_link(driver: Driver, stream: int, size_bytes: int, repeats: int) -> Link:
    """Each way alone, on `stream`. Needs the current context of device 0. Raises KVSwapDriverError."""
    device = DriverMemory(driver, 0, size_bytes, "device")
    host = DriverMemory(driver, 0, size_bytes, "host")
    ways = ((stream, host.address, device.address), (stream, device.address, host.address))
    try:
        # The first of each is dropped: it wakes the link up.
        seconds = [[_copies_seconds(driver, [way], size_bytes) for way in ways] for _ in range(repeats + 1)][1:]
    finally:
        driver.stream_synchronize(stream)
        host.close()
        device.close()
    return Link(size_bytes, median(out for out, _ in seconds), median(in_ for _, in_ in seconds))


def _copies_seconds(driver: Driver, ways: Sequence[tuple[int, int, int]], size_bytes: int) -> float:
    """One copy a way, all at once: a way is a stream, a target and a source."""
    span = DeviceSpan(driver, [stream for stream, _target, _source in ways])
    span.begin()
    for stream, target, source in ways:
        memcpy_async(driver, target, source, size_bytes, stream)
    span.end()
    return span.seconds()


def memcpy_async(driver: Driver, target: int, source: int, size_bytes: int, stream: int) -> None:
    """One engine copy put on `stream`; the GIL is released around it. Raises KVSwapDriverError."""
    status = _MEMCPY_ASYNC(driver.entry_points.memcpy_async)(target, source, size_bytes, stream)
    if status:
        raise KVSwapDriverError("cuMemcpyAsync", driver.result_name(status))
