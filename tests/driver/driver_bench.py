"""A simulated driver with a little memory, and its entry points as Python functions."""

from __future__ import annotations

import ctypes

import numpy as np

from numba_kvswap.driver import SimulatedDriver

WORD = ctypes.c_uint64
LAZY = b""
EAGER = b"\x01" * 4000


class Bench:
    """A driver with a current context, 256 bytes of device and of pinned memory, and its entry points."""

    def __init__(self, schedule: bytes | None = LAZY, seed: int = 0, **options):
        self.driver = SimulatedDriver(seed, schedule, **options)
        self._copy = ctypes.CFUNCTYPE(ctypes.c_int32, WORD, WORD, WORD, WORD)(self.driver.entry_points.memcpy_async)
        self._batch = ctypes.CFUNCTYPE(ctypes.c_int32, *[WORD] * 9)(self.driver.entry_points.memcpy_batch_async)
        self._rows = ctypes.CFUNCTYPE(ctypes.c_int32, WORD, WORD)(self.driver.entry_points.memcpy_2d_async)
        with self.driver.activate(0):
            self.device = self.driver.device_alloc(256)
            self.host = self.driver.host_alloc(256)

    def bytes_at(self, address: int) -> np.ndarray:
        return self.driver.allocation_at(address).memory

    def copy(self, target: int, source: int, size: int, stream: int = 0) -> int:
        return self._copy(target, source, size, stream)

    def rows(self, **fields: int) -> int:
        stream = fields.pop("stream", 0)
        words = self.words(**fields)
        status = self._rows(words.ctypes.data, stream)
        words[:] = 0xFFFF  # the struct is the caller's again once the call has returned
        return status

    def batch(self, copies, stream: int, order: int = 1) -> int:
        """copies: target, source and bytes of each. order: the source access order."""
        columns = np.array(copies, np.uint64).T.copy()
        attributes, first_and_failed = np.array([order, 0, 0, 0, 0, 0], np.uint32), np.zeros(2, np.uint64)
        places = (attributes.ctypes.data, first_and_failed.ctypes.data, 1, first_and_failed.ctypes.data + 8)
        return self._batch(*(column.ctypes.data for column in columns), len(copies), *places, stream)

    def words(self, **changed: int) -> np.ndarray:
        """A CUDA_MEMCPY2D: 4 rows of 16 bytes, host rows 16 apart to device rows 32 apart."""
        side = ("x", "y", "type", "host", "device", "array", "pitch")
        names = [*(f"s{name}" for name in side), *(f"t{name}" for name in side), "width", "rows"]
        fields = {"stype": 1, "shost": self.host, "spitch": 16, "ttype": 2, "tdevice": self.device, "tpitch": 32}
        fields = fields | {"width": 16, "rows": 4} | changed
        return np.array([fields.get(name, 0) for name in names], dtype=np.uint64)
