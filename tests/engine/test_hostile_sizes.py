"""Numbers from outside: what no address reaches is refused at once, and no memory goes by how large a number is."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import BlockAllocator, DeviceCache, HostCache, KVSwapDriverError, Plan, SimulatedDevice, Swapper
from numba_kvswap.layers import Layer
from numba_kvswap.overlaps import share
from numba_kvswap.replay.free_blocks import FreeStack
from numba_kvswap.replay.models import LAYERS_MAX, model_named
from numba_kvswap.replay.tiers import Placement

LARGEST = 2**63 - 1
MIB = 1 << 20
HUGE = st.one_of(st.integers(2**40, 2**70), st.sampled_from((10**18, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1)))


@pytest.fixture
def driver():
    return SimulatedDevice(schedule=b"").driver


def in_little_memory(code: str) -> str:
    """What a process prints that may take 1 GiB of addresses beyond what it has once the package is there."""
    begin = (
        "import resource, numpy as np\n"
        "from numba_kvswap import *\n"
        "from numba_kvswap.overlaps import share\n"
        "Plan([0], [0]); share(np.arange(99), np.arange(99)); share(np.arange(99) << 40, np.arange(99) << 40)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30),) * 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout.strip() or done.stderr.strip()[-300:]


# ---- caches ----


@given(blocks=HUGE, sizes=st.lists(st.integers(1, 2**40), min_size=1, max_size=3))
def test_a_device_cache_too_large_is_refused_before_any_of_it_is_allocated(blocks, sizes):
    driver = SimulatedDevice(schedule=b"").driver
    beyond = blocks * sum(sizes) >= 2**63
    with pytest.raises(ValueError if beyond else KVSwapDriverError, match=r"below 2\*\*63" if beyond else "OUT_OF_MEM"):
        DeviceCache.allocate(driver, blocks=blocks, block_bytes=sizes)
    if beyond:
        assert driver.calls["cuMemAlloc"] == 0


@pytest.mark.parametrize("block_bytes", [2**63, 2**64, 10**30])
def test_blocks_larger_than_every_address_are_refused_even_if_there_are_none(driver, block_bytes):
    with pytest.raises(ValueError, match=r"below 2\*\*63 bytes"):
        DeviceCache.allocate(driver, blocks=0, block_bytes=[block_bytes])


@given(blocks=HUGE, layout=st.sampled_from(("block_major", "layer_major")))
def test_a_pool_too_large_is_refused_at_once(blocks, layout):
    driver = SimulatedDevice(schedule=b"").driver
    like = DeviceCache.allocate(driver, blocks=1, block_bytes=[3, 5])
    with pytest.raises((MemoryError, ValueError), match=r"ask for fewer blocks|below 2\*\*63 bytes"):
        HostCache.allocate(like, blocks=blocks, layout=layout)
    assert driver.calls["cuMemHostAlloc"] == driver.calls["cuMemHostRegister"] == 0


def test_a_pool_that_cannot_be_cut_is_measured_against_the_machine_too(driver, monkeypatch):
    """One block so large that no piece ends where a block does: it would be the driver's own allocation."""
    monkeypatch.setattr("numba_kvswap.caches.check_device_memory", lambda layers, device, driver: (0,) * len(layers))
    like = DeviceCache.of_layers([Layer(1, 1, 2**40 + 1, 2**40 + 1, None)], 0, driver)
    with pytest.raises(MemoryError, match="ask for fewer blocks"):
        HostCache.allocate(like, blocks=1000)
    assert driver.calls["cuMemHostAlloc"] == 0


# ---- plans ----


