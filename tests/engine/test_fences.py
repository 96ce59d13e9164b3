"""The order of a submission's lines, as other threads and finalizers meet it: the swaps of one Swapper."""

from __future__ import annotations

import threading
import weakref

import pytest
from transport_rig import LAZY, Rig, assert_same

from numba_kvswap import KVSwapDriverError
from numba_kvswap.transports import copies

LONG_S = 20.0


def test_a_second_threads_swap_waits_until_the_first_one_is_marked(monkeypatch):
    """Else it would look for the first one's end before there is one, and run beside it."""
    rig = Rig("copies", schedule=LAZY)
    swapper, streams = rig.swapper(), [rig.simulated.stream() for _ in range(2)]
    submit, first_is_within, go_on, order = copies.submit, threading.Event(), threading.Event(), []

    def submitted(job):
        order.append(job.stream)
        if len(order) == 1:
            first_is_within.set()
            assert go_on.wait(LONG_S)
        return submit(job)

    monkeypatch.setattr(copies, "submit", submitted)
    before = rig.images()
    first = threading.Thread(target=swapper.swap_out, args=([1], [4], streams[0]))
    second = threading.Thread(target=swapper.swap_in, args=([2], [4], streams[1]))
    first.start()
    assert first_is_within.wait(LONG_S)
    second.start()
    second.join(0.3)  # time to come as far as it can
    came_first = len(order)
    go_on.set()
    for thread in (first, second):
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert came_first == 1 and order == [stream.handle for stream in streams]
    streams[1].synchronize()  # alone: the second starts after the first wherever that runs
    rig.simulated.synchronize()
    expected = rig.expected("in", [2], [4], rig.expected("out", [1], [4], before))
    assert_same(rig.images(), expected)


def test_a_finalizer_that_swaps_in_the_midst_of_a_submission_ends(monkeypatch):
    """It comes in the very thread that holds all locks."""
    rig = Rig("copies")
    swapper, stream, submit, within = rig.swapper(), rig.simulated.stream(), copies.submit, []

    def submitted(job):
        if not within:
            within.append(True)
            swapper.swap_out([5], [6], stream)
        return submit(job)

    monkeypatch.setattr(copies, "submit", submitted)
    before = rig.images()
    thread = threading.Thread(target=swapper.swap_out, args=([1], [4], stream), daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert not thread.is_alive(), "it waits for its own lock"
    rig.simulated.synchronize()
    assert_same(rig.images(), rig.expected("out", [1, 5], [4, 6], before))


def test_a_swap_asks_nothing_of_those_before_it_on_its_own_stream():
    rig = Rig("copies", schedule=LAZY)
    swapper, stream = rig.swapper(), rig.simulated.stream()
    for _ in range(4):
        swapper.swap_out([1, 2], [4, 5], stream)
    assert rig.driver.calls["cuStreamWaitEvent"] == 0
    swapper.swap_out([1, 2], [4, 5], rig.simulated.stream())
    assert rig.driver.calls["cuStreamWaitEvent"] == 1


def test_streams_that_come_and_go_are_not_remembered():
    rig = Rig("copies")
    swapper = rig.swapper()
    for block in range(12):
        stream = rig.simulated.stream()
        swapper.swap_out([block], [block], stream).wait()
        del stream
    assert len(swapper._overlaps._by_queue) <= 2


def test_one_that_nothing_marks_does_not_hide_what_is_over():
    rig = Rig("copies", schedule=LAZY)
    swapper, stream = rig.swapper(), rig.simulated.stream()
    rig.driver.fail("cuEventRecord", at=1, times=2)
    rig.driver.fail("cuCtxSynchronize")
    with pytest.raises(KVSwapDriverError, match="cuEventRecord"):
        swapper.swap_out([0], [0], stream)
    for _ in range(10):
        swapper.swap_out([1], [1], stream).wait()
    (of_stream,) = swapper._overlaps._by_queue.values()
    assert len(of_stream) <= 3, "the one in doubt, and the latest"


def test_the_order_keeps_no_transfer():
    rig = Rig("copies")
    swapper = rig.swapper()
    transfer = swapper.swap_out([0], [0], rig.simulated.stream())
    transfer.wait()
    gone = weakref.ref(transfer)
    del transfer
    assert gone() is None


def test_one_under_way_is_not_set_aside_as_one_that_nothing_marks(monkeypatch):
    """It has no event yet, and will have one: were it set aside, its memory would be kept until a close."""
    rig, submit, within = Rig("copies"), copies.submit, []
    swapper, other, streams = rig.swapper(), rig.swapper(), [rig.simulated.stream() for _ in range(2)]

    def submitted(job):
        if job.stream == streams[0].handle:
            within.append(other.swap_out([5], [6], streams[1]))
        return submit(job)

    monkeypatch.setattr(copies, "submit", submitted)
    swapper.swap_out([0], [0], streams[0]).wait()
    within[0].wait()
    assert rig.driver.in_flight._pending() == []


def test_one_that_is_not_on_its_stream_yet_has_not_landed(monkeypatch):
    rig = Rig("copies")
    swapper, seen = rig.swapper(), []
    order = swapper._overlaps.order

    def ordered(transfer, plan):
        seen.append(transfer.landed())
        return order(transfer, plan)

    monkeypatch.setattr(swapper._overlaps, "order", ordered)
    swapper.swap_out([0], [0], rig.simulated.stream()).wait()
    assert seen == [False]


def test_each_threads_own_stream_is_another():
    """One handle names them all, CU_STREAM_PER_THREAD."""
    rig = Rig("copies", schedule=LAZY)
    swapper = rig.swapper()
    swapper.swap_out([0], [0], 2)
    thread = threading.Thread(target=swapper.swap_out, args=([1], [0], 2))
    thread.start()
    thread.join(LONG_S)
    assert rig.driver.calls["cuStreamWaitEvent"] == 1
    rig.driver.synchronize()


def test_one_whose_end_cannot_be_marked_is_over_when_its_error_comes():
    rig = Rig("copies", schedule=LAZY)
    swapper, before = rig.swapper(), rig.images()
    rig.driver.fail("cuEventRecord", at=1, times=None)
    with pytest.raises(KVSwapDriverError, match="cuEventRecord"):
        swapper.swap_out([0, 3], [1, 5], rig.simulated.stream())
    assert rig.driver.in_flight._pending() == []
    assert_same(rig.images(), rig.expected("out", [0, 3], [1, 5], before))
