"""How work on the simulated device is cut: which pieces, in which order, and where others may come in between."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

#: A choice in [0, n).
Below = Callable[[int], int]
Piece = Callable[[], object]

#: Of one operation. A race shows between two steps or it does not show between nine either.
STEPS_MAX = 8
#: What a copy reads before it writes is kept aside, so far as this.
ASIDE_BYTES_MAX = 1 << 20

_T = TypeVar("_T")
_TAPE_CHOICES = 256  # a byte of a tape tells no more apart


def in_drawn_order(items: Sequence[_T], below: Below) -> Iterator[_T]:
    """Each once; in their own order where every choice is 0."""
    left = list(reversed(items))
    while left:
        at = len(left) - 1 - below(len(left))
        left[at], left[-1] = left[-1], left[at]
        yield left.pop()


def in_steps(pieces: Sequence[Piece], below: Below, check: Piece) -> Iterator[None]:
    """Do all pieces in a drawn order, `check` at the start of every step; yields between two steps."""
    steps_max = min(STEPS_MAX, len(pieces))
    steps = 2 + below(steps_max - 1) if steps_max > 1 else 1
    a_step = -(-len(pieces) // steps)
    for index, piece in enumerate(in_drawn_order(pieces, below)):
        if index % a_step == 0:
            if index:
                yield
            check()
        piece()


def stretches_of(count: int, below: Below) -> list[tuple[int, int]]:
    """`count` things, at least 2, as two or three stretches [first, end) cut where it is drawn, in their order."""
    cuts = {_cut(count, below) for _ in range(1 + below(2))}
    edges = [0, *sorted(cuts), count]
    return list(pairwise(edges))


def _cut(count: int, below: Below) -> int:
    """From 1 to count - 1. A byte of a tape reaches all of a large thing too, if not every place."""
    if count <= _TAPE_CHOICES:
        return 1 + below(count - 1)
    return 1 + (count - 2) * below(_TAPE_CHOICES) // (_TAPE_CHOICES - 1)


def read_aside(source: int, size_bytes: int) -> ctypes.Array[ctypes.c_char]:
    """What lies at `source` now. It lasts as long as the array does."""
    aside = ctypes.create_string_buffer(size_bytes)
    ctypes.memmove(aside, source, size_bytes)
    return aside
