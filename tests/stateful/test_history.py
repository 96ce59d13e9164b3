"""Histories that Hypothesis draws and makes small; and the world and its walk, tested themselves."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from numba_kvswap.testing.history import (
    ACTIONS,
    HistoryMismatch,
    SimulatedMachine,
    World,
    make_action,
    make_shape,
    replay,
    walk,
)
from numba_kvswap.testing.history.actions import ClosePool, Fault, Hold, Read, Swap, Wait, Write
from numba_kvswap.testing.history.order import Clocks
from numba_kvswap.testing.history.world import Shape

SHAPE = Shape(
    sizes=((5, 16), (8, 8)),
    shared="host",
    device_layouts=("apart", "layer_major", "layer_major"),
    host_layouts=("block_major", "layer_major", "block_major"),
    pad_bytes=(0,) * 6,
    transports=("copies",) * 4,
    schedule=b"",
)


@st.composite
def actions(draw, kind):
    return make_action(lambda low, high: draw(st.integers(low, high)), kind)


@st.composite
def shapes(draw):
    schedule = draw(st.binary(max_size=300))
    return make_shape(lambda low, high: draw(st.integers(low, high)), schedule=schedule)


class History(RuleBasedStateMachine):
    """Each rule one kind of action; those that make others interesting have several."""

    world = None

    @initialize(shape=shapes())
    def begin(self, shape):
        machine = SimulatedMachine(shape.seed, shape.schedule, block_bytes=shape.block_bytes_max)
        self.world = World(shape, machine)

    @rule(action=actions("swap"))
    def swap(self, action):
        self.world.apply(action)

    @rule(action=actions("swap"))
    def swap_more(self, action):
        self.world.apply(action)

    @rule(action=actions("write") | actions("read"))
    def compute(self, action):
        self.world.apply(action)

    @rule(action=actions("host write") | actions("host read"))
    def on_the_host(self, action):
        self.world.apply(action)

    @rule(action=actions("wait") | actions("done") | actions("wait on") | actions("forget"))
    def with_a_transfer(self, action):
        self.world.apply(action)

    @rule(action=actions("hold") | actions("open"))
    def with_a_latch(self, action):
        self.world.apply(action)

    @rule(action=actions("remake") | actions("close pool"))
    def make_anew(self, action):
        self.world.apply(action)

    @rule(action=actions("fault") | actions("mistake"))
    def go_wrong(self, action):
        self.world.apply(action)

    def teardown(self):
        if self.world is not None:
            self.world.finish()


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=max(40, settings().max_examples // 3), stateful_step_count=30)


def test_the_rules_leave_out_nothing():
    import inspect

    drawn = set(re.findall(r'actions\("([a-z ]+)"\)', inspect.getsource(History)))
    assert drawn | {"checkpoint"} == set(ACTIONS)


# ---- the walk ----


@pytest.mark.parametrize("seed", [1, 2])
def test_a_walk_finds_nothing_and_does_everything(seed):
    report, mismatch = walk("simulated", 2000, seed)
    assert not mismatch, mismatch
    assert report.steps == sum(report.by_kind.values()) == 2000
    assert len(report.by_kind) == len(ACTIONS)
    assert report.worlds == 8 and report.checkpoints > report.worlds and report.faults and report.blocks_compared


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_long_walk(transport_or_auto, seed):
    _report, mismatch = walk("simulated", 25_000, seed, transport_or_auto)
    assert not mismatch, mismatch


def counts(report):
    return report.by_kind, report.checkpoints, report.faults, report.blocks_compared


def test_the_same_seed_makes_the_same_walk():
    one, other, another = (walk("simulated", 600, seed)[0] for seed in (3, 3, 4))
    assert counts(one) == counts(other) != counts(another)


def test_a_mismatch_is_repeated_by_what_is_printed(monkeypatch):
    """By the world's own seed, and by the list of its actions."""
    monkeypatch.setattr("numba_kvswap.overlaps.collide", lambda *_: False)
    report, text = walk("simulated", 20_000, 5)
    assert report.mismatches == 1 and report.steps < 20_000
    seed, steps = map(int, re.search(r"--seed (\d+) --steps (\d+)", text).groups())
    again, said = walk("simulated", steps, seed)
    assert again.mismatches == 1 and again.steps == steps
    assert said.splitlines()[0] == text.splitlines()[0]
    with pytest.raises(HistoryMismatch):
        exec(text, {})


# ---- the world ----


