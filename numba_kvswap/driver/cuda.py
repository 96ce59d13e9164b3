"""The real driver, through cuda-bindings. Importing this touches neither the bindings nor a GPU."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from time import perf_counter
from types import ModuleType
from typing import Any, Literal

import numpy as np

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.forked import FORKED_ADVICE
from numba_kvswap.driver.statuses import INVALID_CONTEXT, INVALID_VALUE, NOT_READY
from numba_kvswap.driver.table import Driver, EntryPoints, PointerInfo

__all__ = ["CudaDriver", "cuda_available", "cuda_driver", "why_no_cuda"]

# The entry points' shapes have not changed since 12.0, and asking for a version pins the shape.
ENTRY_POINT_VERSION = 12000
# cuMemcpyBatchAsync came with 12.8, and in 13.0 lost a parameter: by this version it has one shape everywhere.
BATCH_VERSION = 12080
# In the order that pointer_info takes them: MEMORY_TYPE, IS_MANAGED, RANGE_START_ADDR, RANGE_SIZE, DEVICE_ORDINAL,
# DEVICE_POINTER, which is null where a kernel cannot reach the memory, CONTEXT, MAPPED.
_POINTER_ATTRIBUTES = (ctypes.c_int * 8)(2, 8, 11, 12, 9, 3, 1, 13)
# MAPPING_BASE_ADDR, MAPPING_SIZE: asked apart, of virtual memory alone, whose range is all that was reserved.
_MAPPING_ATTRIBUTES = (ctypes.c_int * 2)(19, 18)
_GET_POINTER_ATTRIBUTES = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64
)
_MEMORY_KINDS: Mapping[int, Literal["host", "device", "managed"]] = {1: "host", 2: "device"}
_UNKNOWN = PointerInfo("unknown", 0, 0, -1)

# Calls that never wait are made without giving up the GIL, which the bindings do: beside a busy thread each would cost
# a switch interval, 5 ms, to get it back.
_OF_ONE_HANDLE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_uint64)

_AS_IT_IS = nullcontext()
# What is due soon takes half of that.
_SOON_S = 150e-6
NO_CUDA_ADVICE = "SimulatedDevice runs everything without a GPU"


def _pause(function: str, pause_us: int, turns: int) -> tuple[np.uint64, np.uint64, int]:
    """A function of the C library to call between questions about an event, with what, and how many questions."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value
    return np.uint64(address or 0), np.uint64(pause_us), turns


# For some 3 ms at first other threads are let in between two questions; then comes a sleep of 70 us, the system's
# shortest. After some 50 ms Python has a look at its signals.
_IMPATIENTLY, _PATIENTLY = _pause("sched_yield", 0, 4000), _pause("usleep", 20, 700)


@lru_cache(maxsize=1)
def cuda_driver() -> CudaDriver:
    """The process's CUDA driver, initialised once.

    Raises:
        ImportError: cuda-bindings is not installed.
        KVSwapDriverError: there is no driver library, no device, or the driver does not start.
    """
    return CudaDriver(_import_bindings())


def cuda_available() -> bool:
    """Whether `cuda_driver` works here."""
    return not why_no_cuda()


@lru_cache(maxsize=1)
def why_no_cuda() -> str:
    """Why `cuda_driver` does not work here, as a sentence; empty where it does. The answer is kept."""
    try:
        cuda_driver()
    except (ImportError, KVSwapDriverError) as error:
        return str(error)
    return ""


_in_forked_child = False


def _forget_in_child() -> None:
    """CUDA that was started before the fork does not start again: whoever asks anew is told."""
    global _in_forked_child  # noqa: PLW0603
    _in_forked_child = _in_forked_child or cuda_driver.cache_info().currsize > 0
    cuda_driver.cache_clear()
    why_no_cuda.cache_clear()


os.register_at_fork(after_in_child=_forget_in_child)


