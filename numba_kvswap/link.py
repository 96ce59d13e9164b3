"""What the link itself carries: one large copy between pinned host memory and the device, each way."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from statistics import median

from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.memory import DriverMemory

_MEMCPY_ASYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


@dataclass(frozen=True)
class Link:
    """Median seconds of one pinned copy of `bytes` bytes, device to host (out) and host to device (in)."""

    bytes: int
    out_s: float
    in_s: float

    @property
    def out_gb_per_s(self) -> float:
        """GB/s, 10^9 bytes."""
        return self.bytes / self.out_s / 1e9

    @property
    def in_gb_per_s(self) -> float:
        """GB/s, 10^9 bytes."""
        return self.bytes / self.in_s / 1e9


def measure_link(driver: Driver, stream: int, size_bytes: int, repeats: int) -> Link:
    """Needs the current context of device 0. Raises KVSwapDriverError."""
    device = DriverMemory(driver, 0, size_bytes, "device")
    host = DriverMemory(driver, 0, size_bytes, "host")
    ways = ((host.address, device.address), (device.address, host.address))
    try:
        # The first of each is dropped: it wakes the link up.
        seconds = [[_copy_seconds(driver, stream, *way, size_bytes) for way in ways] for _ in range(repeats + 1)][1:]
    finally:
        driver.stream_synchronize(stream)
        host.close()
        device.close()
    return Link(size_bytes, median(out for out, _ in seconds), median(in_ for _, in_ in seconds))


def _copy_seconds(driver: Driver, stream: int, target: int, source: int, size_bytes: int) -> float:
    start, end = Event(driver), Event(driver)
    start.record(stream)
    status = _MEMCPY_ASYNC(driver.entry_points.memcpy_async)(target, source, size_bytes, stream)
    if status:
        raise KVSwapDriverError("cuMemcpyAsync", driver.result_name(status))
    end.record(stream)
    end.synchronize()
    return end.seconds_since(start)