def test_a_world_orders_what_the_library_is_not_told_to():
    """A kernel's write on one stream, a swap on another; nothing runs until somebody waits."""
    replay(SHAPE, [Write(0, 2, 4), Swap(0, "out", (2,), (3,), 5), Write(0, 2, 6), Swap(1, "in", (1,), (3,), 3)])


def test_but_no_more_than_that():
    """Two swaps of one Swapper on two streams: no fence but the library's."""
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    world.apply(Swap(0, "out", (2,), (3,), 4))
    before = machine.driver.calls["cuStreamWaitEvent"]
    world.apply(Swap(0, "in", (4,), (3,), 5))
    assert machine.driver.calls["cuStreamWaitEvent"] == before + 1
    world.apply(Swap(1, "in", (4,), (3,), 6))  # of another Swapper that shares the pool: the user's
    assert machine.driver.calls["cuStreamWaitEvent"] == before + 2
    world.finish()


def test_a_wait_opens_the_latches_it_stands_behind_and_no_other():
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    world.apply(Hold(4))
    world.apply(Hold(5))
    world.apply(Swap(0, "out", (2,), (3,), 4))
    world.apply(Wait(0))
    assert len(world._latches) == 1
    world.finish()


def test_a_fault_is_expected_once():
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    world.apply(Fault("cuMemcpyAsync", 1))
    world.apply(Swap(0, "out", (2, 4), (3, 5), 4))
    assert world.faults == 1
    world.apply(Swap(0, "out", (2, 4), (3, 5), 4))
    world.finish()


def test_an_error_nobody_asked_for_is_none_of_the_faults():
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    machine.driver.fail("cuMemcpyAsync")
    with pytest.raises(RuntimeError, match="cuMemcpyAsync"):
        world.apply(Swap(0, "out", (2, 4), (3, 5), 4))


def test_a_fault_is_taken_back_at_a_checkpoint():
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    world.apply(Fault("cuMemcpyAsync", 0))
    world.check()
    world.apply(Swap(0, "out", (2, 4), (3, 5), 4))
    assert world.faults == 0
    assert world._host_sides[0].versions[3] == world._device_sides[0].versions[2]
    world.finish()


def test_a_pool_closed_with_transfers_under_way_takes_swaps_no_more_and_its_successor_does():
    world = replay(SHAPE, [Swap(0, "out", (2,), (3,), 4), ClosePool(0), Swap(0, "out", (2,), (3,), 4)])
    assert world.checkpoints == 1


@pytest.mark.parametrize("where", ["a block", "a guard"])
def test_a_byte_that_changed_by_itself_is_found(where):
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    side = world._host_sides[1]
    memory = machine.simulated.driver.allocation_at(side.images[0].address).memory
    memory[40 if where == "a block" else -1] ^= 1
    with pytest.raises(HistoryMismatch, match="of block" if where == "a block" else "a guard"):
        world.finish()


def test_a_kernel_that_reads_a_wrong_byte_says_so():
    machine = SimulatedMachine(schedule=b"")
    world = World(SHAPE, machine)
    world._device_sides[0].views[1][2] ^= 1
    world.apply(Read(0, 2, 4))
    with pytest.raises(HistoryMismatch, match="device block 2, layer 1"):
        world.finish()


def test_clocks_know_streams_hosts_and_the_legacy_default_stream():
    clocks = Clocks(("legacy", "blocking", "apart"), promised=True)
    written = clocks.put(1)
    assert written == (0, 1, 0)
    assert clocks.before(0) == (0, 1, 0)  # the legacy stream comes after blocking ones
    assert clocks.before(2) == (0, 0, 0)
    clocks.make_wait(2, written)
    assert clocks.before(2) == (0, 1, 0)
    on_legacy = clocks.put(0)
    assert on_legacy == (1, 1, 0)
    assert clocks.put(1) == (1, 2, 0)  # and blocking ones after it
    assert clocks.put(2) == (0, 1, 1)
    clocks.host_knows(on_legacy)
    assert clocks.put(2) == (1, 1, 2)  # what the host has seen is over for all


def test_a_wait_on_the_legacy_stream_orders_no_other_by_promise_but_perhaps():
    for promised in (True, False):
        clocks = Clocks(("legacy", "blocking", "apart"), promised=promised)
        clocks.make_wait(0, clocks.put(2))
        assert clocks.before(1) == ((0, 0, 0) if promised else (0, 0, 1))
