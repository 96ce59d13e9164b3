"""Arrays, streams and events of the simulated device."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from numba_kvswap.driver import KVSwapDriverError, SimulatedDevice
from numba_kvswap.driver.simulated_memory import FREED_BYTE


@pytest.fixture
def device():
    return SimulatedDevice(schedule=b"")


DTYPES = [np.uint8, np.float16, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_come_back(device, dtype):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    array = device.device_array((2, 3, 4), dtype)
    array.fill_from(values)
    got = array.to_numpy()
    assert got.dtype == np.dtype(dtype)
    assert got.tobytes() == values.tobytes()
    assert array.strides == values.strides
    assert (array.nbytes, array.shape, array.ndim) == (values.nbytes, values.shape, 3)


def test_to_numpy_is_a_copy_and_live_is_the_memory(device):
    array = device.device_array(4, np.uint8)
    copy, live = array.to_numpy(), array.live()
    array.fill_from(np.arange(4, dtype=np.uint8))
    assert list(copy) == [0xCD] * 4
    assert list(live) == [0, 1, 2, 3]


def test_no_array_interface_that_a_framework_would_believe(device):
    array = device.device_array(4, np.uint8)
    for name in ("__cuda_array_interface__", "__array_interface__", "__dlpack__"):
        assert not hasattr(array, name)
    with pytest.raises(TypeError, match="use to_numpy"):
        np.asarray(array)


def test_strides_and_their_padding(device):
    array = device.device_array((3, 4), np.uint8, strides_bytes=(10, 1))
    array.fill_from(np.arange(12, dtype=np.uint8).reshape(3, 4))
    flat = array.view(0, 24, np.uint8).to_numpy()
    assert list(flat[8:12]) == [0xCD, 0xCD, 4, 5]
    assert device.driver.pointer_info(array.address).bytes == 24


def test_a_view_shares_the_memory_and_keeps_it(device):
    array = device.device_array((4, 8), np.uint8)
    array.stream = 2
    view = array.view(8, (2, 4), np.uint16)
    assert (view.address, view.device, view.stream) == (array.address + 8, 0, 2)
    view.fill_from(np.full((2, 4), 0x0101, dtype=np.uint16))
    assert list(array.to_numpy().sum(axis=1)) == [8 * 0xCD, 8, 8, 8 * 0xCD]
    del array
    gc.collect()
    assert device.driver.live_allocations() == 1
    del view
    assert device.driver.live_allocations() == 0


@pytest.mark.parametrize(("offset", "shape"), [(-1, 1), (30, 3), (33, 0), (0, 33)])
def test_a_view_may_not_leave_the_memory(device, offset, shape):
    array = device.device_array(32, np.uint8)
    with pytest.raises(ValueError, match="leaves the memory"):
        array.view(offset, shape, np.uint8)


def test_impossible_arrays_are_refused(device):
    for arguments in [
        {"shape": (-1,), "dtype": np.uint8},
        {"shape": (2, 2), "dtype": np.uint8, "strides_bytes": (1,)},
        {"shape": (2,), "dtype": np.uint8, "strides_bytes": (-1,)},
        {"shape": (2,), "dtype": object},
    ]:
        with pytest.raises(ValueError):
            device.device_array(**arguments)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_DEVICE"):
        device.device_array(1, np.uint8, device=1)
    assert device.driver.live_allocations() == 0


def test_fill_from_converts_and_broadcasts_nothing(device):
    array = device.device_array((2, 2), np.uint8)
    for wrong in (np.zeros((2, 2), dtype=np.int8), np.zeros(2, dtype=np.uint8)):
        with pytest.raises(ValueError, match="convert them first"):
            array.fill_from(wrong)


def test_empty_arrays(device):
    array = device.device_array((0, 4), np.float16)
    assert array.to_numpy().shape == (0, 4)
    assert device.pinned_array((0, 4), ml_dtypes.bfloat16).shape == (0, 4)


def test_free(device):
    array = device.device_array(4, np.uint8)
    array.free()
    array.free()
    assert device.driver.live_allocations() == 0
    with pytest.raises(ValueError, match="freed"):
        array.to_numpy()
    del array
    device.synchronize()
    assert device.driver.calls["cuMemFree"] == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_pinned_memory_lives_as_long_as_its_last_view(device, dtype):
    array = device.pinned_array((4, 3), dtype)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((4, 3), dtype, True, True)
    info = device.driver.pointer_info(array.ctypes.data)
    assert (info.kind, info.bytes) == ("host", array.nbytes)
    view = array[2:].view(np.uint8)[:, 1:]
    del array
    gc.collect()
    assert device.driver.live_allocations() == 1
    del view
    assert device.driver.live_allocations() == 0


def test_pinned_memory_freed_by_hand_reads_as_poison(device):
    array = device.pinned_array(8, np.uint8)
    device.driver.host_free(array.ctypes.data)
    assert (array == FREED_BYTE).all()
    del array
    device.synchronize()


def test_streams_and_events_end_with_their_objects(device):
    ran = []
    stream, event = device.stream(), device.event()
    stream.launch(lambda: ran.append(1))
    event.record(stream)
    assert (device.driver.live_streams(), device.driver.live_events()) == (1, 1)
    del stream, event
    assert (device.driver.live_streams(), device.driver.live_events()) == (0, 0)
    device.synchronize()
    assert ran == [1]


def test_a_launched_function_writes_memory_in_stream_order(device):
    array = device.device_array(4, np.uint8)
    first, second, event = device.stream(), device.stream(), device.event()
    latch = first.latch()
    first.launch(lambda: array.fill_from(np.full(4, 7, dtype=np.uint8)))
    event.record(first)
    second.wait(event)
    got = []
    second.launch(lambda: got.append(array.to_numpy()))
    assert not event.done() and list(array.live()) == [0xCD] * 4
    latch.open()
    second.synchronize()
    event.synchronize()
    assert event.done() and list(got[0]) == [7] * 4


def test_blocking_streams_wait_for_the_legacy_stream(device):
    order = []
    blocking = device.stream(blocking=True)
    with device.driver.activate(0):
        device.driver.launch(0, lambda: order.append("legacy"))
    blocking.launch(lambda: order.append("blocking"))
    blocking.synchronize()
    assert order == ["legacy", "blocking"]


def test_several_devices():
    device = SimulatedDevice(devices=2)
    array = device.device_array(4, np.uint8, device=1)
    assert array.device == 1 and device.driver.pointer_info(array.address).device == 1
    assert device.driver.current_device() is None


def test_memory_dropped_under_a_queued_copy_is_reported(device):
    import ctypes

    word = ctypes.c_uint64
    copy = ctypes.CFUNCTYPE(ctypes.c_int32, word, word, word, word)(device.driver.entry_points.memcpy_async)
    array, pinned, stream = device.device_array(64, np.uint8), device.pinned_array(64, np.uint8), device.stream()
    with device.driver.activate(0):
        assert copy(pinned.ctypes.data, array.address, 64, stream.handle) == 0
    pinned[:] = 3
    del array
    with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*keep the owner alive"):
        stream.synchronize()
    assert (pinned == 3).all()


def test_a_fault_rate_is_the_driver_s_and_may_be_set_later():
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_UNKNOWN"):
        SimulatedDevice(fault_rate=1.0).device_array(4, np.uint8)
    device = SimulatedDevice()
    array = device.device_array(4, np.uint8)
    device.driver.fault_rate = 1.0
    with pytest.raises(KVSwapDriverError, match="cuCtxSynchronize failed with CUDA_ERROR_UNKNOWN"):
        array.to_numpy()
