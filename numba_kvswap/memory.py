"""Memory taken from a driver and given back once: by `close`, or when its last user is gone."""

from __future__ import annotations

import sys
import threading
from typing import Literal

from numba_kvswap.driver import Driver


class DriverMemory:
    """`size_bytes` bytes of device memory, or of pinned host memory (portable and mapped).

    Raises KVSwapDriverError where the driver has no such memory left. `address` is 0 once closed.
    """

    def __init__(self, driver: Driver, device: int, size_bytes: int, kind: Literal["device", "host"]) -> None:
        self.address = 0
        self.driver, self.device, self.size_bytes, self.kind = driver, device, size_bytes, kind
        self._closing = threading.RLock()
        self._freeing = False
        with driver.activate(device):
            allocate = driver.device_alloc if kind == "device" else driver.host_alloc
            self.address = allocate(max(1, size_bytes))  # a driver refuses to allocate nothing

    def close(self) -> None:
        """Give the memory back; a call after one that succeeded does nothing. Raises KVSwapDriverError."""
        with self._closing:
            if not self.address or self._freeing:  # freeing: a finalizer of ours came here in the midst of it
                return
            self._freeing = True
            try:
                with self.driver.activate(self.device):
                    (self.driver.device_free if self.kind == "device" else self.driver.host_free)(self.address)
                    self.address = 0  # here and not later: leaving `activate` may fail too
            finally:
                self._freeing = False

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():  # the process's end frees it, and the driver may be gone already
            self.driver.discard_memory(self.address, self.kind, self.device)
