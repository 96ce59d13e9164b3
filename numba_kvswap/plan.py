"""Id pairs, checked, de-duplicated and merged: a value that any layer, cache or direction can use again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kvswap.ids import NO_BOUND, Ids, as_ids
from numba_kvswap.plan_loops import planned, planned_briefly

Sides = tuple[str, str]
# So many pairs are planned in some 50 us, which is no reason to give up the GIL.
_BRIEF_PAIRS_MAX = 4096


class Plan:
    """What to copy where: pair i moves block ``source_ids[i]`` onto block ``target_ids[i]``.

    Of the pairs that name one target only the last counts. What remains is merged into runs, pairs that
    ascend by one on both sides, whatever order they came in. A plan is immutable and knows nothing of
    caches: it may be kept, used again, from several threads, for any cache with enough blocks.

    Takes NumPy arrays, lists, any other iterable of integers, and torch CPU tensors; it keeps copies. An iterable is
    read to its end before anything is checked, so it must have one. Memory goes by how many ids there are, some 100
    bytes a pair while a plan is made, never by how large they are.
    `sides` names the two lists in errors. `blocks`, how many blocks the source and the target have, bounds the ids
    where that is known already; every swap compares a plan with its caches in any case.

    Attributes (int64 arrays, read-only):
        source_ids, target_ids: the pairs in the order given.
        run_source, run_target, run_blocks: first source, first target and length of every run, by
            ascending target.

    Also: `blocks`, those that move, one a target; `stretches`, how many there are of neighbouring blocks among the
    sources and among the targets; those of sources far apart are counted in the order given, so perhaps too many.

    Raises:
        TypeError: an id is not an integer (bool, float, None, ...), or the ids are not one-dimensional.
        ValueError: lists of different length.
        IndexError: an id that is negative, not below `blocks`, or beyond 63 bits.
    """

    sides: Sides
    source_ids: Ids
    target_ids: Ids
    run_source: Ids
    run_target: Ids
    run_blocks: Ids
    blocks: int
    stretches: tuple[int, int]
    _largest: tuple[int, int]

    __slots__ = (
        "_largest",
        "blocks",
        "run_blocks",
        "run_source",
        "run_target",
        "sides",
        "source_ids",
        "stretches",
        "target_ids",
    )

    def __init__(
        self,
        source_ids: Iterable[Any],
        target_ids: Iterable[Any],
        *,
        sides: Sides = ("source", "target"),
        blocks: tuple[int, int] = (NO_BOUND, NO_BOUND),
    ) -> None:
        source, target = as_ids(source_ids, sides[0]), as_ids(target_ids, sides[1])
        if source.size != target.size:
            raise ValueError(f"{source.size} {sides[0]} ids and {target.size} {sides[1]} ids; expected as many")
        if source.dtype.hasobject or target.dtype.hasobject:  # an id beyond 63 bits, and so beyond any bound
            _check_side(source, blocks[0], sides[0])
            _check_side(target, blocks[1], sides[1])
        self._fill(source, target, sides, blocks)

    def _fill(self, source: Ids, target: Ids, sides: Sides, blocks: tuple[int, int]) -> None:
        plan = planned_briefly if source.size <= _BRIEF_PAIRS_MAX else planned
        source_min, source_max, target_min, target_max, moved, *stretches, runs = plan(source, target)
        if source_min < 0 or source_max >= blocks[0]:
            _check_side(source, blocks[0], sides[0])
        if target_min < 0 or target_max >= blocks[1]:
            _check_side(target, blocks[1], sides[1])
        for array in (source, target, runs):
            array.setflags(write=False)
        put = object.__setattr__
        put(self, "source_ids", source)
        put(self, "target_ids", target)
        put(self, "run_source", runs[0])
        put(self, "run_target", runs[1])
        put(self, "run_blocks", runs[2])
        put(self, "blocks", moved)
        put(self, "stretches", tuple(stretches))
        put(self, "sides", sides)
        put(self, "_largest", (source_max, target_max))

    def __setattr__(self, name: str, value: object) -> None:
        # What a plan holds has been checked, and memory is written by it.
        raise AttributeError(f"a Plan is immutable; make another instead of setting {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Plan is immutable; {name} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return _plan_again, (self.source_ids, self.target_ids, self.sides)

    @property
    def pairs(self) -> int:
        """Pairs as given, repeated targets counted."""
        return int(self.source_ids.size)

    @property
    def runs(self) -> int:
        return int(self.run_blocks.size)

    @property
    def blocks_per_run(self) -> float:
        """The merge ratio; 0.0 for an empty plan."""
        return self.blocks / self.runs if self.runs else 0.0

    @property
    def least_blocks(self) -> tuple[int, int]:
        """The fewest blocks that source and target must have: one more than the largest id, 0 for no pairs."""
        return self._largest[0] + 1, self._largest[1] + 1

    def reversed(self) -> Plan:
        """The plan of the same pairs with source and target exchanged: ``Plan(target_ids, source_ids)``.

        Where no target repeats this moves every block back. Where a target repeats, its several sources
        become targets, and all receive it, as the pairs say.
        """
        back = Plan.__new__(Plan)
        back._fill(self.target_ids, self.source_ids, self.sides[::-1], (NO_BOUND, NO_BOUND))
        return back

    def check_bounds(self, source_blocks: int, target_blocks: int) -> None:
        """IndexError, naming position, id, side and bound, where an id lies outside its side."""
        if self._largest[0] >= source_blocks:
            _check_side(self.source_ids, source_blocks, self.sides[0])
        if self._largest[1] >= target_blocks:
            _check_side(self.target_ids, target_blocks, self.sides[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return np.array_equal(self.source_ids, other.source_ids) and np.array_equal(self.target_ids, other.target_ids)

    def __hash__(self) -> int:
        return hash((self.source_ids.tobytes(), self.target_ids.tobytes()))

    def __repr__(self) -> str:
        return (
            f"Plan({self.pairs} pairs, {self.sides[0]} -> {self.sides[1]}: {self.blocks} blocks in {self.runs} runs, "
            f"{self.blocks_per_run:.2f} blocks a run)"
        )

    def _repr_html_(self) -> str:
        """The plan drawn as inline SVG, which notebooks show by themselves: blocks of both sides, a band a run."""
        from numba_kvswap.plan_picture import svg

        return svg(self)


def _check_side(ids: npt.NDArray[Any], bound: int, side: str) -> None:
    """IndexError, naming the first of them, where an id is negative or not below `bound`."""
    outside = np.flatnonzero((ids < 0) | (ids >= bound))
    if outside.size:
        position = int(outside[0])
        expected = f"0 <= id < {bound}" if bound < NO_BOUND else "0 or more, and less than its side has blocks"
        raise IndexError(f"position {position}: {side} id {ids[position]}; expected {expected}")


def _plan_again(source_ids: Ids, target_ids: Ids, sides: Sides) -> Plan:
    """For copy and pickle, which would else restore arrays that can be written."""
    return Plan(source_ids, target_ids, sides=sides)
