"""What making a plan costs, once its loops are compiled."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from numba_kvswap.bench.report import PlanRow
from numba_kvswap.bench.spread import spread_of
from numba_kvswap.plan import Plan

PAIRS = 4096
_CACHE_BLOCKS = 65_536
ARRAYS_US_MAX = 100.0
# A plan is so short that a handful of them would measure the machine's hiccups.
_PLANS_A_REPEAT = 30


def plan_rows(repeats: int, seed: int = 0) -> list[PlanRow]:
    """Microseconds for `Plan` of 4,096 scattered pairs, as NumPy arrays and as lists, one after the other."""
    random = np.random.default_rng(seed)
    arrays = [random.permutation(_CACHE_BLOCKS)[:PAIRS] for _ in range(2)]
    lists = [ids.tolist() for ids in arrays]
    Plan(*arrays)
    Plan(*lists)
    array_us, list_us = [], []
    for _ in range(repeats * _PLANS_A_REPEAT):
        start = perf_counter_ns()
        Plan(*arrays)
        between = perf_counter_ns()
        Plan(*lists)
        end = perf_counter_ns()
        array_us.append((between - start) / 1e3)
        list_us.append((end - between) / 1e3)
    return [
        PlanRow("Plan(numpy arrays)", PAIRS, spread_of(array_us), ARRAYS_US_MAX),
        PlanRow("Plan(lists)", PAIRS, spread_of(list_us), None),
    ]
