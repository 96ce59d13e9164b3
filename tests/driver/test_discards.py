"""What dead owners leave to be freed and the driver refuses to free: it is kept, named, and tried again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from numba_kvswap.driver import SimulatedDriver
from numba_kvswap.driver.statuses import INVALID_HANDLE, INVALID_VALUE
from numba_kvswap.events import Event
from numba_kvswap.memory import DriverMemory
from numba_kvswap.streams import Stream


class AtOnce(SimulatedDriver):
    """As a real driver's: discards by Driver's own verbs, without waiting for the next call."""

    discard_event = SimulatedDriver.__base__.discard_event
    discard_stream = SimulatedDriver.__base__.discard_stream
    discard_memory = SimulatedDriver.__base__.discard_memory


@pytest.fixture(params=[SimulatedDriver, AtOnce])
def driver(request):
    return request.param(schedule=b"")


def live(driver):
    return driver.live_allocations(), driver.live_events(), driver.live_streams()


OWNERS = {
    "cuMemFree": (lambda driver: DriverMemory(driver, 0, 64, "device"), "device memory at 0x"),
    "cuMemFreeHost": (lambda driver: DriverMemory(driver, 0, 64, "host"), "host memory at 0x"),
    "cuEventDestroy": (Event, "event 0x"),
    "cuStreamDestroy": (Stream, "stream 0x"),
}


@pytest.mark.parametrize("call", OWNERS)
def test_what_failed_once_is_freed_with_the_next_that_is(driver, call):
    make, _name = OWNERS[call]
    with driver.activate(0):
        first, second = make(driver), make(driver)
    driver.fail(call)
    del first
    assert sum(live(driver)) == 2, "the driver refused"
    del second
    assert live(driver) == (0, 0, 0)


@pytest.mark.parametrize("call", OWNERS)
def test_what_is_refused_for_ever_is_kept_and_named_and_freed_once_it_may_be(driver, call):
    make, name = OWNERS[call]
    with driver.activate(0):
        owners = [make(driver) for _ in range(3)]
    driver.fail(call, times=None)
    del owners
    for _ in range(2):
        left = driver.not_freed()
        assert len(left) == 3 and all(what.startswith(name) for what in left)
    driver.fail_no_more()
    assert driver.not_freed() == ()
    assert live(driver) == (0, 0, 0)


@pytest.mark.parametrize("status", [INVALID_VALUE, INVALID_HANDLE])
def test_what_is_gone_already_is_not_tried_again(driver, status):
    """Its address or handle may be somebody else's next."""
    with driver.activate(0):
        memory = DriverMemory(driver, 0, 64, "device")
    driver.fail("cuMemFree", status=status)
    del memory
    assert driver.not_freed() == ()
    assert driver.live_allocations() == 1, "not by us"


def test_memory_is_kept_mapped_while_it_is_registered_and_goes_after(driver):
    class Backing:
        pass

    memory, backing = np.zeros(1 << 16, np.uint8), Backing()
    gone, address = weakref.ref(backing), memory.ctypes.data
    with driver.activate(0):
        driver.host_register(address, memory.nbytes)
    driver.fail("cuMemHostUnregister", times=None)
    super(SimulatedDriver, driver).discard_registrations((address,), backing, 0)
    del backing
    gc.collect()
    assert driver.not_freed() == (f"registered memory at {address:#x}",)
    assert gone() is not None
    driver.fail_no_more()
    assert driver.not_freed() == ()
    gc.collect()
    assert gone() is None
