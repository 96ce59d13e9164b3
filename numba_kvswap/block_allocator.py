"""Which host blocks are free, handed out so that those of one call lie together: what lies together moves together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict, SortedList

from numba_kvswap.ids import NO_BOUND, Ids, as_ids, check_integer


class BlockAllocator:
    """The block ids 0 to `blocks` - 1 of a host cache, handed out in runs and taken back: best fit.

    It keeps the maximal runs of free blocks, and of blocks only the ids: it owns no memory, and works for any cache
    with `blocks` blocks. Copies may still be reading or writing a block that is freed here; order them on a
    stream, or wait, before its next user's. Not for several threads at once without a lock.

    A run handed out or taken back costs O(log n) in the free runs n, apart from its ids.

    Raises TypeError unless `blocks` is an integer, ValueError where it is negative or beyond what ids can name.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = check_integer(blocks, "blocks")
        if not 0 <= self._blocks <= NO_BOUND:
            raise ValueError(f"blocks is {blocks}; expected 0 or more, and at most 2**63")
        self._free_blocks = 0
        # The free runs twice: first block -> length by address, for the neighbours; and (length, first) for the fit.
        self._length_at: SortedDict[int, int] = SortedDict()
        self._by_length: SortedList[tuple[int, int]] = SortedList()
        if self._blocks:
            self._insert(0, self._blocks)

    @property
    def blocks(self) -> int:
        """All blocks, free or not."""
        return self._blocks

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    @property
    def free_runs(self) -> int:
        """How many maximal runs the free blocks make."""
        return len(self._by_length)

    @property
    def longest_free_run(self) -> int:
        """Blocks of the longest free run; 0 where no block is free. So many come in one piece."""
        return self._by_length[-1][0] if self._by_length else 0

    def allocate(self, count: int) -> Ids:
        """Take `count` free blocks: their ids, as a fresh int64 array.

        They are the low end of the smallest free run that holds them. Where none does, they are the longest free run,
        and the rest is taken in the same way: ids ascend by one within a piece, and a piece follows the other. Of
        runs equally long the one at the lowest address is taken.

        Raises TypeError unless `count` is an integer, ValueError where it is negative or not so many blocks are
        free. Nothing is taken then.
        """
        wanted = check_integer(count, "count")
        if wanted < 0:
            raise ValueError(f"count is {count}; expected 0 or more")
        if wanted > self._free_blocks:
            raise ValueError(
                f"{wanted} blocks asked for, and {self._free_blocks} of {self._blocks} are free; "
                "expected no more than free_blocks; free some first"
            )
        ids = np.empty(wanted, np.int64)
        filled = 0
        while filled < wanted:
            first, length = self._take_run(wanted - filled)
            ids[filled : filled + length] = np.arange(first, first + length)
            filled += length
        return ids

    def free(self, ids: Iterable[Any]) -> None:
        """Take blocks back, in any order; ids as a `Plan` takes them: an array, a list, a torch CPU tensor.

        Raises TypeError where they are no integers, IndexError for an id that is negative or not below `blocks`, and
        ValueError for one that is free already or named twice. Nothing is freed then.
        """
        freed = self._sorted(as_ids(ids, "freed"))
        starts = np.flatnonzero(np.diff(freed, prepend=-2) != 1)  # before the least id comes none
        runs = list(zip(freed[starts].tolist(), np.diff(starts, append=freed.size).tolist(), strict=True))
        for first, length in runs:
            self._check_used(first, length)
        for first, length in runs:
            self._merge(first, length)

    def __repr__(self) -> str:
        return (
            f"BlockAllocator({self._blocks} blocks: {self._free_blocks} free in {self.free_runs} runs, "
            f"the longest {self.longest_free_run})"
        )

    def _take_run(self, count: int) -> tuple[int, int]:
        """The best run for `count` blocks, (first, length), no longer than `count`."""
        length = min(count, self.longest_free_run)
        found, first = self._by_length[self._by_length.bisect_left((length, 0))]
        self._remove(first, found)
        if found > length:
            self._insert(first + length, found - length)
        return first, length

    def _sorted(self, ids: npt.NDArray[Any]) -> Ids:
        outside = np.flatnonzero((ids < 0) | (ids >= self._blocks))
        if outside.size:
            position = int(outside[0])
            raise IndexError(f"position {position}: freed id {ids[position]}; expected 0 <= id < {self._blocks}")
        ids.sort()  # as_ids gave a copy
        again = np.flatnonzero(ids[1:] == ids[:-1])
        if again.size:
            raise ValueError(f"freed id {ids[again[0]]} is named twice; expected each id once in a call")
        return ids

    def _check_used(self, first: int, length: int) -> None:
        before = self._last_run_before(first + length)
        if before is None or before[0] + before[1] <= first:
            return
        raise ValueError(
            f"freed id {max(first, before[0])} is free already; expected ids that allocate gave out, each freed once"
        )

    def _merge(self, first: int, length: int) -> None:
        """Make a run free, one with the free runs that it touches."""
        after = self._length_at.get(first + length, 0)
        if after:
            self._remove(first + length, after)
        before = self._last_run_before(first)
        if before is not None and sum(before) == first:
            self._remove(*before)
            first, length = before[0], before[1] + length
        self._insert(first, length + after)

    def _last_run_before(self, block: int) -> tuple[int, int] | None:
        """The last free run that starts below `block`, (first, length)."""
        position = self._length_at.bisect_left(block)
        return self._length_at.peekitem(position - 1) if position else None

    def _insert(self, first: int, length: int) -> None:
        self._length_at[first] = length
        self._by_length.add((length, first))
        self._free_blocks += length

    def _remove(self, first: int, length: int) -> None:
        del self._length_at[first]
        self._by_length.remove((length, first))
        self._free_blocks -= length
