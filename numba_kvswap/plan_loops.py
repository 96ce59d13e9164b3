"""The compiled loops behind a plan: sort the pairs by target, keep each target's last, merge what ascends."""

from __future__ import annotations

import numpy as np

from numba_kvswap.ids import Ids
from numba_kvswap.jit import compiled, holding_the_gil

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS


#: What `planned` says of the pairs: smallest and largest source, smallest and largest target, blocks that move.
SOURCE_MIN, SOURCE_MAX, TARGET_MIN, TARGET_MAX, BLOCKS = range(5)


@compiled
def planned(source_ids: Ids, target_ids: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """The facts above, then what `merged_runs` returns; no runs where an id is negative. All of it in one call."""
    facts = np.zeros(5, np.int64)
    _extremes(source_ids, facts[SOURCE_MIN:TARGET_MIN])
    _extremes(target_ids, facts[TARGET_MIN:BLOCKS])
    if facts[SOURCE_MIN] < 0 or facts[TARGET_MIN] < 0:
        none = np.empty(0, np.int64)
        return facts, none, none, none
    run_source, run_target, run_blocks = merged_runs(source_ids, target_ids)
    for run in range(run_blocks.size):
        facts[BLOCKS] += run_blocks[run]
    return facts, run_source, run_target, run_blocks


@compiled
def _extremes(ids: Ids, found: Ids) -> None:
    """Smallest and largest id; 0 and -1 where there are none."""
    found[0], found[1] = 0, -1
    for i in range(ids.size):
        found[0] = min(found[0], ids[i])
        found[1] = max(found[1], ids[i])


@compiled
def merged_runs(source_ids: Ids, target_ids: Ids) -> tuple[Ids, Ids, Ids]:
    """(first source, first target, blocks) of every run, by ascending target. Ids are 0 or more."""
    order = order_of(target_ids)
    count = order.size
    run_source = np.empty(count, np.int64)
    run_target = np.empty(count, np.int64)
    run_blocks = np.empty(count, np.int64)
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
    return run_source[:runs].copy(), run_target[:runs].copy(), run_blocks[:runs].copy()


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
