"""What the swaps of one device share: kernels, a stream aside, tables of ids, the rings, and a sight of each other."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import cached_property

import numpy as np

from numba_kvswap.cache_pair import Direction
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.driver.forked import fresh_locks_in_children
from numba_kvswap.events import Event
from numba_kvswap.id_tables import IdTables
from numba_kvswap.ids import Integers, Words
from numba_kvswap.kernels.loaded import NoKernels, load_kernel
from numba_kvswap.memory import DriverMemory
from numba_kvswap.streams import Stream
from numba_kvswap.submit import (
    EMPTIED,
    FILLED,
    RING_ADDRESS,
    RING_BATCHES,
    RING_COPIES,
    RING_JOIN,
    RING_KERNELS,
    RING_SLOT_BYTES,
    RING_WORDS,
    copy_async,
)
from numba_kvswap.traffic import Traffic

_MOVE = "warp_a_chunk"
# Tables of layers, a few KiB each, of the pairs of caches used last.
_COPIES_MAX = 64
# Locks here may be taken again: a finalizer or a signal handler may swap in the midst of any line, in the same thread.
_lock = threading.RLock()


def _renew_in_child() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()  # which another thread may have held at the fork


os.register_at_fork(after_in_child=_renew_in_child)


def device_tools(driver: Driver, device: int) -> DeviceTools:
    """The tools of a device, made when first asked for. They live as long as the driver does."""
    with _lock:
        tools = driver.tools.get(device)
        if not isinstance(tools, DeviceTools):
            tools = driver.tools[device] = DeviceTools(driver, device)
        return tools


class DeviceTools:
    """All of it needs the current context of the device, and is made when first used."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._device = driver, device
        self.tables, self.traffic = IdTables(driver, device), Traffic(driver.clock)
        self._rings: dict[Direction, Ring] = {}
        self._copies: OrderedDict[bytes, DriverMemory] = OrderedDict()
        self._aside: tuple[Event, Stream, Words] | None = None
        #: Why the device has no memory for a ring, as far as is known; "" before one was asked for.
        self.why_no_ring = ""
        self._in_doubt: list[object] = []
        self._lock = threading.RLock()

    @cached_property
    def why_no_kernels(self) -> str:
        """Why there is no kernel to launch, "" where there is one."""
        try:
            self._kernel = load_kernel(self._driver, self._device, _MOVE)
        except NoKernels as error:
            return str(error)
        return ""

    @property
    def kernel(self) -> int:
        """The handle of the kernel that moves blocks. Raises NoKernels."""
        if self.why_no_kernels:
            raise NoKernels(self.why_no_kernels)
        return self._kernel

    @property
    def aside(self) -> Words:
        """A stream for what must not be put on the legacy default stream, and an event to join it: words."""
        with self._lock:
            if self._aside is None:
                event, stream = Event(self._driver, timed=False), Stream(self._driver)
                self._aside = event, stream, np.array([stream.handle, event.handle], np.uint64)
            return self._aside[2]

    @cached_property
    def _uploads(self) -> Stream:
        """It holds nothing for longer than it takes: no swap's copies."""
        return Stream(self._driver)

    def ring(self, direction: Direction) -> Ring:
        """The ring of that way. Raises KVSwapDriverError where the device lacks its memory; that is then remembered."""
        with self._lock:
            if direction not in self._rings:
                try:
                    self._rings[direction] = Ring(self._driver, self._device)
                except KVSwapDriverError as error:
                    size = self._driver.ring_slots * self._driver.ring_slot_bytes
                    self.why_no_ring = f"no {size} bytes of device memory for a ring ({error})"
                    raise
                self.why_no_ring = ""
            return self._rings[direction]

    def on_device(self, words: Words) -> DriverMemory:
        """A copy of `words` in device memory that nobody writes to again.

        Who asks for the same words gets the same one, so a Swapper made anew for earlier caches allocates nothing.
        """
        with self._lock:
            content = words.tobytes()
            if content not in self._copies:
                self._copies[content] = self._copied(words)
                if len(self._copies) > _COPIES_MAX:
                    self._copies.popitem(last=False)  # alive for as long as a Swapper or a transfer needs it
            self._copies.move_to_end(content)
            return self._copies[content]

    def _copied(self, words: Words) -> DriverMemory:
        """Waits for that copy, but for nothing else on the device."""
        memory = DriverMemory(self._driver, self._device, words.nbytes, "device")
        table = self.tables.lend(words.size)
        table.words[: words.size] = words.ravel()
        target, source = np.uint64(memory.address), np.uint64(table.words.ctypes.data)
        entry_points, stream = self._driver.entry_points.words, self._uploads.handle
        status = copy_async(entry_points, target, source, np.uint64(words.nbytes), np.uint64(stream))
        if status:
            raise KVSwapDriverError("cuMemcpyAsync", self._driver.result_name(status))
        self._in_doubt.append((memory, table))  # and there it stays where the next line does not say that it landed
        self._driver.stream_synchronize(stream)
        self._in_doubt.clear()  # of this one, and of those that came before it on the stream
        return memory


fresh_locks_in_children(DeviceTools)


class Ring:
    """Slots in device memory and the two streams that work on them, one for kernels, one for engine copies; and a
    third one, for what goes by batches beside the ring.

    Attributes: `words`, `slots` and `chunks_before`, as submit.py takes them; `lock`, held while a transfer is put on
    the ring.

    Raises KVSwapDriverError where the device has no such memory left.
    """

    def __init__(self, driver: Driver, device: int) -> None:
        slots, slot_bytes = driver.ring_slots, driver.ring_slot_bytes
        self._memory = DriverMemory(driver, device, slots * slot_bytes, "device")
        self._events = [Event(driver, timed=False) for _ in range(2 * slots + 1)]
        *of_slots, join = (event.handle for event in self._events)
        self.lock = threading.RLock()
        self.chunks_before: Integers = np.zeros(1, np.int64)
        self.slots: Words = np.zeros((slots, 2), np.uint64)
        self.slots[:, [FILLED, EMPTIED]] = np.reshape(of_slots, (slots, 2))
        self.words: Words = np.zeros(RING_WORDS, np.uint64)
        self.words[RING_SLOT_BYTES], self.words[RING_ADDRESS] = slot_bytes, self._memory.address
        self.words[RING_JOIN] = join
        self._streams = {
            word: Stream(driver, urgent=word == RING_KERNELS) for word in (RING_KERNELS, RING_COPIES, RING_BATCHES)
        }
        for word, stream in self._streams.items():
            self.words[word] = stream.handle