@given(
    ids=st.lists(
        st.one_of(st.integers(0, 9), st.integers(0, LARGEST), st.integers(LARGEST - 9, LARGEST)), max_size=20
    ).flatmap(lambda ids: st.tuples(st.permutations(ids), st.permutations(ids)))
)
def test_a_plan_of_any_ids_moves_the_last_of_each_target(ids):
    plan = Plan(*ids)
    last = dict(zip(ids[1], ids[0], strict=True))
    moved = [
        (source + i, target + i)
        for source, target, blocks in zip(
            plan.run_source.tolist(), plan.run_target.tolist(), plan.run_blocks.tolist(), strict=True
        )
        for i in range(blocks)
    ]
    assert moved == [(last[target], target) for target in sorted(last)]
    assert plan.least_blocks == tuple(max(side, default=-1) + 1 for side in ids)


def test_neither_a_plan_nor_the_order_of_two_allocates_by_the_size_of_an_id():
    code = """
ids = np.arange(5000) * ((1 << 63) // 5000)
plan = Plan(ids, ids[::-1]), Plan([2**63 - 1, 0], [2**63 - 1, 2**62])
print(plan[0].blocks, plan[1].stretches, share(ids, ids + 1), share(ids, ids[::-1].copy()))
"""
    assert in_little_memory(code) == "5000 (2, 2) False True"


@given(data=st.data(), counts=st.tuples(st.integers(0, 300), st.integers(0, 300)), bits=st.integers(0, 62))
def test_lists_of_any_ids_share_one_where_the_sets_do(data, counts, bits):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    some = random.integers(0, LARGEST, 40) >> bits << data.draw(st.integers(0, bits))
    one, other = (
        np.where(random.random(count) < 0.1, random.choice(some, count), random.integers(0, LARGEST, count))
        for count in counts
    )
    assert share(one, other) == bool(set(one.tolist()) & set(other.tolist()))


def test_ids_out_of_bounds_are_refused_by_a_swap_whatever_their_size(driver):
    device = DeviceCache.allocate(driver, blocks=2, block_bytes=[8])
    swapper = Swapper(device, HostCache.allocate(device, blocks=2), transport="copies")
    for bad in (2, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 2**200, -1, -(2**63)):
        with pytest.raises(IndexError, match=f"position 1: host id {bad}"):
            swapper.swap_out([0, 1], [0, bad])


# ---- block ids, and counts of them ----


@pytest.mark.parametrize("blocks", [2**63 + 1, 2**64, 10**40])
def test_an_allocator_of_more_blocks_than_ids_is_refused(blocks):
    with pytest.raises(ValueError, match=r"expected 0 or more, and at most 2\*\*63"):
        BlockAllocator(blocks)


def test_an_allocator_may_have_as_many_as_there_are_ids():
    allocator = BlockAllocator(2**63)
    assert allocator.allocate(3).tolist() == [0, 1, 2]
    allocator.free([1])
    assert (allocator.free_blocks, allocator.longest_free_run) == (2**63 - 2, 2**63 - 3)
    with pytest.raises((MemoryError, ValueError)):
        allocator.allocate(2**62)
    assert allocator.free_blocks == 2**63 - 2


def test_a_placement_costs_what_is_in_use_not_what_there_is():
    tracemalloc.start()
    try:
        placement = Placement(device_blocks=10**15, host_blocks=10**15, host_slots="lifo")
        assert placement.place([4, 2]).computed_device.tolist() == [[0], [1]]
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40), blocks=st.integers(0, 9))
def test_a_stack_of_free_blocks_is_what_a_list_of_them_all_would_be(steps, blocks):
    stack, plain, taken = FreeStack(blocks, 1), list(range(blocks - 1, -1, -1)), []
    for step in steps:
        assert stack.has_room() == bool(plain)
        if step is None and plain:
            taken.append(stack.take(()))
            assert taken[-1] == [plain.pop()]
        elif step is not None and taken:
            back = taken.pop(step % len(taken))
            plain += back
            stack.give_back(back)


def test_more_layers_than_any_model_has_are_refused():
    with pytest.raises(ValueError, match=f"layers: came {LAYERS_MAX + 1}, expected at most {LAYERS_MAX}"):
        model_named("tiny").block_shapes(512, 1, LAYERS_MAX + 1)
