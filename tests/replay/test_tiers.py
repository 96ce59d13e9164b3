"""The placement policy: its rules one by one, against a model that scans plain lists, and on a real trace.

The rules are told with `lifo` host slots, which say at once where an id lies; `contiguous` is then compared with it.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kvswap import BlockAllocator
from numba_kvswap.replay.tiers import Moves, Placement, count_runs, each_block
from numba_kvswap.replay.trace import read_trace


class NaiveCache:
    """The rules of the replay, as they are written: plain lists, oldest first, scanned from the front each time."""

    def __init__(self, device_blocks: int, host_blocks: int, blocks_per_id: int, kept_free: int = 0) -> None:
        self.blocks_per_id, self.kept_free = blocks_per_id, kept_free
        self.device_ids_max = device_blocks // blocks_per_id
        self.device: list[tuple[int, list[int]]] = []
        self.host: list[tuple[int, list[int]]] = []
        self.device_free = list(range(device_blocks))[::-1]
        self.host_free = list(range(host_blocks))[::-1]

    def place(self, hash_ids: list[int]) -> dict[str, list]:
        while len(set(hash_ids)) > self.device_ids_max:
            hash_ids = hash_ids[:-1]
        moves: dict[str, list] = {"out": [], "in": [], "computed": []}
        for hash_id in hash_ids:
            entry = self.find(self.device, hash_id)
            if entry:
                self.device.remove(entry)
                self.device.append(entry)
                continue
            while len(self.device_free) < self.blocks_per_id:
                self.leave_device(next(e for e in self.device if e[0] not in hash_ids), hash_ids, moves)
            blocks = self.take(self.device_free)
            self.device.append((hash_id, blocks))
            held = self.find(self.host, hash_id)
            if held:
                moves["in"].append((hash_id, held[1], blocks))
                self.host.remove(held)
                self.host.append(held)
            else:
                moves["computed"].append((hash_id, blocks))
        return moves

    def leave_device(self, entry, named, moves) -> None:
        self.device.remove(entry)
        self.device_free += entry[1]
        if self.find(self.host, entry[0]):
            return
        while len(self.host_free) - self.kept_free < self.blocks_per_id:
            droppable = [e for e in self.host if e[0] not in named]
            if not droppable:
                return
            self.host.remove(droppable[0])
            self.host_free += droppable[0][1]
        blocks = self.take(self.host_free)
        self.host.append((entry[0], blocks))
        moves["out"].append((entry[0], entry[1], blocks))

    def take(self, free: list[int]) -> list[int]:
        return [free.pop() for _ in range(self.blocks_per_id)]

    @staticmethod
    def find(entries, hash_id):
        return next((e for e in entries if e[0] == hash_id), None)


def as_lists(moves: Moves, blocks_per_id: int) -> dict[str, list]:
    def by_id(blocks):
        return blocks.reshape(-1, blocks_per_id).tolist()

    return {
        "out": list(zip(moves.out_ids.tolist(), by_id(moves.out_device), by_id(moves.out_host), strict=True)),
        "in": list(zip(moves.in_ids.tolist(), by_id(moves.in_host), by_id(moves.in_device), strict=True)),
        "computed": list(zip(moves.computed_ids.tolist(), moves.computed_device.tolist(), strict=True)),
    }


def residents(pair) -> list[tuple[int, list[int]]]:
    ids, blocks = pair
    return list(zip(ids.tolist(), blocks.tolist(), strict=True))


class Contents:
    """What the blocks of both sides hold when a request's moves are carried out as three batches."""

    def __init__(self) -> None:
        self.device: dict[int, tuple[int, int]] = {}
        self.host: dict[int, tuple[int, int]] = {}

    def carry_out(self, moves: Moves, blocks_per_id: int) -> None:
        leaving = [self.device[block] for block in moves.out_device.tolist()]
        self.host.update(zip(moves.out_host.tolist(), leaving, strict=True))
        coming = [self.host[block] for block in moves.in_host.tolist()]
        assert coming == [(i, p) for i in moves.in_ids.tolist() for p in range(blocks_per_id)]
        self.device.update(zip(moves.in_device.tolist(), coming, strict=True))
        for hash_id, blocks in zip(moves.computed_ids.tolist(), moves.computed_device.tolist(), strict=True):
            self.device.update({block: (hash_id, p) for p, block in enumerate(blocks)})

    def check(self, cache: Placement) -> None:
        for held, pair in ((self.device, cache.device_blocks_by_id()), (self.host, cache.host_blocks_by_id())):
            for hash_id, blocks in residents(pair):
                assert [held[block] for block in blocks] == [(hash_id, p) for p in range(len(blocks))]


