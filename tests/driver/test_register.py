"""Memory of the process's own, pinned by the driver: host_register, host_unregister, discard_registrations."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap.driver import (
    KVSwapDriverError,
    PointerInfo,
    SimulatedDriver,
    cuda_available,
    cuda_driver,
    why_no_cuda,
)
from numba_kvswap.driver.simulated_memory import FILL_BYTES_MAX, MemoryMap

MIB = 1 << 20
WORD = ctypes.c_uint64
ALREADY, NOT_REGISTERED = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
_CUDA = pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not cuda_available(), reason=why_no_cuda())])


@pytest.fixture(params=["simulated", _CUDA])
def driver(request):
    """The driver, with a current context."""
    driver = SimulatedDriver(schedule=b"") if request.param == "simulated" else cuda_driver()
    with driver.activate(0):
        yield driver


@pytest.fixture
def simulated():
    driver = SimulatedDriver(schedule=b"")
    with driver.activate(0):
        yield driver


@pytest.fixture
def memory():
    """1 MiB of this process's own, at the start of a system block, holding random bytes."""
    room = np.empty(MIB + 4096, np.uint8)
    skipped = -room.ctypes.data % 4096
    room[:] = np.random.default_rng(0).integers(0, 256, room.size, np.uint8)
    return room[skipped : skipped + MIB]


def copy(driver, target: int, source: int, size_bytes: int, stream: int = 0) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int32, WORD, WORD, WORD, WORD)(driver.entry_points.memcpy_async)(
        target, source, size_bytes, stream
    )


def test_registered_memory_is_pinned_host_memory_with_the_bytes_it_had(driver, memory):
    start, before = memory.ctypes.data, memory.copy()
    driver.host_register(start, MIB)
    for address in (start, start + MIB - 1):
        found = driver.pointer_info(address)
        assert found == PointerInfo("host", start, MIB, 0, found.device_address)
        assert found.device_address != 0  # kernels reach it
    np.testing.assert_array_equal(memory, before)
    device = driver.device_alloc(MIB)
    assert copy(driver, device, start, MIB) == 0
    driver.stream_synchronize(0)
    memory[:] = 0
    assert copy(driver, start, device, MIB) == 0
    driver.stream_synchronize(0)
    driver.device_free(device)
    driver.host_unregister(start)
    assert driver.pointer_info(start).kind == "unknown"
    np.testing.assert_array_equal(memory, before)


def test_memory_is_registered_once_and_unregistered_once(driver, memory):
    start = memory.ctypes.data
    for _ in range(2):  # what failed before does not stick
        driver.host_register(start, MIB)
        with pytest.raises(KVSwapDriverError, match=f"cuMemHostRegister failed with {ALREADY}"):
            driver.host_register(start, MIB)
        driver.host_unregister(start)
        with pytest.raises(KVSwapDriverError, match=f"cuMemHostUnregister failed with {NOT_REGISTERED}"):
            driver.host_unregister(start)


def test_adjacent_registrations_are_two_ranges(driver, memory):
    start, half = memory.ctypes.data, MIB // 2
    for each in (start, start + half):
        driver.host_register(each, half)
    for address, first in ((start + half - 1, start), (start + half, start + half)):
        found = driver.pointer_info(address)
        assert (found.kind, found.start, found.bytes) == ("host", first, half)
    for each in (start, start + half):
        driver.host_unregister(each)


def test_discarded_registrations_are_undone_and_let_their_memory_go(driver, memory):
    class Backing:
        pass

    start, half, backing = memory.ctypes.data, MIB // 2, Backing()
    for each in (start, start + half):
        driver.host_register(each, half)
    gone = weakref.ref(backing)
    driver.discard_registrations((start, start + half), backing, 0)
    del backing
    assert driver.pointer_info(start).kind == driver.pointer_info(start + half).kind == "unknown"
    gc.collect()
    assert gone() is None


# ---- the simulated driver alone ----


