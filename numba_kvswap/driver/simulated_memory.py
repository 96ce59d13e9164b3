"""The simulated device's memory: real host bytes, and which of them are allocated now."""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from typing import Literal

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES = 256  # what cuMemAlloc promises
NEW_BYTE = 0xCD  # what fresh memory holds, so that a read of a block nobody wrote is seen
FREED_BYTE = 0xDD  # what freed memory holds, so that a late read through a stale view is seen
# Filling touches every page. Above this a test has asked for a pool, most of which it will never use,
# and the operating system hands out untouched pages for nothing.
FILL_BYTES_MAX = 64 << 20

MemoryKind = Literal["device", "host", "managed"]
Context = Literal["primary", "another", "none"]


class Allocation:
    """One live or freed allocation. `memory` is a uint8 view of exactly its bytes; kernels reach it where `mapped`.

    registered: the bytes are somebody else's, who keeps them mapped while it lives; they are never poisoned.
    context: whose device memory it is, as PointerInfo says. mapping_bytes: of virtual memory, how long each of the
    mappings is that it consists of, 0 of any other memory.
    """

    __slots__ = (
        "alive",
        "bytes",
        "context",
        "device",
        "end",
        "kind",
        "mapped",
        "mapping_bytes",
        "memory",
        "registered",
        "start",
    )

    def __init__(self, kind: MemoryKind, device: int, size_bytes: int, *, registered_at: int = 0) -> None:
        """New memory, or that at `registered_at`. Raises MemoryError where the machine has no such memory."""
        self.registered = registered_at != 0
        self.memory: npt.NDArray[np.uint8] = (
            _bytes_at(registered_at, size_bytes) if self.registered else _new_bytes(size_bytes)
        )
        self.kind: MemoryKind = kind
        self.device = device
        self.bytes = size_bytes
        self.start: int = self.memory.ctypes.data
        self.end = self.start + size_bytes
        self.alive = self.mapped = True
        self.context: Context = "primary"
        self.mapping_bytes = 0
        self._fill(NEW_BYTE)

    def range_at(self, address: int) -> tuple[int, int]:
        """Start and bytes of what the driver takes for one range there: all of it, or of virtual memory a mapping."""
        if not self.mapping_bytes:
            return self.start, self.bytes
        start = address - (address - self.start) % self.mapping_bytes
        return start, min(self.mapping_bytes, self.end - start)

    def retire(self) -> None:
        """Mark it freed. Work that still names it will find `alive` false and leave the bytes alone."""
        self.alive = False
        self._fill(FREED_BYTE)
        # A finished copy or a cache may name this allocation for long; it must not hold the bytes.
        self.memory = np.empty(0, dtype=np.uint8)

    def _fill(self, value: int) -> None:
        if self.bytes <= FILL_BYTES_MAX and not self.registered:
            self.memory.fill(value)


def _new_bytes(size_bytes: int) -> npt.NDArray[np.uint8]:
    room = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    skipped = -room.ctypes.data % ALIGNMENT_BYTES
    return room[skipped : skipped + size_bytes]


def _bytes_at(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


class MemoryMap:
    """The live allocations by address."""

    __slots__ = ("_allocations", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._allocations: list[Allocation] = []

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, allocation: Allocation) -> None:
        position = bisect_left(self._starts, allocation.start)
        self._starts.insert(position, allocation.start)
        self._allocations.insert(position, allocation)

    def remove(self, allocation: Allocation) -> None:
        position = bisect_left(self._starts, allocation.start)
        del self._starts[position], self._allocations[position]

    def find(self, address: int) -> Allocation | None:
        """The live allocation that holds `address`."""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        allocation = self._allocations[position]
        return allocation if address < allocation.end else None

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a live allocation has bytes within [start, end)."""
        position = bisect_left(self._starts, end) - 1
        return position >= 0 and self._allocations[position].end > start

    def live_bytes(self, kind: MemoryKind, device: int) -> int:
        """Bytes allocated now, of a device, or of the host whatever the device that asked."""
        return sum(a.bytes for a in self._allocations if a.kind == kind and (kind == "host" or a.device == device))
