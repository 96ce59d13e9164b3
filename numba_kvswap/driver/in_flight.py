"""What must stay alive because a copy may still touch it: work whose last event has not fired."""

from __future__ import annotations

import threading
from typing import Protocol


class Pending(Protocol):
    """Submitted work that holds on to the memory it reads and writes."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...

    def uses(self, memory: object) -> bool: ...


class InFlight:
    """A driver's submitted work. Keeps each piece, and with it its memory, until it is done."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []
        self._lock = threading.Lock()

    def add(self, work: Pending) -> None:
        """Keep `work` until it is done; let go of what is."""
        with self._lock:
            self._pending = [other for other in self._pending if not other.done()]
            self._pending.append(work)

    def forget(self, work: Pending) -> None:
        """Let go of `work`, which is done."""
        with self._lock:
            self._pending = [other for other in self._pending if other is not work]

    def wait_for(self, memory: object) -> None:
        """Wait for all work that uses `memory`."""
        with self._lock:
            pending = [work for work in self._pending if work.uses(memory)]
        for work in pending:
            work.wait()

    def __len__(self) -> int:
        with self._lock:
            return sum(not work.done() for work in self._pending)
