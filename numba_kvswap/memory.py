"""Memory taken from a driver and given back once: by `close`, or when its last user is gone."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from typing import Literal

from numba_kvswap.driver import Driver


class OwnedMemory(ABC):
    """`size_bytes` bytes at `address`, which is 0 until there is memory and once it is closed.

    Attributes: driver, device (whose context every call of its own is made in), size_bytes, address; pieces: where
    each registration starts, of memory that is registered with the driver and not allocated by it.
    """

    pieces: tuple[int, ...] = ()

    def __init__(self, driver: Driver, device: int, size_bytes: int) -> None:
        self.address = 0
        self.driver, self.device, self.size_bytes = driver, device, size_bytes
        self._closing = threading.RLock()
        self._freeing = False

    def close(self) -> None:
        """Give the memory back; a call after one that succeeded does nothing. Raises KVSwapDriverError."""
        if not self.address:
            return
        with self.driver.activate(self.device), self._closing:  # in this order: in a forked child the lock may be held
            if not self.address or self._freeing:  # freeing: a finalizer of ours came here in the midst of it
                return
            self._freeing = True
            try:
                self._free()
                self.address = 0  # here and not later: leaving `activate` may fail too
            finally:
                self._freeing = False

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():  # the process's end frees it, and the driver may be gone already
            self._discard()

    @abstractmethod
    def _free(self) -> None:
        """Give the memory back, in the device's context. What fails is raised, and tried again by the next close."""

    @abstractmethod
    def _discard(self) -> None:
        """The same from a finalizer, in the midst of any call. Never raises."""


class DriverMemory(OwnedMemory):
    """`size_bytes` bytes of device memory, or of pinned host memory (portable and mapped).

    Raises KVSwapDriverError where the driver has no such memory left.
    """

    def __init__(self, driver: Driver, device: int, size_bytes: int, kind: Literal["device", "host"]) -> None:
        super().__init__(driver, device, size_bytes)
        self.kind = kind
        with driver.activate(device):
            allocate = driver.device_alloc if kind == "device" else driver.host_alloc
            self.address = allocate(max(1, size_bytes))  # a driver refuses to allocate nothing

    def _free(self) -> None:
        (self.driver.device_free if self.kind == "device" else self.driver.host_free)(self.address)

    def _discard(self) -> None:
        self.driver.discard_memory(self.address, self.kind, self.device)
