"""Which operations happen before which, by the rules of streams: what a careful user may rely on, and no more.

An operation is known by its stream and its number there. A clock holds a number a stream, of the last operation that
has happened: since those of one stream happen in order, that says all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

#: "legacy", the default stream; "blocking" ones are ordered with it; "apart" is ordered with none.
StreamKind = Literal["legacy", "blocking", "apart"]
Clock = tuple[int, ...]


class Fence(Protocol):
    """What orders others after an operation."""

    def make_wait(self, stream: int) -> None:
        """What is put on `stream`, a handle, from now on comes after it."""

    def synchronize(self) -> None:
        """Return when it is done."""


@dataclass(eq=False, slots=True)
class Operation:
    """One operation, put on a stream.

    stream, number: which one, and the how many-th there. after: all that has happened once it has, itself included, as
    far as is promised. perhaps: and what may, by how the library works, keep it waiting. fence: orders others after
    it, and with it all of `fenced`. swapper: whose swap it is, -1 of anything else.
    """

    stream: int
    number: int
    after: Clock
    perhaps: Clock
    fence: Fence
    fenced: Clock
    swapper: int = -1

    def is_in(self, clock: Clock) -> bool:
        return clock[self.stream] >= self.number


class Clocks:
    """Of each stream what comes before the next operation there; and what the host knows to have happened.

    promised: whether to count what is promised alone, or whatever may come before.
    """

    def __init__(self, kinds: Sequence[StreamKind], *, promised: bool) -> None:
        nothing: Clock = (0,) * len(kinds)
        legacy = [i for i, kind in enumerate(kinds) if kind == "legacy"]
        blocking = [i for i, kind in enumerate(kinds) if kind == "blocking"]
        others = {"legacy": blocking, "blocking": legacy, "apart": []}
        self._ordered_with = [others[kind] for kind in kinds]
        self._promised = promised
        self._next = [nothing] * len(kinds)
        # As of the last operation: that a mere wait, put on one stream, orders another one too is promised nowhere.
        self._last = [nothing] * len(kinds)
        self.host = nothing

    def before(self, stream: int) -> Clock:
        """What happens before an operation that is put there now."""
        others = self._last if self._promised else self._next
        return later(self._next[stream], self.host, *(others[other] for other in self._ordered_with[stream]))

    def record(self, stream: int) -> Clock:
        """Record an event there; what has happened once it has."""
        if not self._promised:  # on the legacy stream it may keep others waiting, as an operation does
            self._next[stream] = self.before(stream)
        return self._next[stream]

    def make_wait(self, stream: int, clock: Clock) -> None:
        self._next[stream] = later(self.record(stream), clock)

    def put(self, stream: int) -> Clock:
        """Put an operation there; what has happened once it has."""
        clock = list(self.before(stream))
        clock[stream] = self._next[stream][stream] + 1
        self._next[stream] = self._last[stream] = after = tuple(clock)
        return after

    def host_knows(self, clock: Clock) -> None:
        self.host = later(self.host, clock)

    def host_knows_all(self) -> None:
        self.host = later(self.host, *self._next)


def later(*clocks: Clock) -> Clock:
    """The earliest clock that is after each of these."""
    return tuple(map(max, *clocks)) if len(clocks) > 1 else clocks[0]