class CudaDriver(Driver):
    """The CUDA driver; get it with `cuda_driver`. Contexts are the devices' primary contexts, as in torch,
    CuPy and Numba, so their streams, events and memory may be used here. Any thread may use it."""

    name = "cuda"
    idle_events_max = 128

    def __init__(self, bindings: ModuleType) -> None:
        if _in_forked_child:
            raise KVSwapDriverError("cuInit", "CUDA_ERROR_NOT_INITIALIZED", advice=FORKED_ADVICE)
        super().__init__()
        self._cuda = bindings
        self._contexts: dict[int, int] = {}
        self._contexts_lock = threading.Lock()
        self._start()
        self.entry_points = EntryPoints(
            memcpy_async=self._address_of(b"cuMemcpyAsync"),
            memcpy_2d_async=self._address_of(b"cuMemcpy2DAsync"),
            event_record=self._address_of(b"cuEventRecord"),
            stream_wait_event=self._address_of(b"cuStreamWaitEvent"),
            launch_kernel=self._address_of(b"cuLaunchKernel"),
            memcpy_batch_async=self._address_or_0(b"cuMemcpyBatchAsync", BATCH_VERSION),
        )
        self.pitch_bytes_max = self._smallest_pitch_bytes_max()
        self._get_current_context = _OF_ONE_HANDLE(self._address_of(b"cuCtxGetCurrent"))
        self._set_current_context = _OF_ONE_HANDLE(self._address_of(b"cuCtxSetCurrent"))
        from numba_kvswap.submit import ask_again  # not at the top: a machine without CUDA has no need of Numba

        self._ask_again = ask_again
        self._query_event_at = np.uint64(self._address_of(b"cuEventQuery"))
        self._query_event = _OF_ONE_HANDLE(int(self._query_event_at))
        self._get_pointer_attributes = _GET_POINTER_ATTRIBUTES(self._address_of(b"cuPointerGetAttributes"))

    # ---- facts ----

    def describe(self) -> Mapping[str, object]:
        """Facts about every device; the unnumbered ones are those of device 0."""
        version = self._call("cuDriverGetVersion")
        devices = [self._describe_device(ordinal) for ordinal in range(self.devices)]
        return {
            "driver": "cuda",
            "driver_version": f"{version // 1000}.{version % 1000 // 10}",
            "devices": self.devices,
            **devices[0],
            **{f"device_{ordinal}": facts for ordinal, facts in enumerate(devices) if ordinal},
        }

    def result_name(self, status: int) -> str:
        try:
            return str(self._cuda.CUresult(status).name)
        except ValueError:  # the bindings are older than the driver
            return f"CUresult {status}"

    def compute_capability(self, device: int) -> tuple[int, int]:
        return (
            self._attribute("COMPUTE_CAPABILITY_MAJOR", device),
            self._attribute("COMPUTE_CAPABILITY_MINOR", device),
        )

    # ---- contexts ----

    def activate(self, device: int) -> AbstractContextManager[None]:
        context = self._primary_context(device)
        current = self._get_current()
        return _AS_IT_IS if current == context else _Switched(self, context)

    def _get_current(self) -> int:
        """The calling thread's current context, 0 where there is none."""
        current = ctypes.c_void_p()
        self._check("cuCtxGetCurrent", self._get_current_context(ctypes.addressof(current)))
        return current.value or 0

    def _set_current(self, context: int) -> None:
        self._check("cuCtxSetCurrent", self._set_current_context(context))

    def current_device(self) -> int | None:
        status, device = self._cuda.cuCtxGetDevice()
        if status == INVALID_CONTEXT:
            return None
        self._check("cuCtxGetDevice", status)
        return int(device)

    # ---- memory ----

    def device_alloc(self, size_bytes: int) -> int:
        return int(self._call("cuMemAlloc", size_bytes))

    def device_free(self, address: int) -> None:
        self._call("cuMemFree", self._cuda.CUdeviceptr(address))

    def host_alloc(self, size_bytes: int) -> int:
        flags = self._cuda.CU_MEMHOSTALLOC_PORTABLE | self._cuda.CU_MEMHOSTALLOC_DEVICEMAP
        return int(self._call("cuMemHostAlloc", size_bytes, flags))

    def host_free(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def host_register(self, address: int, size_bytes: int) -> None:
        flags = self._cuda.CU_MEMHOSTREGISTER_PORTABLE | self._cuda.CU_MEMHOSTREGISTER_DEVICEMAP
        self._call("cuMemHostRegister", address, size_bytes, flags)

    def host_unregister(self, address: int) -> None:
        self._call("cuMemHostUnregister", address)

    def pointer_info(self, address: int) -> PointerInfo:
        # Not through the bindings: by the sources of 13.3.1 they give 0 for every DEVICE_ORDINAL, since they let the
        # driver write one field and read another (github.com/NVIDIA/cuda-python/issues/2928).
        status, values = self._pointer_attributes(_POINTER_ATTRIBUTES, address)
        # A pageable address is no mistake here, and the driver keeps no error of it.
        if status == INVALID_VALUE:
            return _UNKNOWN
        self._check("cuPointerGetAttributes", status)
        memory_type, managed, start, size_bytes, device, device_address, context, mapped = values
        kind = "managed" if managed else _MEMORY_KINDS.get(memory_type)
        if kind is None:
            return _UNKNOWN
        if kind != "device":
            return PointerInfo(kind, start, size_bytes, device, device_address)
        if context:
            # Of a device whose primary context nobody asked us for it may be any: that device is not ours to ask about.
            foreign = context != self._contexts.get(device, context)
            return PointerInfo(kind, start, size_bytes, device, device_address, "another" if foreign else "primary")
        mapping_start, mapping_end = self._mapping_at(address) or (0, 1 << 64 if mapped else 0)
        end = min(start + size_bytes, mapping_end)
        start = max(start, mapping_start)
        return PointerInfo(kind, start, end - start, device, device_address, "none") if start < end else _UNKNOWN

    def _pointer_attributes(self, attributes: ctypes.Array[ctypes.c_int], address: int) -> tuple[int, Sequence[int]]:
        values = (ctypes.c_uint64 * len(attributes))()
        start = ctypes.addressof(values)
        places = (ctypes.c_void_p * len(values))(*range(start, start + ctypes.sizeof(values), 8))
        return self._get_pointer_attributes(len(values), attributes, places, address), values[:]

    def _mapping_at(self, address: int) -> tuple[int, int] | None:
        """Start and end of the mapping that holds an address of virtual memory, None where the driver names none."""
        status, (start, size_bytes) = self._pointer_attributes(_MAPPING_ATTRIBUTES, address)
        return (start, start + size_bytes) if not status and start <= address < start + size_bytes else None

    def copy_now(self, target: int, source: int, size_bytes: int) -> None:
        if size_bytes:
            pointer = self._cuda.CUdeviceptr
            self._call("cuMemcpy", pointer(target), pointer(source), size_bytes)
            # From pageable or pinned memory cuMemcpy may return before its last bytes have landed.
            self._call("cuStreamSynchronize", self._cuda.CUstream(0))

    # ---- kernels ----

    def load_kernel(self, image: bytes, symbol: str) -> int:
        """The CUfunction of that name in compiled machine code, loaded for the current context and never unloaded."""
        module = self._call("cuModuleLoadData", image)
        return int(self._call("cuModuleGetFunction", module, symbol.encode()))

    # ---- streams ----

    def stream_create(self, *, urgent: bool = False) -> int:
        _least, greatest = self._call("cuCtxGetStreamPriorityRange") if urgent else (0, 0)
        flags = self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return int(self._call("cuStreamCreateWithPriority", flags, int(greatest)))

    def stream_destroy(self, stream: int) -> None:
        self._call("cuStreamDestroy", self._cuda.CUstream(stream))

    def stream_synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", self._cuda.CUstream(stream))

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", self._cuda.CUstream(stream), self._cuda.CUevent(event), 0)

    # ---- events ----

    def event_create(self, *, timed: bool = True) -> int:
        flags = self._cuda.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        return int(self._call("cuEventCreate", flag.value))

    def event_destroy(self, event: int) -> None:
        self._call("cuEventDestroy", self._cuda.CUevent(event))

    def event_record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", self._cuda.CUevent(event), self._cuda.CUstream(stream))

    def event_done(self, event: int) -> bool:
        status = self._query_event(event)
        if status == NOT_READY:
            return False
        self._check("cuEventQuery", status)
        return True

    def event_synchronize(self, event: int, *, soon: bool = False, timeout_s: float | None = None) -> bool:
        started, limit_s = perf_counter(), math.inf if timeout_s is None else timeout_s
        # With the GIL: a thread that gives it up beside a busy one gets it back 5 ms later.
        asked_for_s = min(_SOON_S, limit_s) if soon else 0.0
        while perf_counter() - started < asked_for_s:
            if self.event_done(event):
                return True
        # Not the driver's own wait, which hears of no signal: a stream that stalls would be beyond Ctrl-C.
        asked, how = (self._query_event_at, np.uint64(event), NOT_READY), _IMPATIENTLY
        while (status := self._ask_again(*asked, *how)) == NOT_READY:
            if perf_counter() - started >= limit_s:
                return False
            how = _PATIENTLY
        self._check("cuEventQuery", status)
        return True

    def event_seconds(self, start: int, end: int) -> float:
        milliseconds = self._call("cuEventElapsedTime", self._cuda.CUevent(start), self._cuda.CUevent(end))
        return float(milliseconds) / 1e3

    # ---- the steps that verbs share ----

    def _call(self, name: str, *arguments: object) -> Any:
        """Call a driver function; its result, a list of them where there are several, None where there is none."""
        status, *results = getattr(self._cuda, name)(*arguments)
        self._check(name, status)
        return results if len(results) > 1 else results[0] if results else None

    def _check(self, call: str, status: Any, advice: str = "") -> None:
        if status != 0:
            raise KVSwapDriverError(call, self.result_name(int(status)), advice=advice)

    def _start(self) -> None:
        try:
            (status,) = self._cuda.cuInit(0)
        except RuntimeError as error:  # how the bindings say that libcuda is not there
            raise KVSwapDriverError(
                "cuInit", "CUDA_ERROR_NOT_FOUND", advice=f"no CUDA driver library: {error} {NO_CUDA_ADVICE}"
            ) from error
        self._check("cuInit", status, f"the CUDA driver does not start; {NO_CUDA_ADVICE}")
        self.devices = int(self._call("cuDeviceGetCount"))
        if self.devices == 0:
            raise KVSwapDriverError("cuDeviceGetCount", "CUDA_ERROR_NO_DEVICE", advice=NO_CUDA_ADVICE)

    def _address_or_0(self, symbol: bytes, version: int) -> int:
        flags = self._cuda.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT.value
        status, address, found = self._cuda.cuGetProcAddress(symbol, version, flags)
        return int(address) if int(status) == int(found) == 0 else 0

    def _address_of(self, symbol: bytes) -> int:
        flags = self._cuda.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT.value
        status, address, found = self._cuda.cuGetProcAddress(symbol, ENTRY_POINT_VERSION, flags)
        self._check("cuGetProcAddress", status, f"asked for {symbol.decode()}; update the NVIDIA driver")
        if int(found) != 0:
            raise KVSwapDriverError(
                "cuGetProcAddress", found.name, advice=f"asked for {symbol.decode()}; update the NVIDIA driver"
            )
        return int(address)  # EntryPoints refuses null

    def _primary_context(self, device: int) -> int:
        # Retained once and never released: a release here could end a context that a framework still uses.
        known = self._contexts.get(device)
        if known is not None:  # without the lock, which a finalizer in the midst of the lines below could not take
            return known
        with self._contexts_lock:
            if device not in self._contexts:
                handle = self._call("cuDeviceGet", device)
                self._contexts[device] = int(self._call("cuDevicePrimaryCtxRetain", handle))
            return self._contexts[device]

    def _attribute(self, name: str, ordinal: int) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", attribute, self._call("cuDeviceGet", ordinal)))

    def _smallest_pitch_bytes_max(self) -> int:
        return min(self._attribute("MAX_PITCH", ordinal) for ordinal in range(self.devices))

    def _describe_device(self, ordinal: int) -> dict[str, object]:
        device = self._call("cuDeviceGet", ordinal)
        major, minor = self.compute_capability(ordinal)
        return {
            "device_name": _text(self._call("cuDeviceGetName", 128, device)),
            "memory_bytes": int(self._call("cuDeviceTotalMem", device)),
            "compute_capability": f"{major}.{minor}",
            "multiprocessors": self._attribute("MULTIPROCESSOR_COUNT", ordinal),
            "copy_engines": self._attribute("ASYNC_ENGINE_COUNT", ordinal),
            "pci_bus_id": _text(self._call("cuDeviceGetPCIBusId", 32, device)),
        }


class _Switched(AbstractContextManager[None]):
    """Within it another context is current. A class, not a generator: a swap goes through it more than once."""

    __slots__ = ("_before", "_context", "_driver")

    def __init__(self, driver: CudaDriver, context: int) -> None:
        self._driver, self._context = driver, context

    def __enter__(self) -> None:
        # Null too: a thread that came without a context leaves without one.
        self._before = self._driver._get_current()
        self._driver._set_current(self._context)

    def __exit__(self, *_error: object) -> None:
        self._driver._set_current(self._before)


def _import_bindings() -> ModuleType:
    try:
        from cuda.bindings import driver  # not at the top: a machine without CUDA imports us too
    except ImportError as error:
        raise ImportError(
            f"cuda-bindings is not installed ({error}); pip install cuda-bindings. {NO_CUDA_ADVICE}"
        ) from error
    module: ModuleType = driver
    return module


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode()
