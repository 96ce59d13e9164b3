"""What must stay alive because a copy may still touch it: work whose last event has not fired."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable
from typing import Protocol


class Pending(Protocol):
    """Submitted work that holds on to the memory it reads and writes."""

    @property
    def unmarked(self) -> bool:
        """Whether nothing but `settle` can tell when it has landed."""

    def landed(self) -> bool:
        """Whether nothing of it runs any more, as far as the driver says. Never waits, never raises its failure."""

    def settle(self, timeout_s: float | None = None) -> Exception | None:
        """Wait until nothing of it runs any more; what kept the driver from saying so, a TimeoutError perhaps, None
        where it has landed.

        Never raises its failure, which is for its owner to hear of.
        """

    def uses(self, memory: object) -> bool: ...


class InFlight:
    """A driver's work. Keeps each piece, and with it its memory, until nothing of it runs any more.

    Any line here may let a finalizer or a signal handler run, and that may swap or close and come here again, in this
    very thread. So the lock may be taken again, no loop runs over what another call may change, drivers are asked
    outside the lock, and the last reference to a piece of work is dropped outside it too.
    """

    def __init__(self) -> None:
        # By stream, since the work of one stream lands in order: looking at the oldest says enough.
        self._by_stream: dict[Hashable, deque[Pending]] = {}
        self._unmarked: dict[int, Pending] = {}  # by id
        self._lock = threading.RLock()

    def add(self, work: Pending, stream: Hashable) -> None:
        """Keep `work`, which is about to be put on `stream`; let go of what has landed there and elsewhere.

        stream: anything that tells one stream from another; a handle alone does not.
        """
        with self._lock:
            before = tuple(self._by_stream)
            queue: deque[Pending] | None = None
            while queue is None or self._by_stream.get(stream) is not queue:  # it may be emptied and dropped meanwhile
                queue = self._by_stream.setdefault(stream, deque())
                queue.append(work)
        for each in before:
            self.prune(each)

    def prune(self, stream: Hashable) -> None:
        """Let go of what has landed on `stream`."""
        while True:
            queue = self._by_stream.get(stream)
            if queue is None:
                return
            try:
                oldest = queue[0]
            except IndexError:
                return
            unmarked = oldest.unmarked  # asked once: its submitter may mark it meanwhile
            if not (unmarked or oldest.landed()):
                return
            with self._lock:
                if queue and queue[0] is oldest:  # another thread may have been here
                    if unmarked:  # it must not stand in the way of those behind it
                        self._unmarked[id(oldest)] = oldest
                    queue.popleft()
                if not queue and self._by_stream.get(stream) is queue:
                    del self._by_stream[stream]

    def wait_for(self, memory: object, timeout_s: float | None = None) -> Exception | None:
        """Wait for all work that uses `memory`, so many seconds in all; returns as `Pending.settle` does, for the first
        that is in doubt. Lets go of all that has landed, also of what uses no memory any more since somebody asked it.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        doubts = []
        for work in self._pending():
            if work.uses(memory):
                doubts.append(work.settle(None if until_s is None else max(0.0, until_s - time.monotonic())))
        for stream in tuple(self._by_stream):
            self.prune(stream)
        landed = [work for work in tuple(self._unmarked.values()) if not work.unmarked and work.landed()]
        for work in landed:
            self._unmarked.pop(id(work), None)
        return next((doubt for doubt in doubts if doubt is not None), None)

    def __len__(self) -> int:
        return sum(not work.landed() for work in self._pending())

    def _pending(self) -> list[Pending]:
        with self._lock:
            queues = [*self._by_stream.values(), deque(self._unmarked.values())]
            return [work for queue in queues for work in tuple(queue)]
