"""Tables of ids on their way to a kernel: pinned words and device words, lent to one transfer at a time.

A table that was rewritten while an earlier kernel or copy still reads it would move wrong blocks. So a transfer has its
table for itself until it has landed.
"""

from __future__ import annotations

import sys
from collections import deque

import numpy as np

from numba_kvswap.driver import Driver
from numba_kvswap.ids import Words
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory

_WORD_BYTES = 8
#: Of the smallest table: enough for 2,048 pairs of ids.
WORDS_MIN = 4096
# Up to here a kernel reads its ids over the link. That costs 2 to 14 us on an H200, and spares the host the call that
# copies them: 4 us, or 20 where its caches are cold (docs/notes.md).
_DIRECT_PAIRS_MAX = 8


class IdTables:
    """The tables of one device. They are kept for the next borrower, so a swap like one before allocates nothing."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._device = driver, device
        # By size. A deque: a table may come back from a finalizer, in the midst of anything.
        self._idle: dict[int, deque[_Memory]] = {}
        # All of them, lent or not. A table that dies in a cycle takes everything that only it holds along: what came
        # back from its finalizer would come back freed.
        self._all: list[_Memory] = []

    def lend(self, words: int) -> IdTable:
        """A table of at least so many words. Raises KVSwapDriverError where a new one is needed and not to be had.

        Needs the current context of the device.
        """
        size = max(WORDS_MIN, 1 << (words - 1).bit_length())
        idle = self._idle.setdefault(size, deque())
        try:
            memory = idle.pop()
        except IndexError:
            memory = _Memory(self._driver, self._device, size)
            self._all.append(memory)
        return IdTable(memory, idle)


class IdTable:
    """`words`, uint64, as the host writes them; `words_at`, where kernels read those very words, over the link;
    `device_at`, where a copy of them may be put. Given back when nobody holds it any more."""

    __slots__ = ("_idle", "_memory", "device_at", "words", "words_at")

    def __init__(self, memory: _Memory, idle: deque[_Memory]) -> None:
        self._memory, self._idle = memory, idle
        self.words, self.words_at, self.device_at = memory.words, memory.words_at, memory.device_at

    def read_at(self, pairs: int) -> tuple[np.uint64, bool]:
        """Where a kernel is to read the ids of so many pairs, and whether they must be copied there first."""
        upload = pairs > _DIRECT_PAIRS_MAX
        return (self.device_at if upload else self.words_at), upload

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._idle.append(self._memory)


class _Memory:
    def __init__(self, driver: Driver, device: int, words: int) -> None:
        size = words * _WORD_BYTES
        self._pinned = DriverMemory(driver, device, size, "host")
        self._on_device = DriverMemory(driver, device, size, "device")
        layer = Layer(self._pinned.address, 1, size, size, None, owner=self._pinned)
        self.words: Words = np.asarray(LayerBytes(layer))[0].view(np.uint64)
        self.words_at = np.uint64(driver.pointer_info(self._pinned.address).device_address)
        self.device_at = np.uint64(self._on_device.address)
