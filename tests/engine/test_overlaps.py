"""Swaps of one Swapper on several streams: those that touch the same block happen in their order, others overlap."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, EAGER, Rig, assert_same, swap

from numba_kvswap import KVSwapDriverError, Plan
from numba_kvswap.overlaps import collide, share
from numba_kvswap.testing.strategies import id_pairs

FEWER = settings(max_examples=max(20, settings().max_examples // 4))
DIRECTIONS = st.sampled_from(("out", "in"))
FEW_IDS = st.integers(1, 3).flatmap(
    lambda count: st.tuples(
        *[st.lists(st.integers(0, 5), min_size=count, max_size=count, unique=True) for _ in range(2)]
    )
)
SWAPS = st.lists(st.tuples(DIRECTIONS, FEW_IDS, st.integers(0, 2)), min_size=2, max_size=6)


@FEWER
@given(tape=st.binary(max_size=200), swaps=SWAPS)
def test_on_any_streams_they_leave_what_they_would_one_after_the_other(transport_or_auto, tape, swaps):
    rig = Rig(transport_or_auto, schedule=tape)
    swapper, expected = rig.swapper(), rig.images()
    streams = [rig.simulated.stream() for _ in range(3)]
    for direction, (device_ids, host_ids), stream in swaps:
        swap(swapper, direction, device_ids, host_ids, streams[stream])
        expected = rig.expected(direction, device_ids, host_ids, expected)
    rig.simulated.synchronize()
    assert_same(rig.images(), expected)


def held(direction, ids):
    """A Swapper with a swap on a stream that is held, the latch, that stream and another one, and their rig."""
    rig = Rig("copies", schedule=EAGER)
    swapper, streams = rig.swapper(), [rig.simulated.stream() for _ in range(2)]
    latch = streams[0].latch()
    swap(swapper, direction, *ids, streams[0])
    return swapper, latch, streams, rig


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("out", [0], [1]), ("out", [0], [2]), False),  # both read it
        (("out", [0], [1]), ("out", [2], [1]), True),
        (("in", [0], [1]), ("in", [2], [1]), False),
        (("in", [0], [1]), ("in", [0], [2]), True),
        (("out", [0], [1]), ("in", [0], [2]), True),
        (("out", [0], [1]), ("in", [2], [1]), True),
        (("in", [0], [1]), ("out", [0], [2]), True),
        (("in", [0], [1]), ("out", [2], [1]), True),
        (("out", [0], [1]), ("in", [1], [0]), False),  # a device's block 0 and a host's
    ],
)
def test_a_swap_waits_for_one_of_another_stream_where_either_writes_what_both_touch(first, second, waits):
    swapper, latch, streams, _rig = held(first[0], first[1:])
    transfer = swap(swapper, *second, streams[1])
    assert any(transfer.done() for _ in range(50)) != waits
    latch.open()
    transfer.wait()


def test_it_waits_for_the_latest_that_touches_its_blocks_not_for_one_behind():
    swapper, latch, streams, rig = held("out", ([0], [1]))
    latch.open()
    swap(swapper, "out", [3], [1], streams[0])
    behind = streams[0].latch()
    swap(swapper, "out", [4], [5], streams[0])
    transfer = swap(swapper, "in", [6], [1], streams[1])
    transfer.wait()
    np.testing.assert_array_equal(rig.device_layers()[0][6], rig.device_layers()[0][3])
    behind.open()


def test_one_that_failed_before_it_was_on_its_stream_hides_none_before_it():
    swapper, latch, streams, rig = held("out", ([0], [1]))
    rig.driver.fail("cuEventRecord", at=0)
    with pytest.raises(KVSwapDriverError, match="Nothing was copied"):
        swap(swapper, "out", [2], [1], streams[0])
    transfer = swap(swapper, "in", [3], [1], streams[1])
    assert not any(transfer.done() for _ in range(50))
    latch.open()
    transfer.wait()
    np.testing.assert_array_equal(rig.device_layers()[0][3], rig.device_layers()[0][0])


def test_one_of_which_nobody_knows_whether_it_runs_keeps_the_next_from_starting(monkeypatch):
    swapper, latch, streams, rig = held("out", ([0], [1]))
    (under_way,) = rig.driver.in_flight._pending()
    under_way.marker = "stream"  # as after a submission whose end could not be marked
    before = rig.images()

    def no_answer():
        raise KVSwapDriverError("cuCtxSynchronize", "CUDA_ERROR_UNKNOWN")

    with monkeypatch.context() as patched:
        patched.setattr(rig.driver, "synchronize", no_answer)
        with pytest.raises(KVSwapDriverError, match="cuCtxSynchronize"):
            swap(swapper, "in", [3], [1], streams[1])
    assert_same(rig.images(), before)
    latch.open()
    swap(swapper, "in", [3], [1], streams[1]).wait()
    np.testing.assert_array_equal(rig.device_layers()[0][3], rig.device_layers()[0][0])


@given(one=id_pairs(8, 8), other=id_pairs(8, 8), ways=st.tuples(DIRECTIONS, DIRECTIONS))
def test_swaps_collide_where_one_writes_what_the_other_touches(one, other, ways):
    def reads_and_writes(pairs, way):
        here, there = ("device", "host") if way == "out" else ("host", "device")
        return {(here, block) for block in pairs[0]}, {(there, block) for block in pairs[1]}

    (reads, writes), (others_reads, others_writes) = (
        reads_and_writes(pairs, way) for pairs, way in zip((one, other), ways, strict=True)
    )
    expected = bool(writes & (others_reads | others_writes) or others_writes & reads)
    assert collide(Plan(*one), ways[0], Plan(*other), ways[1]) == expected


@given(data=st.data(), counts=st.tuples(st.integers(0, 200), st.integers(0, 200)), top=st.integers(1, 10**6))
def test_long_lists_share_an_id_where_the_sets_do(data, counts, top):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    one, other = (random.integers(0, top, count) for count in counts)
    assert share(one, other) == bool(set(one.tolist()) & set(other.tolist()))


def test_it_keeps_nothing_of_what_has_landed():
    rig = Rig("copies", schedule=EAGER)
    swapper, streams = rig.swapper(), [rig.simulated.stream() for _ in range(3)]
    for turn in range(30):
        swap(swapper, "out", [turn % BLOCKS], [turn % BLOCKS], streams[turn % 3]).wait()
    assert sum(map(len, swapper._overlaps._by_queue.values())) <= 3


def test_threads_that_share_a_swapper_leave_no_block_of_two_swaps():
    """All write the same host block, each from a device block of its own, on a stream of its own."""
    rig = Rig("batch", schedule=None, seed=5)
    swapper, streams = rig.swapper(), [rig.simulated.stream() for _ in range(4)]
    failures = []

    def work(mine):
        try:
            for _ in range(20):
                swapper.swap_out([mine], [0], streams[mine])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.simulated.synchronize()
    assert not failures
    written = [
        [block for block in range(4) if (host[0] == device[block]).all()]
        for device, host in zip(rig.device_layers(), rig.host_layers(), strict=True)
    ]
    assert len(written[0]) == 1 and all(blocks == written[0] for blocks in written)