@st.composite
def replays(draw):
    blocks_per_id = draw(st.sampled_from([1, 1, 2, 3, 8]))
    device_blocks = draw(st.integers(blocks_per_id, 6 * blocks_per_id + 1))
    host_blocks = draw(st.integers(0, 7 * blocks_per_id + 1))
    requests = draw(st.lists(st.lists(st.integers(0, 14), max_size=9), max_size=25))
    headroom = draw(st.sampled_from([0, 0, 1, 10, 33.3, 50, 99.9]))
    return device_blocks, host_blocks, blocks_per_id, headroom, requests


@settings(max_examples=500, deadline=None)
@given(replays())
def test_every_move_is_the_naive_models_and_the_batches_leave_the_right_contents(replay):
    device_blocks, host_blocks, blocks_per_id, headroom, requests = replay
    cache = Placement(device_blocks, host_blocks, blocks_per_id, "lifo", headroom)
    naive = NaiveCache(device_blocks, host_blocks, blocks_per_id, math.ceil(host_blocks * headroom / 100))
    contents = Contents()
    for hash_ids in requests:
        moves = cache.place(hash_ids)
        assert as_lists(moves, blocks_per_id) == naive.place(hash_ids)
        assert residents(cache.device_blocks_by_id()) == naive.device
        assert residents(cache.host_blocks_by_id()) == naive.host
        contents.carry_out(moves, blocks_per_id)
        contents.check(cache)


class HostOfRuns:
    """Where `contiguous` must put ids: what left the host is freed in one call, then what comes is allocated in one.

    An id's host blocks ascend as its device blocks do.
    """

    def __init__(self, host_blocks: int) -> None:
        self.allocator = BlockAllocator(host_blocks)
        self.blocks: dict[int, list[int]] = {}

    def follow(self, moves: Moves, now: list[int], blocks_per_id: int) -> None:
        out_ids = moves.out_ids.tolist()
        # An id of the host may leave it and then, leaving the device too, come to it anew.
        gone = [self.blocks.pop(hash_id) for hash_id in list(self.blocks) if hash_id not in now or hash_id in out_ids]
        self.allocator.free([block for blocks in gone for block in blocks])
        allocated = self.allocator.allocate(moves.out_host.size).reshape(-1, blocks_per_id)
        ranks = moves.out_device.reshape(-1, blocks_per_id).argsort(axis=1).argsort(axis=1)
        placed = np.take_along_axis(allocated, ranks, axis=1)
        self.blocks |= dict(zip(out_ids, placed.tolist(), strict=True))


def last_of_each_target(moves: Moves, blocks_per_id: int) -> list[int]:
    """The ids swapped out, without those whose host blocks a later one of the same request overwrites."""
    by_id = zip(moves.out_ids.tolist(), moves.out_host.reshape(-1, blocks_per_id).tolist(), strict=True)
    last = {block: hash_id for hash_id, blocks in by_id for block in blocks}
    return [hash_id for hash_id in moves.out_ids.tolist() if hash_id in last.values()]


