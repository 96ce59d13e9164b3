"""The compiled loops behind a plan: sort the pairs by target, keep each target's last, merge what ascends."""

from __future__ import annotations

import numpy as np

from numba_kvswap.ids import Ids
from numba_kvswap.jit import compiled

_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS


@compiled
def extremes(ids: Ids) -> tuple[np.int64, np.int64]:
    """Smallest and largest id; (0, -1) where there are none. One pass, where NumPy would make two slower ones."""
    smallest, largest = np.int64(0), np.int64(-1)
    for i in range(ids.size):
        smallest = min(smallest, ids[i])
        largest = max(largest, ids[i])
    return smallest, largest


@compiled
def merged_runs(source_ids: Ids, target_ids: Ids) -> tuple[Ids, Ids, Ids]:
    """(first source, first target, blocks) of every run, by ascending target. Ids are 0 or more."""
    order = _order_by_target(target_ids)
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
def _order_by_target(target_ids: Ids) -> Ids:
    """Positions of the pairs by ascending target, equal ones in the order given: a stable radix sort.

    Linear in the pairs for the block counts there are (two passes below four million blocks), where a
    comparison sort of 4,096 ids alone would take longer than the whole plan may.
    """
    count = target_ids.size
    order = np.arange(count)
    largest = np.int64(0)
    ascending = True
    for i in range(count):
        largest = max(largest, target_ids[i])
        if i > 0 and target_ids[i] < target_ids[i - 1]:
            ascending = False
    if ascending:
        return order
    other = np.empty(count, np.int64)
    starts = np.empty(_DIGITS, np.int64)
    shift = 0
    while shift < 63 and largest >> shift > 0:
        starts[:] = 0
        for i in range(count):
            starts[(target_ids[i] >> shift) & (_DIGITS - 1)] += 1
        total = 0
        for digit in range(_DIGITS):
            members = starts[digit]
            starts[digit] = total
            total += members
        for i in range(count):
            digit = (target_ids[order[i]] >> shift) & (_DIGITS - 1)
            other[starts[digit]] = order[i]
            starts[digit] += 1
        order, other = other, order
        shift += _DIGIT_BITS
    return order
