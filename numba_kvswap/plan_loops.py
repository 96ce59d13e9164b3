"""The compiled loops behind a plan: sort the pairs by target, keep each target's last, merge what ascends."""

from __future__ import annotations

import numpy as np

from numba_kvswap.ids import Ids
from numba_kvswap.jit import compiled, holding_the_gil

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
# So many bytes a block are marked to count stretches: no more than the arrays of a sort take.
_MARKED_A_BLOCK = 16


@compiled
def planned(source_ids: Ids, target_ids: Ids) -> tuple[np.int64, np.int64, np.int64, np.int64, int, int, int, Ids]:
    """Smallest and largest source, smallest and largest target, blocks that move, stretches of neighbouring sources and
    of targets, runs; all of it in one call.

    Runs: int64 [3, runs], first source, first target and blocks of each, by ascending target; none where an id is
    negative. A smallest that is not negative is told as 0, a largest of no ids as -1.
    """
    source_min, source_max = _extremes(source_ids)
    target_min, target_max = _extremes(target_ids)
    blocks, target_stretches = 0, 0
    if source_min < 0 or target_min < 0:
        return source_min, source_max, target_min, target_max, blocks, 0, 0, np.empty((3, 0), np.int64)
    runs = _merged_runs(source_ids, target_ids)
    end = np.int64(-1)
    for run in range(runs.shape[1]):
        blocks += runs[2, run]
        target_stretches += runs[1, run] != end
        end = runs[1, run] + runs[2, run]
    return source_min, source_max, target_min, target_max, blocks, _stretches(source_ids), target_stretches, runs


@compiled
def _stretches(ids: Ids) -> int:
    """Of neighbouring blocks, each block once, where they lie within some times as many. A sort for the others would
    take as long as the rest of a plan; of them those count as neighbours that come one after the other, up or down."""
    found, smallest, largest = 0, ids[0] if ids.size else np.int64(0), np.int64(-1)
    for i in range(ids.size):
        smallest, largest = min(smallest, ids[i]), max(largest, ids[i])
    if largest - smallest >= _MARKED_A_BLOCK * ids.size:
        for i in range(ids.size):
            found += i == 0 or abs(ids[i] - ids[i - 1]) != 1
        return found
    marked = np.zeros(largest - smallest + 2, np.bool_)  # one more in front, which stays empty
    for i in range(ids.size):
        marked[ids[i] - smallest + 1] = True
    for at in range(1, marked.size):
        found += marked[at] and not marked[at - 1]
    return found


@compiled
def _extremes(ids: Ids) -> tuple[np.int64, np.int64]:
    """The smallest id, but 0 at most, and the largest, but -1 at least: what bounds are asked about."""
    smallest, largest = np.int64(0), np.int64(-1)
    for i in range(ids.size):
        smallest = min(smallest, ids[i])
        largest = max(largest, ids[i])
    return smallest, largest


@compiled
def _merged_runs(source_ids: Ids, target_ids: Ids) -> Ids:
    order = order_of(target_ids)
    count = order.size
    merged = np.empty((3, count), np.int64)
    run_source, run_target, run_blocks = merged[0], merged[1], merged[2]
    runs = 0
    for i in range(count):
        target = target_ids[order[i]]
        if i + 1 < count and target_ids[order[i + 1]] == target:
            continue  # the sort is stable, so a later pair with this target follows, and it wins
        source = source_ids[order[i]]
        if (
            runs > 0
            and source == run_source[runs - 1] + run_blocks[runs - 1]
            and target == run_target[runs - 1] + run_blocks[runs - 1]
        ):
            run_blocks[runs - 1] += 1
        else:
            run_source[runs] = source
            run_target[runs] = target
            run_blocks[runs] = 1
            runs += 1
    return merged if runs == count else merged[:, :runs].copy()


@compiled
def order_of(ids: Ids) -> Ids:
    """Positions of the ids, which are 0 or more, by ascending id, equal ones in the order given: a stable radix sort.

    Linear in the pairs for the block counts there are (two passes below four million blocks), where a
    comparison sort of 4,096 ids alone would take longer than the whole plan may.
    """
    count = ids.size
    order = np.arange(count)
    largest = np.int64(0)
    ascending = True
    for i in range(count):
        largest = max(largest, ids[i])
        if i > 0 and ids[i] < ids[i - 1]:
            ascending = False
    if ascending:
        return order
    other = np.empty(count, np.int64)
    starts = np.empty(_DIGITS, np.int64)
    shift = 0
    while shift < 63 and largest >> shift > 0:
        starts[:] = 0
        for i in range(count):
            starts[(ids[i] >> shift) & (_DIGITS - 1)] += 1
        total = 0
        for digit in range(_DIGITS):
            members = starts[digit]
            starts[digit] = total
            total += members
        for i in range(count):
            digit = (ids[order[i]] >> shift) & (_DIGITS - 1)
            other[starts[digit]] = order[i]
            starts[digit] += 1
        order, other = other, order
        shift += _DIGIT_BITS
    return order


planned_briefly = holding_the_gil(planned)
order_of_briefly = holding_the_gil(order_of)
