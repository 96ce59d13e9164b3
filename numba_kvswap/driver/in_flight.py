"""What must stay alive because a copy may still touch it: work whose last event has not fired."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol


class Pending(Protocol):
    """Submitted work that holds on to the memory it reads and writes."""

    def landed(self) -> bool:
        """Whether nothing of it runs any more, as far as the driver says. Never waits, never raises its failure."""

    def settle(self) -> bool:
        """Wait, then as `landed`. Never raises its failure, which is for its owner to hear of."""

    def uses(self, memory: object) -> bool: ...


class InFlight:
    """A driver's work. Keeps each piece, and with it its memory, until nothing of it runs any more.

    Drivers are asked outside the lock: they may run other work meanwhile, or the garbage collector, and that may come
    here again.
    """

    def __init__(self) -> None:
        # By stream, since the work of one stream lands in order: looking at the oldest says enough.
        self._by_stream: dict[int, deque[Pending]] = {}
        self._lock = threading.Lock()

    def add(self, work: Pending, stream: int) -> None:
        """Keep `work`, which is about to be put on `stream`; let go of what has landed there and elsewhere."""
        with self._lock:
            self._by_stream.setdefault(stream, deque()).append(work)
            streams = list(self._by_stream)
        for each in streams:
            self.prune(each)

    def prune(self, stream: int) -> None:
        """Let go of what has landed on `stream`."""
        while True:
            with self._lock:
                queue = self._by_stream.get(stream)
                oldest = queue[0] if queue else None
            if oldest is None or not oldest.landed():
                return
            with self._lock:
                if queue and queue[0] is oldest:  # another thread may have been here
                    queue.popleft()
                if not queue and self._by_stream.get(stream) is queue:
                    del self._by_stream[stream]

    def wait_for(self, memory: object) -> bool:
        """Wait for all work that uses `memory`; False where the driver could not say of some that it has landed."""
        with self._lock:
            pending = [work for queue in self._by_stream.values() for work in queue if work.uses(memory)]
        settled = [work.settle() for work in pending]  # all of them, whatever becomes of the first
        return all(settled)

    def __len__(self) -> int:
        with self._lock:
            pending = [work for queue in self._by_stream.values() for work in queue]
        return sum(not work.landed() for work in pending)
