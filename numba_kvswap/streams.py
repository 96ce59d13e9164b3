"""Streams of a driver, owned: made, and given up when nobody needs them."""

from __future__ import annotations

import sys

from numba_kvswap.driver import Driver


class Stream:
    """A non-blocking stream. Raises KVSwapDriverError. Needs the current context of its device to be made.

    Attributes: handle, the CUstream. What is queued on it when it is given up still runs.
    """

    __slots__ = ("_driver", "handle")

    def __init__(self, driver: Driver, *, urgent: bool = False) -> None:
        self._driver = driver
        self.handle = 0
        self.handle = driver.stream_create(urgent=urgent)

    def __del__(self) -> None:
        if self.handle and not sys.is_finalizing():
            self._driver.discard_stream(self.handle)
