"""What several swaps share: tables of ids, a ring and its slots, streams aside. In every order that may happen."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, LAZY, Rig, assert_same, swap

from numba_kvswap import HostCache, Plan, Swapper
from numba_kvswap.device_tools import device_tools

DIRECTIONS = ("out", "in")
#: A few, which a kernel reads over the link, and so many that they are copied to the device first.
COUNTS = (2, 13)
TAPES = st.binary(max_size=200)
SEEDS = tuple(range(12))
FEWER = settings(max_examples=max(25, settings().max_examples // 3))


def forwards(count):
    return list(range(count)), list(range(count))


def crossed(count):
    """No two pairs of one run, which needs no table of ids."""
    return list(range(count)), list(range(count - 1, -1, -1))


def backwards(count):
    return list(range(BLOCKS - 1, BLOCKS - 1 - count, -1)), list(range(BLOCKS - 1, BLOCKS - 1 - count, -1))


# ---- tables ----


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("drop", [False, True])
def test_a_later_swap_does_not_rewrite_the_ids_of_one_that_waits(transport_or_auto, direction, count, drop):
    """Both queued behind a latch: the first one's ids must be what they were when it gets there."""
    rig = Rig(transport_or_auto)
    swapper, before = rig.swapper(), rig.images()
    swap(swapper, direction, *crossed(2)).wait()  # makes a table that both could be lent
    gc.collect()
    stream = rig.simulated.stream()
    latch = stream.latch()
    transfers = [
        swap(swapper, direction, *crossed(count), stream),
        swap(swapper, direction, list(range(1, count + 1)), list(range(count, 0, -1)), stream),
    ]
    if drop:
        transfers.clear()
        gc.collect()
    latch.open()
    rig.simulated.synchronize()
    expected = rig.expected(direction, *crossed(2), before)
    expected = rig.expected(direction, *crossed(count), expected)
    expected = rig.expected(direction, list(range(1, count + 1)), list(range(count, 0, -1)), expected)
    assert_same(rig.images(), expected)


@pytest.mark.parametrize("count", COUNTS)
def test_a_table_is_lent_again_once_its_swap_has_landed(count):
    rig = Rig("kernel")
    swapper = rig.swapper()
    for _ in range(2):
        swapper.swap_out(*crossed(count)).wait()
        gc.collect()
    allocated = rig.driver.calls["cuMemHostAlloc"]
    waiting, stream = [], rig.simulated.stream()
    for _ in range(3):
        waiting.append(swapper.swap_out(*crossed(count), stream))
    made = rig.driver.calls["cuMemHostAlloc"] - allocated
    assert made == 2  # one was there
    for transfer in waiting:
        transfer.wait()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", COUNTS)
def test_what_a_waiting_swap_reads_outlives_its_swapper(monkeypatch, transport, direction, count):
    monkeypatch.setattr("numba_kvswap.device_tools._COPIES_MAX", 1)
    rig = Rig(transport)
    before = rig.images()
    stream = rig.simulated.stream()
    latch = stream.latch()
    swap(rig.swapper(), direction, *crossed(count), stream)
    with rig.driver.activate(0):
        device_tools(rig.driver, 0).on_device(np.zeros(1, np.uint64))  # in place of the table of layers that was last
    gc.collect()
    latch.open()
    rig.simulated.synchronize()  # raises where work met freed memory
    assert_same(rig.images(), rig.expected(direction, *crossed(count), before))


def test_a_new_pair_is_made_ready_while_a_swap_of_another_waits(transport):
    """Its table of layers is copied to the device, behind nothing that could take long."""
    rig = Rig(transport)
    with rig.driver.activate(0):
        latch = rig.driver.latch(0)
    waiting = rig.swapper("batch").swap_out(*forwards(4))  # on the legacy stream, so by way of the stream aside
    with HostCache.allocate(rig.device, blocks=BLOCKS) as host:
        Swapper(rig.device, host, transport=transport).swap_out([1], [1], rig.simulated.stream()).wait()
    assert not latch.is_open
    latch.open()
    waiting.wait()


# ---- several streams ----


@FEWER
@given(tape=TAPES)
def test_out_and_in_at_once(transport_or_auto, tape):
    rig = Rig(transport_or_auto, schedule=tape)
    swapper, before = rig.swapper(), rig.images()
    half = BLOCKS // 2
    low, high = list(range(half)), list(range(half, BLOCKS))
    streams = [rig.simulated.stream() for _ in range(2)]
    transfers = [swapper.swap_out(low, low[::-1], streams[0]), swapper.swap_in(high, high[::-1], streams[1])]
    for transfer in transfers:
        transfer.wait()
    expected = rig.expected("in", high, high[::-1], rig.expected("out", low, low[::-1], before))
    assert_same(rig.images(), expected)


def test_a_later_swap_comes_after_an_earlier_one_of_its_stream_by_another_transport():
    rig = Rig(schedule=LAZY)
    stream, before = rig.simulated.stream(), rig.images()
    transfers, expected = [], before
    for turn, name in enumerate(("ring", "kernel", "batch", "copies", "ring")):
        direction, ids = DIRECTIONS[turn % 2], (list(range(12)), [(i + turn) % BLOCKS for i in range(12)])
        transfers.append(swap(rig.swapper(name), direction, *ids, stream))
        expected = rig.expected(direction, *ids, expected)
    transfers[-1].wait()
    assert_same(rig.images(), expected)


