"""Events of a driver, owned: made, recorded, asked, and given up when nobody needs them."""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from numba_kvswap.driver import Driver, IdleEvents


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


_NO_EVENTS = np.empty(0, np.uint64)


class EventPair:
    """Two timed events of `device`, recorded before and after some work, taken from those that nobody holds, and put
    back there.

    What waits for the last record of one on a stream goes on doing so: a new record does not change what was put there
    before.

    Attributes: `words`, the two handles, for compiled code that records them.

    Raises KVSwapDriverError where a driver call fails. Needs the current context of its device to be made.
    """

    __slots__ = ("_driver", "_end", "_idle", "_start", "words")

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._start, self._end, self.words = driver, 0, 0, _NO_EVENTS
        idle = driver.idle_events.get(device)
        self._idle: deque[IdleEvents] = driver.idle_events.setdefault(device, deque()) if idle is None else idle
        try:
            self._start, self._end, self.words = self._idle.pop()
        except IndexError:
            self._start = driver.event_create(timed=True)
            self._end = driver.event_create(timed=True)
            self.words = np.array((self._start, self._end), np.uint64)

    def record_end(self, stream: int) -> None:
        self._driver.event_record(self._end, stream)

    def make_wait(self, stream: int) -> None:
        """What is put on `stream` from now on starts after the end."""
        self._driver.stream_wait_event(stream, self._end)

    def ended(self) -> bool:
        return self._driver.event_done(self._end)

    def synchronize(self, *, soon: bool = False, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it has come. soon: whether it is a matter of microseconds."""
        return self._driver.event_synchronize(self._end, soon=soon, timeout_s=timeout_s)

    def seconds(self, since: EventPair | None = None) -> float:
        """From the start, or that of an earlier pair, to the end, once it has ended."""
        return self._driver.event_seconds((since or self)._start, self._end)

    def __del__(self) -> None:
        # Handles, not objects, go back: an object that dies in a cycle may be finalized before this.
        if self.words.size and len(self._idle) < self._driver.idle_events_max:
            self._idle.append((self._start, self._end, self.words))
        elif not sys.is_finalizing():
            for event in (self._start, self._end):
                if event:
                    self._driver.discard_event(event)
