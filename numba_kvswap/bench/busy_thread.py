"""A Python thread that never rests, as a scheduler's or a tokenizer's may not."""

from __future__ import annotations

import threading
from types import TracebackType


class BusyThread:
    """Within its ``with`` block another thread runs pure Python and wants the GIL all the time.

    Attributes:
        spins: turns of its loop so far.
    """

    def __init__(self) -> None:
        self.spins = 0
        self._stop = False
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="numba_kvswap busy thread", daemon=True)

    def _spin(self) -> None:
        self._running.set()
        while not self._stop:
            self.spins += 1

    def __enter__(self) -> BusyThread:
        self._thread.start()
        self._running.wait()  # else the first measurement might be over before the thread has begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop = True
        self._thread.join()
