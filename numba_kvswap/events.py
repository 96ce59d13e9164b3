"""An event of a driver, owned: made, recorded, asked, and given up when nobody needs it."""

from __future__ import annotations

import sys
from collections import deque

from numba_kvswap.driver import Driver


class Event:
    """Raises KVSwapDriverError where a driver call fails. Needs the current context of its device to be made."""

    __slots__ = ("_driver", "_handle")

    def __init__(self, driver: Driver, *, timed: bool = True) -> None:
        self._driver = driver
        self._handle = 0
        self._handle = driver.event_create(timed=timed)

    @property
    def handle(self) -> int:
        """The CUevent, for compiled code that records it."""
        return self._handle

    def record(self, stream: int) -> None:
        self._driver.event_record(self._handle, stream)

    def make_wait(self, stream: int) -> None:
        """What is put on `stream` from now on starts after this event."""
        self._driver.stream_wait_event(stream, self._handle)

    def done(self) -> bool:
        return self._driver.event_done(self._handle)

    def synchronize(self, *, soon: bool = False) -> None:
        """soon: whether it is a matter of microseconds."""
        self._driver.event_synchronize(self._handle, soon=soon)

    def seconds_since(self, start: Event) -> float:
        return self._driver.event_seconds(start._handle, self._handle)

    def __del__(self) -> None:
        if self._handle and not sys.is_finalizing():
            self._driver.discard_event(self._handle)


class PooledEvent(Event):
    """A timed event of `device`, taken from those that nobody holds, and put back there.

    What waits for its last record on a stream goes on doing so: a new record does not change what was put there before.
    """

    __slots__ = ("_idle",)

    def __init__(self, driver: Driver, device: int) -> None:
        self._idle: deque[int] = driver.idle_events.setdefault(device, deque())
        try:
            self._driver, self._handle = driver, self._idle.pop()
        except IndexError:
            super().__init__(driver)

    def __del__(self) -> None:
        if self._handle and len(self._idle) < self._driver.idle_events_max:
            self._idle.append(self._handle)
        else:
            super().__del__()
