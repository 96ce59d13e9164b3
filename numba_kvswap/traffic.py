"""Whether swaps of a device go both ways at once, which some transports bear better than others."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from numba_kvswap.cache_pair import Direction
from numba_kvswap.transfer import Transfer

# Who swaps both ways at once does so again: the first of each two swaps is chosen for without a sight of the second.
_REMEMBERED_S = 1.0


class Traffic:
    """What was last submitted each way on one device. It keeps no transfer alive. clock: the host's, seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest: dict[Direction, weakref.ref[Transfer]] = {}
        self._seen_s = -_REMEMBERED_S

    def add(self, transfer: Transfer) -> None:
        self._latest[transfer.direction] = weakref.ref(transfer)

    def both_ways(self, direction: Direction, stream: int) -> bool:
        """Whether a swap the other way is under way on another stream than this one, which would order the two, or was
        at a submission within the last second. Never waits."""
        latest = self._latest.get("in" if direction == "out" else "out")
        other = latest() if latest is not None else None
        now_s = self._clock()
        if other is not None and other.stream != stream and not other.landed():
            self._seen_s = now_s
        return now_s - self._seen_s < _REMEMBERED_S
