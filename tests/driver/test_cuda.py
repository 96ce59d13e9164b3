"""Every verb of the real driver, on a machine that has one; what it says where there is none, everywhere."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import numpy as np
import pytest

from numba_kvswap.driver import (
    CudaDriver,
    KVSwapDriverError,
    PointerInfo,
    cuda_available,
    cuda_driver,
    why_no_cuda,
)
from numba_kvswap.driver.statuses import NAMES

MIB = 1 << 20
needs_gpu = pytest.mark.skipif(not cuda_available(), reason=why_no_cuda())
UNKNOWN = PointerInfo("unknown", 0, 0, -1)


def test_importing_the_driver_imports_neither_numba_nor_cuda():
    code = "import sys, numba_kvswap.driver; print([m for m in sys.modules if m.split('.')[0] in ('numba', 'cuda')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(cuda_available(), reason="this machine has CUDA")
def test_without_cuda_the_reason_is_given_and_the_way_out():
    assert "SimulatedDevice" in why_no_cuda()
    with pytest.raises((ImportError, KVSwapDriverError)):
        cuda_driver()


def test_statuses_are_those_of_the_bindings():
    result = pytest.importorskip("cuda.bindings.driver").CUresult
    assert {value: result(value).name for value in NAMES} == dict(NAMES)


def test_pointer_attributes_are_those_of_the_bindings():
    from numba_kvswap.driver import cuda

    attribute = pytest.importorskip("cuda.bindings.driver").CUpointer_attribute
    ranges = ("MEMORY_TYPE", "IS_MANAGED", "RANGE_START_ADDR", "RANGE_SIZE", "DEVICE_ORDINAL", "DEVICE_POINTER")
    for found, names in (
        (cuda._POINTER_ATTRIBUTES, (*ranges, "CONTEXT", "MAPPED")),
        (cuda._MAPPING_ATTRIBUTES, ("MAPPING_BASE_ADDR", "MAPPING_SIZE")),
    ):
        assert list(found) == [int(getattr(attribute, f"CU_POINTER_ATTRIBUTE_{name}")) for name in names]


MANAGED, RANGE, MAPPING = {8: 1}, {11: 0x1000, 12: 0x4000}, {19: 0x2000, 18: 0x1000}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({1: 7, 2: 2, 13: 1}, ("device", 0x1000, 0x4000, "primary")),
        ({1: 8, 2: 2, 13: 1}, ("device", 0x1000, 0x4000, "another")),
        ({1: 8, 2: 2, 9: 1, 13: 1}, ("device", 0x1000, 0x4000, "primary")),  # of a device nobody has used here
        ({2: 2, 13: 1}, ("device", 0x1000, 0x4000, "none")),  # stream-ordered: it names no mapping
        ({2: 2, 13: 1} | MAPPING, ("device", 0x2000, 0x1000, "none")),
        ({2: 2, 13: 1, 19: 0, 18: 1 << 40}, ("device", 0x1000, 0x4000, "none")),
        ({2: 2, 13: 0}, ("unknown", 0, 0, "primary")),  # reserved and not mapped
        ({1: 7, 2: 1, 13: 1} | MAPPING, ("host", 0x1000, 0x4000, "primary")),
        ({1: 7, 2: 2, 13: 1} | MANAGED, ("managed", 0x1000, 0x4000, "primary")),
        ({}, ("unknown", 0, 0, "primary")),
    ],
)
def test_what_the_driver_says_of_an_address_in_our_words(attributes, expected):
    """A driver in which device 0 has the primary context 7, and which says this of address 0x2800."""

    def answer(count, names, places, address):
        for name, place in zip(names[:count], places[:count], strict=True):
            ctypes.c_uint64.from_address(place).value = (RANGE | attributes).get(name, 0)
        return 0

    driver = CudaDriver.__new__(CudaDriver)
    driver._contexts, driver._get_pointer_attributes = {0: 7}, answer
    info = driver.pointer_info(0x2800)
    assert (info.kind, info.start, info.bytes, info.context) == expected


@pytest.fixture
def driver():
    driver = cuda_driver()
    with driver.activate(0):
        yield driver


@pytest.fixture
def buffers(driver):
    """Device and pinned memory of 1 MiB, the pinned one as a NumPy array too."""
    device, host = driver.device_alloc(MIB), driver.host_alloc(MIB)
    yield device, host, numpy_at(host, MIB)
    driver.device_free(device)
    driver.host_free(host)


def numpy_at(address: int, size_bytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def memcpy_async(driver: CudaDriver):
    word = ctypes.c_uint64
    return ctypes.CFUNCTYPE(ctypes.c_int32, word, word, word, word)(driver.entry_points.memcpy_async)


def memcpy_2d_async(driver: CudaDriver):
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)(driver.entry_points.memcpy_2d_async)


@pytest.mark.cuda
@needs_gpu
class TestCuda:
    def test_describe(self, driver):
        facts = driver.describe()
        assert facts["memory_bytes"] > 0
        assert facts["device_name"] and facts["driver_version"] and facts["pci_bus_id"]
        assert driver.pitch_bytes_max > 1 << 20

    def test_result_name(self, driver):
        assert driver.result_name(700) == "CUDA_ERROR_ILLEGAL_ADDRESS"
        assert "98765" in driver.result_name(98765)

    def test_one_driver_a_process(self, driver):
        assert cuda_driver() is driver

    def test_activate_restores_no_context(self):
        seen = []

        def visit():
            driver = cuda_driver()
            seen.append(driver.current_device())
            with pytest.raises(ZeroDivisionError), driver.activate(0):
                seen.append(driver.current_device())
                raise ZeroDivisionError
            seen.append(driver.current_device())

        thread = threading.Thread(target=visit)
        thread.start()
        thread.join()
        assert seen == [None, 0, None]

    def test_activate_refuses_a_device_that_is_not_there(self, driver):
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_DEVICE"), driver.activate(99):
            pass
        assert driver.current_device() == 0

    def test_pointer_info_of_device_memory_and_of_an_interior_address(self, driver, buffers):
        device, _, _ = buffers
        for address in (device, device + MIB - 1):
            assert driver.pointer_info(address) == PointerInfo("device", device, MIB, 0, address)

    def test_pointer_info_of_pinned_memory_and_of_an_interior_address(self, driver, buffers):
        _, host, _ = buffers
        for address in (host, host + 12345):
            assert driver.pointer_info(address) == PointerInfo("host", host, MIB, 0, address)

    def test_pointer_info_of_registered_numpy_memory(self, driver):
        from cuda.bindings import driver as cuda

        array = np.zeros(4 * MIB, dtype=np.uint8)
        start = -(-array.ctypes.data // 4096) * 4096  # a page's start, as registration likes it
        (status,) = cuda.cuMemHostRegister(start, MIB, cuda.CU_MEMHOSTREGISTER_PORTABLE)
        assert status == 0
        try:
            assert driver.pointer_info(start + 100) == PointerInfo("host", start, MIB, 0, start + 100)
        finally:
            cuda.cuMemHostUnregister(start)
        assert driver.pointer_info(start + 100) == UNKNOWN

    def test_pointer_info_of_pageable_memory_leaves_no_error_behind(self, driver):
        array = np.zeros(MIB, dtype=np.uint8)
        assert driver.pointer_info(array.ctypes.data) == UNKNOWN
        assert driver.pointer_info(0) == UNKNOWN
        driver.stream_synchronize(0)
        driver.device_free(driver.device_alloc(256))

    def test_pointer_info_needs_no_context(self, driver, buffers):
        device, host, _ = buffers
        seen = []
        thread = threading.Thread(
            target=lambda: seen.extend(driver.pointer_info(address).kind for address in (device, host))
        )
        thread.start()
        thread.join()
        assert seen == ["device", "host"]

    def test_copy_now_from_and_to_pageable_memory(self, driver, buffers):
        device, _, _ = buffers
        given = np.random.default_rng(0).integers(0, 256, MIB, dtype=np.uint8)
        got = np.zeros_like(given)
        driver.copy_now(device, given.ctypes.data, MIB)
        driver.copy_now(got.ctypes.data, device, MIB)
        assert np.array_equal(given, got)
        driver.copy_now(device, given.ctypes.data, 0)

    def test_entry_point_copies_in_stream_order_and_events_time_it(self, driver, buffers):
        device, host, pinned = buffers
        given = np.random.default_rng(1).integers(0, 256, MIB, dtype=np.uint8)
        pinned[:] = given
        first, second = driver.stream_create(), driver.stream_create()
        start, landed = driver.event_create(), driver.event_create()
        copy = memcpy_async(driver)
        driver.event_record(start, first)
        assert copy(device, host, MIB, first) == 0
        driver.event_record(landed, first)
        driver.stream_wait_event(second, landed)
        assert copy(host, device, MIB // 2, second) == 0
        driver.stream_synchronize(second)
        driver.event_synchronize(landed)
        assert driver.event_done(landed)
        assert 0 < driver.event_seconds(start, landed) < 1
        assert np.array_equal(pinned, given)
        got = np.zeros_like(given)
        driver.copy_now(got.ctypes.data, device, MIB)
        assert np.array_equal(got, given)
        for event in (start, landed):
            driver.event_destroy(event)
        for stream in (first, second):
            driver.stream_destroy(stream)

    def test_entry_point_copies_rows(self, driver, buffers):
        device, host, pinned = buffers
        given = np.zeros((4, 256), dtype=np.uint8)
        driver.copy_now(device, given.ctypes.data, given.nbytes)
        pinned[: 4 * 100] = np.arange(400) % 251
        words = np.zeros(16, dtype=np.uint64)
        words[[2, 3, 6]] = 1, host, 100  # source: host memory, rows of 100 bytes
        words[[9, 11, 13]] = 2, device, 256  # target: device memory, rows 256 bytes apart
        words[[14, 15]] = 100, 4
        assert memcpy_2d_async(driver)(words.ctypes.data, 0) == 0
        driver.stream_synchronize(0)
        got = np.zeros_like(given)
        driver.copy_now(got.ctypes.data, device, got.nbytes)
        given[:, :100] = (np.arange(400) % 251).reshape(4, 100)
        assert np.array_equal(got, given)

    def test_an_unrecorded_event_is_done_and_has_no_time(self, driver):
        event, other = driver.event_create(), driver.event_create()
        assert driver.event_done(event)
        driver.stream_wait_event(0, event)
        driver.event_synchronize(event)
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_HANDLE"):
            driver.event_seconds(event, other)
        driver.event_destroy(event)
        driver.event_destroy(other)

    def test_a_failing_call_names_itself_and_nothing_sticks(self, driver):
        with pytest.raises(KVSwapDriverError) as caught:
            driver.device_alloc(1 << 60)
        assert (caught.value.call, caught.value.result_name) == ("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
        driver.device_free(driver.device_alloc(256))
