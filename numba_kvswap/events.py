"""An event of a driver, owned: made, recorded, asked, and destroyed when nobody needs it."""

from __future__ import annotations

import sys

from numba_kvswap.driver import Driver


class Event:
    """Raises KVSwapDriverError where a driver call fails. Needs the current context of its device to be made."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._handle = 0
        self._handle = driver.event_create()

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

    def synchronize(self) -> None:
        self._driver.event_synchronize(self._handle)

    def seconds_since(self, start: Event) -> float:
        return self._driver.event_seconds(start._handle, self._handle)

    def __del__(self) -> None:
        if self._handle and not sys.is_finalizing():
            self._driver.discard_event(self._handle)
