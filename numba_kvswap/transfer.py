"""One swap under way: something to wait on, and what is known of it once it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.events import Event
from numba_kvswap.interop import stream_handle

if TYPE_CHECKING:
    from numba_kvswap.plan import Plan


class Transfer:
    """Returned by `Swapper.swap_out` and `swap_in`. Keeps plan and caches alive until its copies are done.

    Attributes:
        bytes: what moves, over all layers. blocks, runs: of the plan. direction: "out" or "in".
        start, end: the events around its copies; `submit` of its transport records them.
    """

    def __init__(self, plan: Plan, pair: CachePair, direction: Direction) -> None:
        self.direction = direction
        self.blocks, self.runs = plan.blocks, plan.runs
        self.bytes = plan.blocks * pair.block_bytes
        self._plan, self._pair = plan, pair
        self._owners = pair.memory_owners()
        self.start, self.end = Event(pair.driver), Event(pair.driver)
        self._seconds: float | None = None

    def done(self) -> bool:
        """Whether every byte has landed; never waits."""
        with self._pair.driver.activate(self._pair.device_cache.device):
            return self.end.done()

    def wait(self) -> None:
        """Return once every byte has landed. Releases the GIL on a real device."""
        with self._pair.driver.activate(self._pair.device_cache.device):
            self.end.synchronize()
        self._pair.driver.in_flight.forget(self)

    def wait_on(self, stream: object) -> None:
        """What is put on `stream` from now on starts after this transfer. Returns at once.

        `stream`: a handle, None for the legacy default stream, or a torch, CuPy, Numba or simulated stream.
        """
        handle = stream_handle(stream)
        with self._pair.driver.activate(self._pair.device_cache.device):
            self.end.make_wait(handle)

    @property
    def seconds(self) -> float:
        """Seconds from when the stream reached this transfer to its last byte.

        Raises RuntimeError while it is not done.
        """
        if self._seconds is None:
            if not self.done():
                raise RuntimeError("this transfer is not done, so it has no seconds yet; wait() first")
            self._seconds = self.end.seconds_since(self.start)
        return self._seconds

    def uses(self, memory: object) -> bool:
        return any(owner is memory for owner in self._owners)

    def __repr__(self) -> str:
        state = f"done in {self.seconds * 1e3:.3f} ms" if self.done() else "under way"
        return f"Transfer({self.direction}, {self.blocks} blocks in {self.runs} runs, {self.bytes} bytes, {state})"