@settings(max_examples=500, deadline=None)
@given(replays())
def test_contiguous_slots_move_the_same_ids_between_other_host_blocks(replay):
    device_blocks, host_blocks, blocks_per_id, headroom, requests = replay
    sizes = device_blocks, host_blocks, blocks_per_id
    lifo, cache = (Placement(*sizes, slots, headroom) for slots in ("lifo", "contiguous"))
    contents, host = Contents(), HostOfRuns(host_blocks)
    for hash_ids in requests:
        expected, moves = lifo.place(hash_ids), cache.place(hash_ids)
        assert moves.out_ids.tolist() == last_of_each_target(expected, blocks_per_id)
        assert np.unique(moves.out_host).size == moves.out_host.size == np.unique(expected.out_host).size
        for name in ("in_ids", "in_device", "computed_ids", "computed_device"):
            assert getattr(moves, name).tolist() == getattr(expected, name).tolist()
        assert residents(cache.device_blocks_by_id()) == residents(lifo.device_blocks_by_id())
        now = cache.host_blocks_by_id()[0].tolist()
        assert now == lifo.host_blocks_by_id()[0].tolist()
        assert len(now) * blocks_per_id <= host_blocks * (1 - headroom / 100) + 1e-9
        host.follow(moves, now, blocks_per_id)
        assert residents(cache.host_blocks_by_id()) == [(hash_id, host.blocks[hash_id]) for hash_id in now]
        contents.carry_out(moves, blocks_per_id)
        contents.check(cache)


def moves_of(cache: Placement, *requests: list[int]) -> dict[str, list]:
    """The moves of the last request."""
    for hash_ids in requests:
        moves = cache.place(hash_ids)
    return as_lists(moves, cache.blocks_per_id)


def test_fresh_blocks_are_used_from_zero_up():
    assert moves_of(Placement(4, 4), [7, 5])["computed"] == [(7, [0]), (5, [1])]


def test_what_the_device_holds_does_not_move():
    assert moves_of(Placement(4, 4), [7, 5], [5, 7]) == {"out": [], "in": [], "computed": []}


def test_the_least_recently_used_leaves_and_its_block_is_used_next():
    moves = moves_of(Placement(2, 4), [1, 2], [1], [3])
    assert moves == {"out": [(2, [1], [0])], "in": [], "computed": [(3, [1])]}


def test_an_id_comes_back_from_the_host_and_stays_there():
    cache = Placement(1, 4)
    assert moves_of(cache, [1], [2], [1]) == {"out": [(2, [0], [1])], "in": [(1, [0], [0])], "computed": []}
    # The host still holds 1, so it leaves the device without a swap out.
    assert moves_of(cache, [2]) == {"out": [], "in": [(2, [1], [0])], "computed": []}
    assert residents(cache.host_blocks_by_id()) == [(1, [0]), (2, [1])]


def test_an_id_that_the_request_names_later_does_not_leave():
    assert moves_of(Placement(2, 4), [1, 2], [3, 1])["out"] == [(2, [1], [0])]


def test_the_host_drops_its_least_recently_used_but_not_a_named_one():
    # The host holds 1 and 2. The request names 1, so 2 makes room for 3.
    moves = moves_of(Placement(1, 2), [1], [2], [3], [1])
    assert moves == {"out": [(3, [0], [1])], "in": [(1, [0], [0])], "computed": []}


def test_a_named_id_looked_past_keeps_its_place_on_the_host():
    cache = Placement(2, 2)
    for hash_ids in ([1, 2], [3, 4], [1, 3]):
        cache.place(hash_ids)
    assert residents(cache.host_blocks_by_id())[-1][0] == 1
    # 1 is on both sides and named: the host drops the other one, and 1 is now its oldest.
    cache.place([1, 5])
    host = [hash_id for hash_id, _ in residents(cache.host_blocks_by_id())]
    assert host == [1, 3]


def test_what_leaves_is_lost_where_the_host_has_no_block_to_give():
    assert moves_of(Placement(1, 0), [1], [2], [1]) == {"out": [], "in": [], "computed": [(1, [0])]}
    assert moves_of(Placement(1, 1), [1], [2], [1]) == {"out": [], "in": [(1, [0], [0])], "computed": []}


def test_a_host_block_named_twice_by_one_request_ends_with_the_last():
    cache = Placement(2, 1, host_slots="lifo")
    moves = moves_of(cache, [1, 2], [3, 4])
    assert moves["out"] == [(1, [0], [0]), (2, [1], [0])]
    assert residents(cache.host_blocks_by_id()) == [(2, [0])]


