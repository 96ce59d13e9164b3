"""A swap split between the ring and batches: who takes which blocks, what each of the two waits for, and its ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, EAGER, SIZES, Rig, assert_same, swap

from numba_kvswap import Plan
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError, SimulatedHang
from numba_kvswap.submit import RING_BATCHES, RING_COPIES, RING_KERNELS
from numba_kvswap.testing.strategies import id_pairs
from numba_kvswap.transports import Job, split

DIRECTIONS = ("out", "in")
STREAMS = {"kernels": RING_KERNELS, "copies": RING_COPIES, "batches": RING_BATCHES}
# As many as the rig's driver leaves to batches: the last ones on the host.
BATCHED = 2
FEWER = settings(max_examples=max(25, settings().max_examples // 3))


def forwards(count):
    return list(range(count)), list(range(count))


class Held:
    """A rig that has swapped once, one of whose ring's streams is held, while the others go on as far as they may."""

    def __init__(self, direction, which, schedule=EAGER):
        self.rig = Rig("split", schedule=schedule, ring_blocks=BATCHED)
        self.swapper = self.rig.swapper()
        swap(self.swapper, direction, [BLOCKS - 1], [BLOCKS - 1]).wait()  # makes the ring
        self.before = self.rig.images()
        tools = self.rig.driver.tools[0]
        self.latch = self.rig.driver.latch(int(tools.ring(direction).words[STREAMS[which]]))
        self.stream = self.rig.simulated.stream()
        self.direction = direction

    def moved(self):
        """The blocks whose target has other bytes than before, in every layer; none half moved."""
        layers = slice(len(SIZES), None) if self.direction == "out" else slice(len(SIZES))
        changed = [
            (now != then).any(axis=1) for now, then in zip(self.rig.images()[layers], self.before[layers], strict=True)
        ]
        assert all((one == changed[0]).all() for one in changed)
        return np.flatnonzero(changed[0]).tolist()


# ---- who takes what ----


@given(ids=id_pairs(BLOCKS, BLOCKS), direction=st.sampled_from(DIRECTIONS), batched=st.integers(0, BLOCKS + 1))
def test_each_pair_is_the_rings_or_the_batches_which_have_the_last_on_the_host(ids, direction, batched):
    rig, plan = Rig("split"), Plan(*ids)
    rig.driver.split_batch_bytes = batched * sum(SIZES) + 1
    parts = split._parts(Job(plan, rig.swapper().pair, direction, 0, np.zeros(2, np.uint64), lambda needed: None))
    found = [
        [
            (source + i, target + i)
            for source, target, blocks in zip(part.source, part.target, part.blocks, strict=True)
            for i in range(blocks)
        ]
        for part in parts
    ]
    runs = zip(plan.run_source, plan.run_target, plan.run_blocks, strict=True)
    expected = [(source + i, target + i) for source, target, blocks in runs for i in range(blocks)]
    assert sorted(found[0] + found[1]) == sorted(expected)
    assert len(found[1]) == min(batched, len(expected))
    host = plan.run_target if direction == "out" else plan.run_source
    assert all(host[first] <= host[last] for first in parts[0].runs for last in parts[1].runs)
    for part in parts:
        assert (plan.run_source[part.runs] <= part.source).all()
        assert (part.source + part.blocks <= (plan.run_source + plan.run_blocks)[part.runs]).all()


# ---- what waits for what ----


@pytest.mark.parametrize("which", STREAMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", [1, 3, 12], ids=["batches alone", "a slot", "all slots and more"])
def test_none_of_its_streams_may_be_behind_when_it_ends(direction, which, count):
    held = Held(direction, which)
    transfer = swap(held.swapper, direction, *forwards(count), held.stream)
    needed = count > BATCHED or (direction, which) != ("out", "kernels")
    if (direction, which, count) == ("out", "copies", 1):
        needed = True  # the ring's last stage is waited for though nothing of the swap is on it
    assert any(transfer.done() for _ in range(50)) != needed
    held.latch.open()
    transfer.wait()
    assert_same(held.rig.images(), held.rig.expected(direction, *forwards(count), held.before))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batches_go_on_while_the_rings_kernels_wait(direction):
    held = Held(direction, "kernels")
    count = 5  # in: no more than the ring's slots hold without a kernel
    transfer = swap(held.swapper, direction, *forwards(count), held.stream)
    assert held.moved() == list(range(count - BATCHED, count))
    held.latch.open()
    transfer.wait()
    assert held.moved() == list(range(count))


def test_swapping_in_they_come_behind_the_rings_last_copy():
    held = Held("in", "copies")
    transfer = swap(held.swapper, "in", *forwards(5), held.stream)
    assert held.moved() == []
    held.latch.open()
    transfer.wait()
    assert held.moved() == list(range(5))


@pytest.mark.parametrize("count", [1, 9], ids=["batches alone", "both"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_of_it_starts_before_its_stream_gets_there(direction, count):
    held = Held(direction, "kernels")
    held.latch.open()
    latch = held.stream.latch()
    transfer = swap(held.swapper, direction, *forwards(count), held.stream)
    assert held.moved() == []
    latch.open()
    transfer.wait()
    assert held.moved() == list(range(count))


@FEWER
@given(tape=st.binary(max_size=200), count=st.integers(1, BLOCKS), swaps=st.integers(1, 3))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_order_that_cuda_allows_moves_the_same(direction, tape, count, swaps):
    rig = Rig("split", schedule=tape)
    swapper, before = rig.swapper(), rig.images()
    ids = (list(range(count)), list(range(BLOCKS - 1, BLOCKS - 1 - count, -1)))
    for _ in range(swaps):
        last = swap(swapper, direction, *ids)
    last.wait()
    assert_same(rig.images(), rig.expected(direction, *ids, before))


# ---- failures ----


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_batch_that_fails_names_the_plans_run_and_the_stream_waits_for_the_rest(direction):
    held = Held(direction, "copies")
    device_ids, host_ids = [0, 8, 2, 10, 4, 12], [0, 2, 4, 6, 8, 10]
    held.rig.driver.fail("cuMemcpyBatchAsync", at=2)  # the ring has two slots' copies
    with pytest.raises(KVSwapDriverError, match="cuMemcpyBatchAsync") as caught:
        swap(held.swapper, direction, device_ids, host_ids, held.stream)
    plan = Plan(device_ids, host_ids) if direction == "out" else Plan(host_ids, device_ids)
    host = plan.run_target if direction == "out" else plan.run_source
    assert host[caught.value.run] in host_ids[-BATCHED:]
    with pytest.raises(SimulatedHang):
        held.rig.driver.stream_synchronize(held.stream.handle)
    held.latch.open()
    held.rig.driver.stream_synchronize(held.stream.handle)


def test_without_memory_for_a_ring_auto_does_without_a_split_swap_too():
    rig = Rig()
    rig.driver.fail("cuMemAlloc", at=0)
    with rig.driver.activate(0), pytest.raises(KVSwapDriverError):
        device_tools(rig.driver, 0).ring("out")
    explained = rig.swapper(favor="compute").explain(Plan([1], [2]))
    assert "device memory for a ring" in explained.why_not["ring"]
    assert "device memory for a ring" in explained.why_not["split"]
