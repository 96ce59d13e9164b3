"""Which swaps of a Swapper touch the same block, on either side: these are ordered, all others may overlap."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable

import numpy as np

from numba_kvswap.cache_pair import Direction
from numba_kvswap.ids import Ids
from numba_kvswap.jit import compiled, holding_the_gil
from numba_kvswap.plan import Plan
from numba_kvswap.transfer import Transfer

_Swaps = deque[tuple[weakref.ref[Transfer], Plan]]
# Up to so many comparisons each id is compared with each; beyond, those of one plan are marked first.
_COMPARED_MAX = 4096
# So many bytes an id are marked, at most: up to there it is done sooner than hashing.
_MARKED_AN_ID = 128


class Overlaps:
    """The swaps of one Swapper that may still run, in the order of their submission. It keeps no transfer alive: those
    that run are kept by the driver's work in flight.

    Attributes: `lock`, to be held from `order` until the swap is on its stream and marked: two threads' swaps are so
    submitted one after the other. It may be taken again by who has it: what a signal handler or a finalizer swaps in
    the midst of a submission is not ordered with that one.
    """

    def __init__(self) -> None:
        self._by_queue: dict[Hashable, _Swaps] = {}
        self.lock = threading.RLock()

    def order(self, transfer: Transfer, plan: Plan) -> None:
        """Make `transfer`, which is not on its stream yet, start there after all before it that touch one of its
        blocks on other streams. Waits only for one whose end could not be marked, and raises what kept the driver from
        saying that it has landed. Raises KVSwapDriverError. Needs the current context."""
        for queue, earlier in list(self._by_queue.items()):
            _let_go(earlier)
            if not earlier:
                del self._by_queue[queue]
            elif queue != transfer.queue:
                self._wait_for_one_of(earlier, transfer, plan)

    def add(self, transfer: Transfer, plan: Plan) -> None:
        """From now on later swaps are ordered after it."""
        self._by_queue.setdefault(transfer.queue, deque()).append((weakref.ref(transfer), plan))

    @staticmethod
    def _wait_for_one_of(earlier: _Swaps, transfer: Transfer, plan: Plan) -> None:
        """The latest that touches the same block and is on its stream: those before it there end before it."""
        for reference, its_plan in reversed(earlier):
            other = reference()
            if other is not None and collide(plan, transfer.direction, its_plan, other.direction):
                if other.marker == "event":
                    other.events.make_wait(transfer.stream)
                    return
                if other.unmarked:  # nothing on any stream tells of it
                    if (doubt := other.settle()) is not None:
                        raise doubt
                    return


def _let_go(swaps: _Swaps) -> None:
    """Of what has landed, as far as it is known without asking the driver. The oldest mostly say enough; but behind one
    that nothing marks they may have landed long since."""
    while swaps and _is_over(swaps[0][0]()):
        swaps.popleft()
    oldest = swaps[0][0]() if swaps else None
    if oldest is not None and oldest.unmarked:
        still = [each for each in swaps if not _is_over(each[0]())]
        swaps.clear()
        swaps.extend(still)


def _is_over(transfer: Transfer | None) -> bool:
    return transfer is None or transfer.known_to_have_landed


def collide(one: Plan, one_way: Direction, other: Plan, other_way: Direction) -> bool:
    """Whether two swaps touch the same block of device or host, and at least one of them writes it."""
    if one_way == other_way:  # then each reads the one side and writes the other
        return share(one.target_ids, other.target_ids)
    return share(one.source_ids, other.target_ids) or share(one.target_ids, other.source_ids)


@compiled
def _share(one: Ids, other: Ids) -> bool:
    if one.size * other.size <= _COMPARED_MAX:
        for i in range(one.size):
            for j in range(other.size):
                if one[i] == other[j]:
                    return True
        return False
    least, most = max(one.min(), other.min()), min(one.max(), other.max())
    if least > most:
        return False
    if most - least >= _MARKED_AN_ID * (one.size + other.size):
        return _share_hashed(one, other)
    marked = np.zeros(most - least + 1, np.bool_)
    for i in range(one.size):
        if least <= one[i] <= most:
            marked[one[i] - least] = True
    found = False
    for j in range(other.size):
        found |= least <= other[j] <= most and marked[other[j] - least]
    return found


@compiled
def _share_hashed(one: Ids, other: Ids) -> bool:
    """Of ids far apart, by a table of the ids of `one` that is half empty: an id lies at its hash, or at the next free
    place behind it. Memory goes by how many ids there are."""
    bits = 1
    while 1 << bits < 2 * one.size:
        bits += 1
    mask = (1 << bits) - 1
    table = np.full(1 << bits, -1, np.int64)
    for i in range(one.size):
        at = _hash(one[i]) & mask
        while table[at] >= 0 and table[at] != one[i]:
            at = (at + 1) & mask
        table[at] = one[i]
    for j in range(other.size):
        at = _hash(other[j]) & mask
        while table[at] >= 0:
            if table[at] == other[j]:
                return True
            at = (at + 1) & mask
    return False


@compiled
def _hash(block: np.int64) -> np.int64:
    """So that neither ids in a row nor those at one distance come to lie in a heap."""
    mixed = (block ^ (block >> 31)) * np.int64(0x1CE4E5B9BF58476D)
    return mixed ^ (mixed >> 29)


share = holding_the_gil(_share)
