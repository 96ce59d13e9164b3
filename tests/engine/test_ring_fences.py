"""What holds the stages of a ring apart, and a batch aside behind its stream: a fence left out shows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, EAGER, LAZY, Rig, assert_same, swap

from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError, SimulatedHang
from numba_kvswap.submit import RING_COPIES, RING_KERNELS

DIRECTIONS = ("out", "in")
TAPES = st.binary(max_size=200)
SEEDS = tuple(range(12))
FEWER = settings(max_examples=max(25, settings().max_examples // 3))


def forwards(count):
    return list(range(count)), list(range(count))


class Held:
    """A ring one of whose streams is held, while the other goes on as far as it may."""

    def __init__(self, direction, which):
        self.rig = Rig("ring", schedule=EAGER, ring_blocks=1)
        self.swapper = self.rig.swapper()
        swap(self.swapper, direction, [0], [0]).wait()  # makes the ring
        self.before = self.rig.images()
        tools = self.rig.driver.tools[0]
        self.latch = self.rig.driver.latch(int(tools.ring(direction).words[which]))
        self.stream = self.rig.simulated.stream()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("which", [RING_KERNELS, RING_COPIES], ids=["kernels held", "copies held"])
@pytest.mark.parametrize("count", [1, 10], ids=["one slot", "all slots and more"])
def test_a_stage_that_is_held_holds_the_other_one_up(direction, which, count):
    held = Held(direction, which)
    rig = held.rig
    transfer = swap(held.swapper, direction, *forwards(count), held.stream)
    for _ in range(50):
        assert not transfer.done()
    held.latch.open()
    transfer.wait()
    assert_same(rig.images(), rig.expected(direction, *forwards(count), held.before))


@pytest.mark.parametrize(
    ("direction", "which", "failing", "succeed"),
    [
        ("out", RING_KERNELS, "cuMemcpyAsync", 0),
        ("out", RING_KERNELS, "cuStreamWaitEvent", 2),  # of the copies for the kernel: nothing on their stream yet
        ("in", RING_COPIES, "cuLaunchKernel", 0),
        ("in", RING_COPIES, "cuStreamWaitEvent", 3),  # of the kernel for the copies
    ],
)
def test_after_a_failure_the_stream_waits_for_what_is_on_the_ring(direction, which, failing, succeed):
    held = Held(direction, which)
    driver = held.rig.driver
    driver.fail(failing, at=succeed)
    with pytest.raises(KVSwapDriverError, match=failing):
        swap(held.swapper, direction, [0], [0], held.stream)
    with pytest.raises(SimulatedHang):
        driver.stream_synchronize(held.stream.handle)
    held.latch.open()
    driver.stream_synchronize(held.stream.handle)


@pytest.mark.parametrize("transport", ["ring", "split"])
@pytest.mark.parametrize("cut_short_by", [KeyboardInterrupt, KVSwapDriverError("cuStreamSynchronize", "UNKNOWN")])
def test_what_could_not_be_joined_is_not_taken_for_landed_when_the_wait_for_it_is_cut_short(
    monkeypatch, transport, cut_short_by
):
    rig = Rig(transport, schedule=EAGER)
    swapper, stream, driver = rig.swapper(), rig.simulated.stream(), rig.driver
    swap(swapper, "out", *forwards(9), stream).wait()
    waits = driver.calls["cuStreamWaitEvent"]
    swap(swapper, "out", *forwards(9), stream).wait()
    waits = driver.calls["cuStreamWaitEvent"] - waits
    latch = driver.latch(int(driver.tools[0].ring("out").words[RING_COPIES]))
    driver.fail("cuStreamWaitEvent", at=waits - 1)  # the join of the ring's copies

    def cut_short(*_streams):
        raise cut_short_by

    with monkeypatch.context() as patched:
        patched.setattr(driver, "stream_synchronize", cut_short)
        patched.setattr(driver, "synchronize", cut_short)
        with pytest.raises((KeyboardInterrupt, KVSwapDriverError)):
            swap(swapper, "out", *forwards(9), stream)
    (work,) = driver.in_flight._pending()
    assert not any(work.landed() for _ in range(50))
    with driver.activate(0):
        driver.stream_synchronize(stream.handle)
    assert not work.landed()
    latch.open()
    assert work.settle() is None
    assert work.landed()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_of_it_starts_before_its_stream_gets_there(direction):
    rig = Rig("ring", schedule=EAGER)
    swapper = rig.swapper()
    swap(swapper, direction, [0], [0]).wait()
    stream = rig.simulated.stream()
    latch = stream.latch()
    # Written by what its stream still holds: what it moves is this.
    source = rig.device_layers() if direction == "out" else rig.host_layers()
    stream.launch(lambda: [layer.fill(7) for layer in source])
    before = rig.images()
    transfer = swap(swapper, direction, *forwards(9), stream)
    for _ in range(50):
        assert not transfer.done()
    assert_same(rig.images(), before)
    latch.open()
    transfer.wait()
    target = rig.host_layers() if direction == "out" else rig.device_layers()
    assert all((layer[:9] == 7).all() for layer in target)


@FEWER
@given(tape=TAPES, count=st.integers(1, BLOCKS), ring_blocks=st.integers(1, 4), swaps=st.integers(1, 3))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_slots_are_neither_read_too_soon_nor_filled_too_soon(direction, tape, count, ring_blocks, swaps):
    rig = Rig("ring", schedule=tape, ring_blocks=ring_blocks)
    swapper, before = rig.swapper(), rig.images()
    ids = (list(range(count)), list(range(BLOCKS - 1, BLOCKS - 1 - count, -1)))
    last = None
    for _ in range(swaps):
        last = swap(swapper, direction, *ids)
    last.wait()
    assert_same(rig.images(), rig.expected(direction, *ids, before))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_turn_of_the_ring_under_seeded_orders(direction, seed):
    rig = Rig("ring", schedule=None, seed=seed, ring_blocks=1)
    before = rig.images()
    ids = ([5, 3, 4, 15, 14, 0, 1, 2, 9, 7], [1, 2, 3, 4, 9, 8, 7, 6, 5, 0])
    swap(rig.swapper(), direction, *ids).wait()
    assert_same(rig.images(), rig.expected(direction, *ids, before))


@FEWER
@given(tape=TAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_streams_on_one_ring(direction, tape):
    rig = Rig("ring", schedule=tape)
    before = rig.images()
    swappers, streams = [rig.swapper() for _ in range(2)], [rig.simulated.stream() for _ in range(2)]
    transfers = []
    for turn in range(4):
        ids = [4 * turn + i for i in range(4)]
        transfers.append(swap(swappers[turn % 2], direction, ids, ids[::-1], streams[turn % 2]))
    for transfer in reversed(transfers):
        transfer.wait()
    targets = [4 * turn + i for turn in range(4) for i in (3, 2, 1, 0)]
    assert_same(rig.images(), rig.expected(direction, list(range(16)), targets, before))


@pytest.mark.parametrize("stream", [None, 1])
def test_a_batch_on_the_stream_aside_waits_for_what_the_legacy_stream_holds(stream):
    rig = Rig("batch", schedule=LAZY)
    with rig.driver.activate(0):
        latch = rig.driver.latch(0)
        transfer = rig.swapper().swap_out([0, 2, 5], [1, 3, 4], stream)
        aside = int(device_tools(rig.driver, 0).aside[0])
        with pytest.raises(SimulatedHang):
            rig.driver.stream_synchronize(aside)
        latch.open()
        rig.driver.stream_synchronize(aside)
        transfer.wait()