def test_an_id_whose_slot_was_only_promised_is_not_swapped_out_where_it_is_dropped_again():
    cache = Placement(2, 1, host_slots="contiguous")
    assert moves_of(cache, [1, 2], [3, 4])["out"] == [(2, [1], [0])]
    assert residents(cache.host_blocks_by_id()) == [(2, [0])]


@pytest.mark.parametrize(("host_slots", "host"), [("lifo", [2, 1]), ("contiguous", [1, 2])])
def test_what_leaves_together_lies_together(host_slots, host):
    # 1, 2 and 3 go to host blocks 0, 1 and 2; 2 is asked for, and 4 takes the place of 1; then 3 and 2 are dropped.
    moves = moves_of(Placement(2, 3, host_slots=host_slots), [1, 2], [3, 4], [2], [5, 6], [7, 8])
    assert [(hash_id, blocks) for hash_id, _, blocks in moves["out"]] == [(5, host[:1]), (6, host[1:])]


def test_a_request_is_cut_to_the_distinct_ids_that_the_device_can_hold():
    assert moves_of(Placement(2, 4), [1, 1, 2, 1, 3, 4])["computed"] == [(1, [0]), (2, [1])]
    assert moves_of(Placement(17, 4, blocks_per_id=8), [1, 2, 3])["computed"] == [
        (1, list(range(8))),
        (2, list(range(8, 16))),
    ]


def test_an_id_named_twice_is_moved_once_and_is_as_recent_as_its_last_mention():
    cache = Placement(3, 4)
    assert moves_of(cache, [1, 2, 1])["computed"] == [(1, [0]), (2, [1])]
    assert residents(cache.device_blocks_by_id()) == [(2, [1]), (1, [0])]


def test_the_blocks_of_an_id_are_placed_one_by_one():
    # One block is spare: 2 takes it and what 1 freed, the block freed last first.
    moves = moves_of(Placement(3, 4, blocks_per_id=2), [1], [2])
    assert moves == {"out": [(1, [0, 1], [0, 1])], "in": [], "computed": [(2, [1, 0])]}


def test_contiguous_slots_of_an_id_follow_its_device_blocks():
    # By position 2 lies in device blocks 1 and 0, the last freed first.
    moves = moves_of(Placement(2, 4, blocks_per_id=2), [1], [2], [3])
    assert moves["out"] == [(2, [1, 0], [3, 2])]


def test_each_block_has_its_id_and_position():
    ids, positions = each_block(np.array([7, 5]), 3)
    assert (ids.tolist(), positions.tolist()) == ([7, 7, 7, 5, 5, 5], [0, 1, 2, 0, 1, 2])
    assert each_block(np.array([], dtype=np.int64), 3)[1].dtype == np.int64


@given(st.lists(st.integers(0, 20)))
def test_runs_are_counted_as_a_scan_counts_them(blocks):
    firsts = {block for block in blocks if block - 1 not in blocks}
    assert count_runs(np.array(blocks, dtype=np.int64)) == len(firsts)


def test_an_empty_request_gives_empty_int64_arrays():
    moves = Placement(8, 8, blocks_per_id=8).place([])
    assert moves.computed_device.shape == (0, 8)
    for name in Moves.__slots__:
        array = getattr(moves, name)
        assert array.size == 0
        assert array.dtype == np.int64


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((7, 8, 8), "device_blocks: came 7, expected at least the 8 blocks"),
        ((0, 8, 1), "device_blocks: came 0"),
        ((8, -1, 1), "host_blocks: came -1"),
        ((8, 8, 0), "blocks_per_id: came 0"),
        ((8, 8, 1, "fifo"), "host_slots: came 'fifo', expected one of lifo, contiguous"),
        ((8, 8, 1, "lifo", -1), "host_headroom_percent: came -1, expected 0 or more, below 100"),
        ((8, 8, 1, "lifo", 100), "host_headroom_percent: came 100"),
        ((8, 8, 1, "lifo", float("nan")), "host_headroom_percent: came nan"),
    ],
)
def test_sizes_that_cannot_be(arguments, says):
    with pytest.raises(ValueError, match=says):
        Placement(*arguments)


