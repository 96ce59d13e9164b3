"""What dead owners leave to be freed, and what of it a driver refused to free: kept, named, and tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.statuses import INVALID_HANDLE, INVALID_VALUE, NAMES

# There is no such thing: its owner, or whoever took it from there, was first. Its address may be somebody else's next.
_GONE = (NAMES[INVALID_VALUE], NAMES[INVALID_HANDLE])


class Discards:
    """A driver's. Any line here may let a finalizer run, which comes here again in this very thread: so there is no
    lock, and what is tried is not in the queue."""

    def __init__(self) -> None:
        self._refused: deque[tuple[str, Callable[[], None]]] = deque()

    def free(self, what: str, free: Callable[[], None]) -> None:
        """Call `free`, never raising what the driver says; where it works, also for what was refused before.

        what: its name for `refused`, e.g. "event 0x51".
        """
        freed = self._tried(what, free)
        while freed and self._refused:
            freed = self._tried_again()

    def refused(self) -> tuple[str, ...]:
        """Ask once more for all that was refused; names of what still is."""
        for _ in range(len(self._refused)):
            self._tried_again()
        return tuple(what for what, _ in tuple(self._refused))

    def _tried_again(self) -> bool:
        try:
            what, free = self._refused.popleft()
        except IndexError:  # another came between
            return False
        return self._tried(what, free)

    def _tried(self, what: str, free: Callable[[], None]) -> bool:
        try:
            free()
        except KVSwapDriverError as error:
            if error.result_name not in _GONE:
                self._refused.append((what, free))
            return False
        return True
