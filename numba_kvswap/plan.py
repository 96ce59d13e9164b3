"""Id pairs, checked, de-duplicated and merged: a value that any layer, cache or direction can use again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kvswap.interop import check_integer
from numba_kvswap.plan_loops import merged_runs

Ids = npt.NDArray[np.int64]
Sides = tuple[str, str]

# No cache has that many blocks, and int64 holds every id below it.
_NO_BOUND = 1 << 63


class Plan:
    """What to copy where: pair i moves block ``source_ids[i]`` onto block ``target_ids[i]``.

    Of the pairs that name one target only the last counts. What remains is merged into runs, pairs that
    ascend by one on both sides, whatever order they came in. A plan is immutable and knows nothing of
    caches: it may be kept, used again, from several threads, for any cache with enough blocks.

    Takes NumPy arrays, lists, any other iterable of integers, and torch CPU tensors; it keeps copies.
    `sides` names the two lists in errors.

    Attributes (int64 arrays, read-only):
        source_ids, target_ids: the pairs in the order given.
        run_source, run_target, run_blocks: first source, first target and length of every run, by
            ascending target.

    Raises:
        TypeError: an id is not an integer (bool, float, None, ...), or the ids are not one-dimensional.
        ValueError: lists of different length.
        IndexError: a negative id, or one beyond 63 bits. Upper bounds depend on the caches:
            `check_bounds` compares with them, and every swap does.
    """

    __slots__ = ("_maxima", "run_blocks", "run_source", "run_target", "sides", "source_ids", "target_ids")

    def __init__(
        self, source_ids: Iterable[Any], target_ids: Iterable[Any], *, sides: Sides = ("source", "target")
    ) -> None:
        source, target = _as_ids(source_ids, sides[0]), _as_ids(target_ids, sides[1])
        if source.size != target.size:
            raise ValueError(f"{source.size} {sides[0]} ids and {target.size} {sides[1]} ids; expected as many")
        for ids, side in ((source, sides[0]), (target, sides[1])):
            _check_range(ids, _NO_BOUND, side)
        self._fill(source, target, sides)

    def _fill(self, source: Ids, target: Ids, sides: Sides) -> None:
        runs = merged_runs(source, target)
        for array in (source, target, *runs):
            array.flags.writeable = False
        self.sides = sides
        self.source_ids, self.target_ids = source, target
        self.run_source, self.run_target, self.run_blocks = runs
        self._maxima = (int(source.max(initial=-1)), int(target.max(initial=-1)))

    @property
    def pairs(self) -> int:
        """Pairs as given, repeated targets counted."""
        return int(self.source_ids.size)

    @property
    def blocks(self) -> int:
        """Blocks that move: one a target."""
        return int(self.run_blocks.sum())

    @property
    def runs(self) -> int:
        return int(self.run_blocks.size)

    @property
    def blocks_per_run(self) -> float:
        """The merge ratio; 0.0 for an empty plan."""
        return self.blocks / self.runs if self.runs else 0.0

    def reversed(self) -> Plan:
        """The plan of the same pairs with source and target exchanged: ``Plan(target_ids, source_ids)``.

        Where no target repeats this moves every block back. Where a target repeats, its several sources
        become targets, and all receive it, as the pairs say.
        """
        back = Plan.__new__(Plan)
        back._fill(self.target_ids, self.source_ids, (self.sides[1], self.sides[0]))
        return back

    def check_bounds(self, source_blocks: int, target_blocks: int) -> None:
        """IndexError, naming position, id, side and bound, where an id lies outside its side."""
        bounds = (source_blocks, target_blocks)
        if self._maxima[0] < source_blocks and self._maxima[1] < target_blocks:
            return
        for ids, bound, side in zip((self.source_ids, self.target_ids), bounds, self.sides, strict=True):
            _check_range(ids, bound, side)

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
        from numba_kvswap.plan_picture import svg

        return svg(self)


def _as_ids(ids: Iterable[Any], side: str) -> npt.NDArray[Any]:
    """A fresh int64 array of the ids; of dtype object where one is beyond 63 bits, for `_check_range` to name."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(ids, torch.Tensor):
        if ids.device.type != "cpu":
            raise TypeError(f"{side} ids lie on {ids.device}; expected them in host memory; pass ids.cpu()")
        if not (ids.is_floating_point() or ids.is_complex()):
            ids = ids.detach().numpy()
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        too_large = ids.dtype.kind == "u" and ids.itemsize == 8 and ids.size and ids.max() >= _NO_BOUND
        return ids.astype(object if too_large else np.int64)
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if not isinstance(listed, list):
        raise TypeError(f"{side} ids are {ids!r}; expected a one-dimensional sequence of integers")
    if set(map(type, listed)) - {int}:
        listed = [check_integer(value, f"{side} id at position {i}") for i, value in enumerate(listed)]
    try:
        return np.fromiter(listed, np.int64, len(listed))
    except OverflowError:
        return np.array(listed, object)


def _check_range(ids: npt.NDArray[Any], bound: int, side: str) -> None:
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < bound):
        return
    position = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
    expected = "0 or more, and less than the blocks of its side" if bound == _NO_BOUND else f"0 <= id < {bound}"
    raise IndexError(f"position {position}: {side} id {ids[position]}; expected {expected}")