def test_a_discard_waits_for_the_next_call_and_keeps_the_memory_until_then(simulated, memory):
    class Backing:
        pass

    start, backing = memory.ctypes.data, Backing()
    simulated.host_register(start, MIB)
    gone = weakref.ref(backing)
    simulated.discard_registrations((start,), backing, 0)
    del backing
    assert gone() is not None and simulated.calls["cuMemHostUnregister"] == 0
    assert simulated.live_allocations() == 0
    assert gone() is None and simulated.calls["cuMemHostUnregister"] == 1
    assert simulated.calls["cuMemFreeHost"] == 0


def test_a_driver_that_refuses_keeps_the_memory_mapped(simulated, memory):
    """As the real driver's: Driver's own discard, which runs at once."""

    class Backing:
        pass

    start, backing = memory.ctypes.data, Backing()
    simulated.host_register(start, MIB)
    gone = weakref.ref(backing)
    simulated.fail("cuMemHostUnregister")
    super(SimulatedDriver, simulated).discard_registrations((start,), backing, 0)
    del backing
    gc.collect()
    assert gone() is not None


@pytest.mark.parametrize("size_bytes", [FILL_BYTES_MAX // 64, 1])
def test_a_late_copy_of_unregistered_memory_is_found_out_and_touches_nothing(simulated, memory, size_bytes):
    start, before = memory.ctypes.data, memory.copy()
    simulated.host_register(start, size_bytes)
    device, stream = simulated.device_alloc(size_bytes), simulated.stream_create()
    assert copy(simulated, start, device, size_bytes, stream) == 0
    simulated.host_unregister(start)
    with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*target's host memory"):
        simulated.stream_synchronize(stream)
    np.testing.assert_array_equal(memory, before)
    assert copy(simulated, start, device, size_bytes, stream) == 1


def test_a_copy_across_two_registrations_is_refused(simulated, memory):
    start, device = memory.ctypes.data, simulated.device_alloc(MIB)
    simulated.host_register(start, MIB // 2)
    simulated.host_register(start + MIB // 2, MIB // 2)
    assert copy(simulated, device, start, MIB // 2) == 0
    assert copy(simulated, device, start, MIB // 2 + 1) == 1
    assert copy(simulated, device, start + MIB // 2 - 1, 2) == 1
    simulated.synchronize()


@pytest.mark.parametrize(("at", "size_bytes"), [(0, 0), (0, -1)])
def test_nothing_cannot_be_registered(simulated, memory, at, size_bytes):
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
        simulated.host_register(memory.ctypes.data + at, size_bytes)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
        simulated.host_register(0, 1)


def test_what_was_allocated_is_freed_and_what_was_registered_unregistered(simulated, memory):
    allocated, start = simulated.host_alloc(64), memory.ctypes.data
    simulated.host_register(start, 64)
    with pytest.raises(KVSwapDriverError, match=NOT_REGISTERED):
        simulated.host_unregister(allocated)
    with pytest.raises(KVSwapDriverError, match=NOT_REGISTERED):
        simulated.host_unregister(start + 1)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
        simulated.host_free(start)
    with pytest.raises(KVSwapDriverError, match=ALREADY):
        simulated.host_register(allocated, 64)
    assert simulated.live_allocations() == 2


def test_registered_memory_counts_as_pinned(memory):
    driver = SimulatedDriver(memory_bytes_max=1000)
    with driver.activate(0):
        driver.host_register(memory.ctypes.data, 600)
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            driver.host_register(memory.ctypes.data + 600, 600)
        driver.host_unregister(memory.ctypes.data)
        driver.host_register(memory.ctypes.data + 600, 600)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_CONTEXT"):
        driver.host_register(memory.ctypes.data, 1)


class _Range:
    def __init__(self, start: int, size_bytes: int) -> None:
        self.start, self.end = start, start + size_bytes


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=12), st.integers(0, 36), st.integers(1, 8))
def test_overlaps_are_those_of_the_bytes(ranges, start, size_bytes):
    taken, held = MemoryMap(), set()
    for each in (_Range(*pair) for pair in ranges):
        bytes_of = set(range(each.start, each.end))
        assert taken.overlaps(each.start, each.end) == bool(bytes_of & held)
        if not bytes_of & held:
            taken.add(each)
            held |= bytes_of
    assert taken.overlaps(start, start + size_bytes) == bool(held & set(range(start, start + size_bytes)))