# ---- threads, and what comes in between ----


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_one_swapper_in_two_threads(transport_or_auto, seed):
    rig = Rig(transport_or_auto, schedule=None, seed=seed)
    swapper, before = rig.swapper(), rig.images()
    half, errors = BLOCKS // 2, []

    def work(first):
        ids = list(range(first, first + half))
        try:
            for turn in range(6):
                stream = rig.simulated.stream()
                swap(swapper, DIRECTIONS[turn % 2], ids, ids, stream).wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, half)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    every = list(range(BLOCKS))
    assert_same(rig.images(), rig.expected("out", every, every, before))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_swap_in_the_midst_of_another_by_a_finalizer_or_a_signal_handler(transport, direction):
    """Any line may let one run, in the very thread that holds a lock."""
    rig = Rig(transport)
    swapper, before = rig.swapper(), rig.images()
    uninterrupted, inner = rig.driver.uninterrupted, []

    @contextlib.contextmanager
    def with_a_swap_first():
        if not inner:
            inner.append(None)
            inner.append(swap(swapper, direction, [9, 8], [4, 5], rig.simulated.stream()))
        with uninterrupted():
            yield

    rig.driver.uninterrupted = with_a_swap_first
    outer = []
    thread = threading.Thread(target=lambda: outer.append(swap(swapper, direction, *forwards(3))), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    outer[0].wait()
    inner[1].wait()
    expected = rig.expected(direction, *forwards(3), rig.expected(direction, [9, 8], [4, 5], before))
    assert_same(rig.images(), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("comes", ["by a collection", "by a signal"])
def test_a_submission_meets_neither_collections_nor_signals(transport, direction, comes, monkeypatch):
    """As compiled code does not, between two calls of the driver's entry points."""
    rig = Rig(transport, ring_blocks=1)
    swapper, before = rig.swapper(), rig.images()
    swap(swapper, direction, [0], [0]).wait()
    stream, inner = rig.simulated.stream(), []

    def swap_once(*_arguments):
        if not inner:
            inner.append(None)
            inner.append(swap(swapper, direction, [10, 11], [11, 10], stream))

    class SwapsAtItsEnd:
        def __del__(self):
            swap_once()

    within, put = [], rig.driver._put

    def put_and_see(operation):
        put(operation)
        if not inner and not within:
            within.append(None)
            if comes == "by a signal":
                signal.raise_signal(signal.SIGUSR1)
            else:
                owner = SwapsAtItsEnd()
                owner.itself = owner
                del owner
                kept = [[] for _ in range(2000)]  # more than it takes for a collection to start by itself
                del kept
            assert not inner

    monkeypatch.setattr(rig.driver, "_put", put_and_see)
    signalled = signal.signal(signal.SIGUSR1, swap_once)
    try:
        outer = swap(swapper, direction, [0, 1, 2], [2, 1, 0])
        assert within
        gc.collect()
        outer.wait()
        inner[1].wait()
    finally:
        signal.signal(signal.SIGUSR1, signalled)
    expected = rig.expected(direction, [0], [0], before)
    expected = rig.expected(direction, [10, 11], [11, 10], rig.expected(direction, [0, 1, 2], [2, 1, 0], expected))
    assert_same(rig.images(), expected)


def test_a_collection_may_start_just_before_it_is_put_off(monkeypatch):
    rig = Rig("ring")
    swapper, inner, disable = rig.swapper(), [], gc.disable

    def collect_first():
        if not inner:
            inner.append(None)
            inner.append(swapper.swap_out([9], [4]))
        disable()

    monkeypatch.setattr("numba_kvswap.driver.simulated.gc.disable", collect_first)
    outer = []
    thread = threading.Thread(target=lambda: outer.append(swapper.swap_out([1], [2])), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    outer[0].wait()
    assert gc.isenabled()


def test_a_handler_that_raises_keeps_no_other_from_its_signal():
    def raises(*_arguments):
        raise LookupError("mine")

    seen = []
    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGUSR1, raises), (signal.SIGUSR2, lambda *_arguments: seen.append(1)))
    }
    try:
        with pytest.raises(LookupError, match="mine"), Rig("copies").driver.uninterrupted():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            assert not seen
        assert seen == [1]
        assert signal.getsignal(signal.SIGUSR1) is raises
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_plan_used_twice_at_once_moves_twice(transport_or_auto):
    rig = Rig(transport_or_auto)
    plan, before = Plan(*forwards(5)), rig.images()
    with HostCache.allocate(rig.device, blocks=BLOCKS) as other:
        transfers = [
            Swapper(rig.device, host, transport=transport_or_auto).swap_out(plan, stream=rig.simulated.stream())
            for host in (rig.host, other)
        ]
        for transfer in transfers:
            transfer.wait()
        for index, layer in enumerate(rig.device_layers()):
            np.testing.assert_array_equal(other.layer(index)[:5], layer[:5])
    assert_same(rig.images(), rig.expected("out", *forwards(5), before))
