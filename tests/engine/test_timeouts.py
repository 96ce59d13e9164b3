"""Waits that may end before what they wait for: by a timeout, or by Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from transport_rig import EAGER, Rig, assert_same, swap

from numba_kvswap import DeviceCache, HostCache, Swapper
from numba_kvswap.driver import cuda_driver, why_no_cuda

IDS = ([0, 3], [1, 2])


@pytest.fixture(params=["lazy", "eager"])
def held(request, transport_or_auto):
    """A rig, its images before, a swap out of IDS on a stream that is held, and the latch."""
    rig = Rig(transport_or_auto, schedule=EAGER if request.param == "eager" else b"")
    before, stream = rig.images(), rig.simulated.stream()
    latch = stream.latch()
    return rig, before, swap(rig.swapper(), "out", *IDS, stream), latch


def test_a_wait_with_a_timeout_ends_and_the_transfer_goes_on(held):
    rig, before, transfer, latch = held
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"2 blocks swapped out have not landed within 0\.05 s"):
        transfer.wait(timeout_s=0.05)
    assert 0.05 <= time.monotonic() - started < 10
    assert transfer.undefined_targets == tuple(IDS[1])
    latch.open()
    transfer.wait(timeout_s=30)
    assert_same(rig.images(), rig.expected("out", *IDS, before))


def test_a_timeout_of_nothing_is_a_question(held):
    _rig, _before, transfer, latch = held
    with pytest.raises(TimeoutError):
        transfer.wait(0)
    latch.open()
    transfer.wait()
    transfer.wait(0)


def test_a_latch_that_another_thread_opens_ends_the_wait_in_time(held):
    _rig, _before, transfer, latch = held
    opener = threading.Timer(0.05, latch.open)
    opener.start()
    transfer.wait(timeout_s=60)
    opener.join()
    assert transfer.done()


def test_a_close_with_a_timeout_keeps_the_pool_and_may_be_called_again(held):
    rig, _before, _transfer, latch = held
    with pytest.raises(TimeoutError):
        rig.host.close(timeout_s=0.01)
    with pytest.raises(ValueError, match="closed"):
        rig.swapper().swap_out([0], [0])
    latch.open()
    rig.host.close(timeout_s=60)
    assert rig.driver.live_allocations() > 0  # the device's
    assert not rig.host._memory.address


def test_a_close_waits_so_long_in_all():
    rig = Rig("copies")
    streams = [rig.simulated.stream() for _ in range(16)]
    latches = [stream.latch() for stream in streams]
    transfers = [swap(rig.swapper(), "out", [block], [block], stream) for block, stream in enumerate(streams)]
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        rig.host.close(timeout_s=0.2)
    assert 0.2 <= time.monotonic() - started < 2.4
    for latch in latches:
        latch.open()
    del transfers
    rig.host.close()


@pytest.mark.parametrize("wrong", [-1, -0.5, float("nan")])
def test_timeouts_that_are_none(held, wrong):
    rig, _before, transfer, latch = held
    for wait in (transfer.wait, rig.host.close):
        with pytest.raises(ValueError, match="expected 0 or more"):
            wait(timeout_s=wrong)
    for kind in ("1", True):
        with pytest.raises(TypeError, match="expected seconds"):
            transfer.wait(timeout_s=kind)
    latch.open()


@pytest.mark.parametrize("for_ever", [float("inf"), 1e300, 10**400])
def test_timeouts_that_never_come(held, for_ever):
    rig, before, transfer, latch = held
    opener = threading.Timer(0.01, latch.open)
    rig.driver.hang_seconds = 60
    opener.start()
    transfer.wait(timeout_s=for_ever)
    assert_same(rig.images(), rig.expected("out", *IDS, before))


def test_an_event_that_comes_too_late_is_told_from_one_that_came(held):
    rig, *_ = held
    stream = rig.simulated.stream()
    latch, event = stream.latch(), rig.simulated.event()
    event.record(stream)
    assert not rig.driver.event_synchronize(event.handle, timeout_s=0.01)
    latch.open()
    assert rig.driver.event_synchronize(event.handle, timeout_s=0.01)


def needs_gpu(test):
    return pytest.mark.cuda(pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")(test))


class OnTheDevice:
    """Swaps of 256 MiB on a stream of their own, some 5 ms each."""

    BLOCKS, BLOCK_BYTES = 64, 4 << 20

    def __init__(self):
        self.driver = cuda_driver()
        self.device = DeviceCache.allocate(self.driver, blocks=self.BLOCKS, block_bytes=[self.BLOCK_BYTES])
        self.host = HostCache.allocate(self.device, blocks=self.BLOCKS)
        self.swapper = Swapper(self.device, self.host, transport="copies")
        with self.driver.activate(0):
            self.stream = self.driver.stream_create()

    def swaps(self, count):
        return [self.swapper.swap_out(range(self.BLOCKS), range(self.BLOCKS), self.stream) for _ in range(count)]


@needs_gpu
def test_on_the_device_a_wait_times_out_and_may_be_repeated():
    transfer = OnTheDevice().swaps(20)[-1]
    with pytest.raises(TimeoutError):
        transfer.wait(timeout_s=0.001)
    transfer.wait(timeout_s=60)
    assert transfer.done()


@needs_gpu
def test_on_the_device_ctrl_c_ends_a_wait_and_not_the_transfer():
    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    transfer = OnTheDevice().swaps(400)[-1]  # some 2 s of them
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transfer.wait()
        assert time.monotonic() - started < 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not transfer.done()
    transfer.wait()
    assert transfer.done()
