"""BlockAllocator: what it hands out, beside a set of free ids that is scanned each time, and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from numba_kvswap import BlockAllocator


def with_gaps(blocks: int, *free: range) -> BlockAllocator:
    """An allocator whose free runs are these."""
    allocator = BlockAllocator(blocks)
    allocator.allocate(blocks)
    for run in free:
        allocator.free(run)
    return allocator


@pytest.mark.parametrize(
    ("count", "ids"),
    [
        (1, [10]),  # the smallest run that holds it, not the first
        (2, [10, 11]),
        (3, [0, 1, 2]),  # of two of one length the lower
        (4, [20, 21, 22, 23]),
        (6, [20, 21, 22, 23, 24, 10]),  # none is long enough: the longest, then the best for the rest
        (8, [20, 21, 22, 23, 24, 0, 1, 2]),
        (10, [20, 21, 22, 23, 24, 0, 1, 2, 10, 11]),
        (0, []),
    ],
)
def test_the_best_fit(count, ids):
    assert with_gaps(40, range(20, 25), range(3), range(10, 12), range(30, 33)).allocate(count).tolist() == ids


def test_the_rest_of_a_run_stays_free():
    allocator = BlockAllocator(3)
    assert [allocator.allocate(count).tolist() for count in (2, 1)] == [[0, 1], [2]]


def test_freed_blocks_are_one_with_both_neighbours():
    allocator = with_gaps(9, range(2, 4), range(5, 7))
    assert (allocator.free_runs, allocator.longest_free_run) == (2, 2)
    allocator.free([4])
    assert (allocator.free_runs, allocator.longest_free_run) == (1, 5)


def test_it_says_what_is_free():
    allocator = with_gaps(40, range(5), range(10, 12))
    assert repr(allocator) == "BlockAllocator(40 blocks: 7 free in 2 runs, the longest 5)"


def test_what_was_handed_out_is_the_callers():
    allocator = BlockAllocator(4)
    ids = allocator.allocate(2)
    ids[:] = 3
    assert allocator.allocate(2).tolist() == [2, 3]


def test_an_array_freed_stays_as_it_was():
    allocator = with_gaps(4)
    ids = np.array([3, 1])
    allocator.free(ids)
    assert ids.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: BlockAllocator(-1), ValueError, "blocks is -1; expected 0 or more"),
        (lambda: BlockAllocator(True), TypeError, "blocks is True; expected an integer"),
        (lambda: BlockAllocator(2.0), TypeError, "blocks is 2.0; expected an integer"),
        (lambda: BlockAllocator(8).allocate(-1), ValueError, "count is -1; expected 0 or more"),
        (lambda: BlockAllocator(8).allocate(1.0), TypeError, "count is 1.0; expected an integer"),
        (lambda: BlockAllocator(8).allocate(9), ValueError, "9 blocks asked for, and 8 of 8 are free"),
        (lambda: with_gaps(8).free([1, True]), TypeError, "freed id at position 1 is True"),
        (lambda: with_gaps(8).free(3), TypeError, "freed ids are 3; expected a one-dimensional sequence"),
        (lambda: with_gaps(8).free([2, 9, -1]), IndexError, "position 1: freed id 9; expected 0 <= id < 8"),
        (lambda: BlockAllocator(8).free([5]), ValueError, "freed id 5 is free already"),
        (lambda: with_gaps(8, range(5, 6)).free([5, 4]), ValueError, "freed id 5 is free already"),
        (lambda: with_gaps(8).free([2, 3, 2]), ValueError, "freed id 2 is named twice; expected each id once"),
    ],
)
def test_calls_that_are_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_a_run_freed_whole_is_merged_at_once(monkeypatch):
    allocator = with_gaps(10_000)
    merged = []
    monkeypatch.setattr(allocator, "_insert", lambda first, length: merged.append((first, length)))
    allocator.free([*range(5000, 6000), *range(4000, 4999)])
    assert merged == [(4000, 999), (5000, 1000)]


# ---- beside a model ----

BLOCKS_MAX = 40


class NaiveAllocator:
    """The rules as they are written: a set of free ids, sorted and scanned for every piece."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free_ids = set(range(blocks))

    def runs(self) -> list[list[int]]:
        runs: list[list[int]] = []
        for block in sorted(self.free_ids):
            if runs and runs[-1][-1] == block - 1:
                runs[-1].append(block)
            else:
                runs.append([block])
        return runs

    def allocate(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            rest = count - len(taken)
            holding = [run for run in self.runs() if len(run) >= rest]
            # min and max keep the first of equals, and runs() begins at the lowest address.
            piece = min(holding, key=len)[:rest] if holding else max(self.runs(), key=len)
            self.free_ids -= set(piece)
            taken += piece
        return taken


class AllocatorMachine(RuleBasedStateMachine):
    """After every step, and after every error, the allocator must be where the model is."""

    @initialize(blocks=st.integers(0, BLOCKS_MAX))
    def start(self, blocks):
        self.naive = NaiveAllocator(blocks)
        self.allocator = BlockAllocator(blocks)

    def used(self) -> list[int]:
        return sorted(set(range(self.naive.blocks)) - self.naive.free_ids)

    @rule(data=st.data())
    def allocate(self, data):
        # Mostly little at a time: what is taken at once and whole leaves no gaps to choose from.
        free = len(self.naive.free_ids)
        count = data.draw(st.integers(0, min(free, 4)) | st.integers(0, free))
        ids = self.allocator.allocate(count)
        assert ids.dtype == np.int64
        assert ids.tolist() == self.naive.allocate(count)

    @precondition(lambda self: self.used())
    @rule(data=st.data(), kind=st.sampled_from([list, tuple, iter, np.array]))
    def free(self, data, kind):
        ids = data.draw(st.lists(st.sampled_from(self.used()), unique=True, min_size=1))
        self.allocator.free(kind(ids))
        self.naive.free_ids |= set(ids)

    @rule(beyond=st.integers(1, 5))
    def allocate_too_many(self, beyond):
        with pytest.raises(ValueError, match="free some first"):
            self.allocator.allocate(len(self.naive.free_ids) + beyond)

    def free_with(self, data, wrong, error, says):
        """One free that names, somewhere among used ids, `wrong` ones too."""
        some = data.draw(st.lists(st.sampled_from(self.used()), unique=True)) if self.used() else []
        ids = data.draw(st.permutations(some + wrong))
        with pytest.raises(error, match=says):
            self.allocator.free(ids)

    @precondition(lambda self: self.naive.free_ids)
    @rule(data=st.data())
    def free_a_free_one(self, data):
        block = data.draw(st.sampled_from(sorted(self.naive.free_ids)))
        self.free_with(data, [block], ValueError, f"freed id {block} is free already")

    @rule(data=st.data())
    def free_one_that_is_not_there(self, data):
        block = data.draw(st.sampled_from([-1, self.naive.blocks, 1 << 70]))
        self.free_with(data, [block], IndexError, f"freed id {block}; expected 0 <= id < {self.naive.blocks}")

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def free_one_twice_in_a_call(self, data):
        block = data.draw(st.sampled_from(self.used()))
        self.free_with(data, [block, block], ValueError, "named twice")

    @invariant()
    def counts_agree(self):
        runs = self.naive.runs()
        assert self.allocator.blocks == self.naive.blocks
        assert self.allocator.free_blocks == len(self.naive.free_ids)
        assert self.allocator.free_runs == len(runs)
        assert self.allocator.longest_free_run == max(map(len, runs), default=0)

    @invariant()
    def a_copy_drained_whole_gives_every_free_run(self):
        drained = copy.deepcopy(self.allocator).allocate(len(self.naive.free_ids)).tolist()
        assert drained == copy.deepcopy(self.naive).allocate(len(self.naive.free_ids))


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(stateful_step_count=30)
