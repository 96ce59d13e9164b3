"""Pinned host memory, quickly: mapped, touched by every CPU near the device, then registered with the driver."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.host_room import check_room, cpus_near, locked_memory_limit, memory_in_words
from numba_kvswap.memory import DriverMemory, OwnedMemory

#: Below this the driver's own allocation: at the 0.65 s a GiB measured for cuMemHostAlloc (26 s for 40 GiB) it takes
#: some 40 ms, and threads, huge pages and a rounding to 2 MiB have little left to win.
POOL_BYTES_MIN = 64 << 20
#: Largest single registration. One of 512 GiB or more fails: the driver's table for it, 16 bytes each 4 KiB, would then
#: exceed the INT_MAX bytes that the kernel's kvzalloc gives (github.com/NVIDIA/open-gpu-kernel-modules/pull/1234).
PIECE_BYTES_MAX = 256 << 30
#: What the system maps at once; registrations start and end at multiples of it, but for the last one's end.
SYSTEM_BLOCK_BYTES = mmap.PAGESIZE
#: A huge one of x86-64, and of arm64 with small ones of 4 KiB.
HUGE_BYTES = 2 << 20
#: What one thread touches at a time: small enough that all end together and that the bar moves.
SLICE_BYTES = 64 << 20
#: From here on a progress bar, on terminals: what is smaller takes less than a second.
PROGRESS_BYTES_MIN = 8 << 30

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14; Python's mmap has no name for it
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def pinned_memory(driver: Driver, device: int, size_bytes: int, unit_bytes: int) -> OwnedMemory:
    """`size_bytes` bytes of pinned host memory, portable and mapped, in the fastest way for that size.

    unit_bytes: memory that takes several registrations is cut at multiples of it, counted from the start, since a copy
        that spans two of them is refused (github.com/sgl-project/sglang/pull/36798, of cudaMemcpyBatchAsync).

    Raises MemoryError where the system has not that much, KVSwapDriverError where the driver refuses.
    """
    if size_bytes >= POOL_BYTES_MIN:
        check_room(size_bytes)  # here too: the driver itself may take long to find out
    piece_bytes = PIECE_BYTES_MAX
    if size_bytes > PIECE_BYTES_MAX:
        piece_bytes -= PIECE_BYTES_MAX % math.lcm(unit_bytes, SYSTEM_BLOCK_BYTES)
    if size_bytes < POOL_BYTES_MIN or not piece_bytes:  # no piece is that large and ends where it may
        return DriverMemory(driver, device, size_bytes, "host")
    return PinnedPool(driver, device, size_bytes, piece_bytes)


class PinnedPool(OwnedMemory):
    """`size_bytes` bytes of pinned host memory of this process's own: zeros, at a multiple of 2 MiB.

    Registered in pieces of `piece_bytes`, a multiple of SYSTEM_BLOCK_BYTES; `pieces` is where each starts. Touched
    before, by as many threads as there are CPUs that this process may use, on the device's NUMA node where there are
    several: the first touch places memory, and registering alone would do it in one thread.

    Attributes:
        huge_pages: whether the kernel knows huge ones and took our wish for them (MADV_HUGEPAGE).
        populated: whether the kernel filled it in at our word (MADV_POPULATE_WRITE), else it was written to.
        touch_seconds, register_seconds: how long each took.

    Raises MemoryError where the system has not that much, before anything is touched where it says so; a process that
    touches more than there is gets killed. Raises KVSwapDriverError where the driver refuses; nothing is left behind.
    """

    def __init__(self, driver: Driver, device: int, size_bytes: int, piece_bytes: int) -> None:
        super().__init__(driver, device, size_bytes)
        self.huge_pages, self.populated = False, True
        self.touch_seconds = self.register_seconds = 0.0
        self._registered: list[int] = []
        check_room(size_bytes)
        cpus = cpus_near(driver, device)
        self._mapping = _mapped(size_bytes + HUGE_BYTES)
        try:
            self._place()
            self._touch(cpus)
            self._register(piece_bytes)
        except BaseException:
            # A piece that the driver does not let go of keeps the address, and so is tried again by the finalizer.
            with contextlib.suppress(KVSwapDriverError):
                self.close()
            raise
        self.pieces = tuple(self._registered)

    def _place(self) -> None:
        start = _address_of(self._mapping)
        self.address = -(-start // HUGE_BYTES) * HUGE_BYTES
        with contextlib.suppress(OSError):
            # A child of fork() has no use for it, and would have to be given a copy of what is pinned.
            self._mapping.madvise(mmap.MADV_DONTFORK)
        with contextlib.suppress(OSError):  # a kernel without them
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
            self.huge_pages = True

    def _touch(self, cpus: frozenset[int]) -> None:
        started = perf_counter()
        slices = range(self.address, self.address + self.size_bytes, SLICE_BYTES)
        with _bar(self.size_bytes) as bar, _threads(min(len(cpus), len(slices)), cpus) as threads:
            touched = [
                threads.submit(self._touch_slice, start, min(SLICE_BYTES, self.address + self.size_bytes - start))
                for start in slices
            ]
            for done in as_completed(touched):
                bar.update(done.result())
        self.touch_seconds = perf_counter() - started

    def _touch_slice(self, start: int, size_bytes: int) -> int:
        if self.populated and _LIBC.madvise(start, size_bytes, _MADV_POPULATE_WRITE):
            error = ctypes.get_errno()
            if error == errno.ENOMEM:
                raise MemoryError(_no_memory(self.size_bytes, os.strerror(error)))
            self.populated = False  # the kernel does not know it, or some sandbox does not
        if not self.populated:
            memory = (ctypes.c_uint8 * size_bytes).from_address(start)
            np.ctypeslib.as_array(memory)[::SYSTEM_BLOCK_BYTES] = 0
        return size_bytes

    def _register(self, piece_bytes: int) -> None:
        started = perf_counter()
        end = self.address + self.size_bytes
        with self.driver.activate(self.device):
            for start in range(self.address, end, piece_bytes):
                self._registered.append(start)  # first: an interrupt may come as soon as the driver is done
                try:
                    self.driver.host_register(start, min(piece_bytes, end - start))
                except KVSwapDriverError as error:
                    self._registered.remove(start)
                    raise KVSwapDriverError(
                        error.call, error.result_name, advice=_not_registered(self.size_bytes, error.advice)
                    ) from error
        self.register_seconds = perf_counter() - started

    def _free(self) -> None:
        while self._registered:
            self.driver.unregister_if_registered(self._registered[-1])
            self._registered.pop()
        self._mapping.close()  # after the last piece: the device may write to what is registered

    def _discard(self) -> None:
        self.driver.discard_registrations(tuple(self._registered), self._mapping, self.device)


def _mapped(size_bytes: int) -> mmap.mmap:
    try:
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(_no_memory(size_bytes, str(error))) from error
    _mappings.add(mapping)
    return mapping


_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def _keep_in_child() -> None:
    """A forked child has not got these stretches of addresses (MADV_DONTFORK) and may have put other memory there,
    which the end of a mapping object would unmap. So there they never end, not even with the interpreter."""
    for mapping in list(_mappings):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))


os.register_at_fork(after_in_child=_keep_in_child)


def _address_of(mapping: mmap.mmap) -> int:
    # The array, and with it its hold on the mapping, is gone when this returns: a held mapping does not close.
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


@contextlib.contextmanager
def _threads(count: int, cpus: frozenset[int]) -> Iterator[ThreadPoolExecutor]:
    """`count` threads that run on `cpus`; none of them is left on exit, after an error or Ctrl-C neither."""
    threads = ThreadPoolExecutor(count, initializer=_run_on, initargs=(cpus,))
    try:
        yield threads
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _run_on(cpus: frozenset[int]) -> None:
    with contextlib.suppress(OSError):  # a sandbox that forbids it: the memory may lie further away, no more
        os.sched_setaffinity(0, cpus)  # 0: of the calling thread alone


def _bar(size_bytes: int) -> AbstractContextManager[Any]:
    from tqdm import tqdm

    bar: AbstractContextManager[Any] = tqdm(
        total=size_bytes,
        desc="pinned memory",
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=None if size_bytes >= PROGRESS_BYTES_MIN else True,
    )
    return bar


def _no_memory(size_bytes: int, why: str) -> str:
    return f"asked for {memory_in_words(size_bytes)} of host memory, which the system refuses: {why}; ask for less"


def _not_registered(size_bytes: int, why: str) -> str:
    return (
        f"{why + '. ' if why else ''}The driver did not pin {memory_in_words(size_bytes)} of host memory. Perhaps "
        f"the limit on locked memory is too low (ulimit -l; now {locked_memory_limit()}), or memory is short: raise "
        "the limit, or ask for less"
    )
