"""The few CUresult values that numba_kvswap itself speaks of. Needs no CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
INVALID_DEVICE: Final = 101
INVALID_CONTEXT: Final = 201
INVALID_HANDLE: Final = 400
NOT_READY: Final = 600
ILLEGAL_ADDRESS: Final = 700
LAUNCH_FAILED: Final = 719
UNKNOWN: Final = 999

NAMES: Mapping[int, str] = MappingProxyType(
    {
        SUCCESS: "CUDA_SUCCESS",
        INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT: "CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE: "CUDA_ERROR_INVALID_HANDLE",
        NOT_READY: "CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS",
        LAUNCH_FAILED: "CUDA_ERROR_LAUNCH_FAILED",
        UNKNOWN: "CUDA_ERROR_UNKNOWN",
    }
)
