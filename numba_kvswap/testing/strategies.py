"""Hypothesis strategies for swaps. They draw through `make_case`, so that they and ``check`` make the same cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from hypothesis import assume
from hypothesis import strategies as st

from numba_kvswap.testing.cases import SwapCase, make_case
from numba_kvswap.testing.faults import faults_of

__all__ = ["id_pairs", "swap_cases"]


@st.composite
def swap_cases(draw: st.DrawFn, faults: Collection[str] = ("",)) -> SwapCase:
    """Calls of the op and of a Swapper; valid ones, unless told otherwise.

    faults: names from `FAULTS`, of which each case has one that its entry can have; "" stands for a valid call.
        ``swap_cases(faults=OP_FAULTS)`` makes every wrong call there is, ``swap_cases(faults=FAULTS)`` all calls.
    """
    case = make_case(lambda low, high: draw(st.integers(low, high)))
    possible = [name for name in ("", *faults_of(case)) if name in faults]
    assume(possible)  # a fault that only the op can have, and a Swapper's case
    return dataclasses.replace(case, fault=draw(st.sampled_from(possible)))


@st.composite
def id_pairs(
    draw: st.DrawFn, source_blocks: int = 64, target_blocks: int = 64, stretches_max: int = 8
) -> tuple[list[int], list[int]]:
    """Source and target ids in bounds, in stretches that run up, down or stand still; shuffled now and then.

    Both sides step together often enough for runs to form, and targets repeat.
    """
    step = st.sampled_from((1, 1, -1, 0))
    stretch = st.tuples(
        st.integers(0, source_blocks - 1), st.integers(0, target_blocks - 1), step, step, st.integers(1, 8)
    )
    pairs = [
        (source + i * source_step, target + i * target_step)
        for source, target, source_step, target_step, length in draw(st.lists(stretch, max_size=stretches_max))
        for i in range(length)
        if 0 <= source + i * source_step < source_blocks and 0 <= target + i * target_step < target_blocks
    ]
    if draw(st.booleans()):
        pairs = draw(st.permutations(pairs))
    return [source for source, _ in pairs], [target for _, target in pairs]