@pytest.mark.parametrize("seed", range(4))
def test_headroom_gives_an_allocator_longer_runs(seed):
    random, lengths = np.random.default_rng(seed), []
    requests = [random.integers(0, 60, random.integers(1, 6)).tolist() for _ in range(300)]
    for headroom in (0, 10, 25):
        cache = Placement(8, 40, host_slots="contiguous", host_headroom_percent=headroom)
        outs = [cache.place(request).out_host for request in requests]
        lengths.append(sum(out.size for out in outs) / sum(map(count_runs, outs)))
    assert lengths[0] < lengths[1] < lengths[2]


class CountsQuestions(set):
    """A set that counts how often it is asked for a member."""

    asked = 0

    def __contains__(self, member):
        CountsQuestions.asked += 1
        return super().__contains__(member)


def test_looking_past_named_ids_is_not_quadratic(monkeypatch):
    ids = 2_000
    placement = Placement(2 * ids, 2 * ids)
    placement.place(range(ids))
    placement.place(range(ids, 2 * ids))
    # 0..ids-1 are the oldest and named: each eviction must look past all of them to find one of the others.
    request = [*range(2 * ids, 3 * ids), *range(ids)]
    monkeypatch.setattr(placement, "_cut", lambda hash_ids: (list(hash_ids), CountsQuestions(hash_ids)))
    moves = placement.place(request)
    assert moves.out_ids.tolist() == list(range(ids, 2 * ids))
    assert CountsQuestions.asked < 4 * len(request)  # a scan for each eviction would ask four million times


@pytest.mark.parametrize(
    ("headroom", "counts"),
    [
        (1, (233_409, 41_456, 58_280, 11_956, 44_229, 9_646)),
        (5, (234_633, 40_232, 34_615, 7_878, 17_654, 5_391)),
    ],
)
def test_what_headroom_does_to_the_runs_of_the_mooncake_trace(mooncake_trace, headroom, counts):
    cache = Placement(1000, 8000, host_slots="contiguous", host_headroom_percent=headroom)
    found = np.zeros(6, dtype=np.int64)
    for request in read_trace(mooncake_trace):
        moves = cache.place(request.hash_ids)
        found += (
            moves.out_host.size,
            moves.in_host.size,
            merged_runs(moves.out_device, moves.out_host),
            merged_runs(moves.in_host, moves.in_device),
            count_runs(moves.out_host),
            count_runs(moves.in_host),
        )
    assert tuple(found.tolist()) == counts


def merged_runs(source: np.ndarray, target: np.ndarray) -> int:
    """Runs of pairs that ascend by one on both sides, once sorted by target."""
    if target.size == 0:
        return 0
    order = np.argsort(target)
    breaks = (np.diff(source[order]) != 1) | (np.diff(target[order]) != 1)
    return 1 + int(breaks.sum())


@pytest.mark.parametrize(
    ("host_slots", "blocks_per_id", "runs_out", "runs_in"),
    [
        ("lifo", 1, 196_447, 34_908),
        ("lifo", 8, 1_030_128, 186_351),
        ("contiguous", 1, 89_597, 17_192),
        ("contiguous", 8, 89_597, 174_654),
    ],
)
def test_the_counts_of_the_mooncake_trace(mooncake_trace, host_slots, blocks_per_id, runs_out, runs_in):
    cache = Placement(1000 * blocks_per_id, 8000 * blocks_per_id, blocks_per_id, host_slots)
    counts = np.zeros(5, dtype=np.int64)
    for request in read_trace(mooncake_trace):
        moves = cache.place(request.hash_ids)
        counts += (
            1,
            moves.out_host.size,
            moves.in_host.size,
            merged_runs(moves.out_device, moves.out_host),
            merged_runs(moves.in_host, moves.in_device),
        )
    assert counts.tolist() == [12_031, 233_005 * blocks_per_id, 41_860 * blocks_per_id, runs_out, runs_in]
