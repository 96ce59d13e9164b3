"""One swap under way: something to wait on, and what is known of it once it is done."""

from __future__ import annotations

import contextlib
import threading

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver import KVSwapDriverError, SimulatedHang
from numba_kvswap.events import EventPair
from numba_kvswap.ids import check_integer, checked_timeout_s
from numba_kvswap.interop import stream_handle
from numba_kvswap.plan import Plan
from numba_kvswap.transports import Marker

PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD
# The calls by which a transfer asks the driver, as opposed to the work it asks about.
_QUESTIONS = ("cuCtx", "cuEvent", "cuStream")
#: What a link carries in some 80 us.
SOON_BYTES = 4 << 20


class Transfer:
    """Returned by `Swapper.swap_out` and `swap_in`. Its caches' memory stays alive until its copies are done.

    Where work before its end failed on the device, `done`, `wait` and `seconds` raise what failed, each time they are
    asked; where the driver only fails to answer, they raise KVSwapDriverError and may be asked again.

    Attributes:
        bytes: what moves, over all layers. blocks, runs: of the plan. direction: "out" or "in".
        transport: the name of the one that moves it, or of all that do. stream: the handle of the stream it is on.
    """

    def __init__(
        self,
        plan: Plan,
        pair: CachePair,
        direction: Direction,
        stream: int,
        transport: str,
        model_layers: range,
        submitting: threading.Lock,
        earlier: tuple[Transfer, ...],
    ) -> None:
        """model_layers: those of `pair`. submitting: held while it is put on its stream; what `marker` says counts once
        it is released. earlier: transfers of the layers before them on the same stream, if this one is to stand for
        them too: when what comes last has landed, all has."""
        self.direction: Direction = direction
        self._plan, self.submitting = plan, submitting
        self._model_layers, self._earlier = model_layers, earlier
        self.transport: str = ", ".join(dict.fromkeys([*(part.transport for part in earlier), transport]))
        self.blocks, self.runs = plan.blocks, plan.runs
        self.bytes: int = plan.blocks * pair.block_bytes + sum(part.bytes for part in earlier)
        self._driver, self._device, self.stream = pair.driver, pair.device_cache.device, stream
        #: Work of one queue lands in order. A handle may name several: each thread's own, each device's legacy one.
        self.queue = (self._device, stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0)
        self.events = EventPair(self._driver, self._device)
        self._owners: tuple[object, ...] = pair.owners
        self._failure: Exception | None = None
        self._submitter = threading.get_ident()
        self.marker: Marker = "nothing"

    def keep(self, needed: object) -> None:
        """Keep what the running copies need, until they have landed."""
        self._owners += (needed,)

    @property
    def known_to_have_landed(self) -> bool:
        """Whether somebody has asked since it landed."""
        return not self._owners

    @property
    def unmarked(self) -> bool:
        """Whether it is on its stream and no event marks its end."""
        return self.marker == "stream" and not self.submitting.locked()

    def mark_again(self) -> None:
        """After a submission that ended without its event: record it now, or else wait. From the same thread."""
        try:
            with self._driver.activate(self._device):
                self.events.record_end(self.stream)
            self.marker = "event"
        except KVSwapDriverError:
            self.settle()

    def done(self) -> bool:
        """Whether every byte has landed; never waits."""
        landed = self._query()
        if landed:
            self._driver.in_flight.prune(self.queue)
        self._raise_failure()
        return landed

    def wait(self, timeout_s: float | None = None) -> None:
        """Return once every byte has landed. Releases the GIL on a real device. Ctrl-C ends the wait, not the transfer.

        timeout_s: seconds, 0 or more, after which TimeoutError is raised; the transfer goes on and may be waited for
            again. What failed and could not be marked on its stream is waited for without one.
        """
        self._synchronize(checked_timeout_s(timeout_s))
        self._raise_failure()

    def wait_on(self, stream: object) -> None:
        """What is put on `stream` from now on starts after this transfer. Returns at once.

        `stream`: a handle, None for the legacy default stream, or a torch, CuPy, Numba or simulated stream.
        """
        handle = stream_handle(stream, self._driver)
        with self._driver.activate(self._device):
            self.events.make_wait(handle)

    def layer(self, index: int) -> Transfer:
        """What is done when the bytes of layer `index` of the model are in: a part of this one that was submitted
        `layerwise`, else all of it. ``transfer.layer(i).wait_on(stream)`` lets a model start before all has come.

        Raises IndexError outside `DeviceCache.depth`.
        """
        if not 0 <= check_integer(index, "layer") < self._model_layers.stop:
            raise IndexError(f"layer {index}; expected 0 <= layer < {self._model_layers.stop}")
        return next((part for part in self._earlier if index in part._model_layers), self)

    @property
    def seconds(self) -> float:
        """Seconds from when the stream reached this transfer to its last byte.

        Raises RuntimeError while it is not done.
        """
        if not self.done():
            raise RuntimeError("this transfer is not done, so it has no seconds yet; wait() first")
        with self._driver.activate(self._device):
            return self.events.seconds(self._earlier[0].events if self._earlier else None)

    @property
    def undefined_targets(self) -> tuple[int, ...]:
        """Ids of the target blocks whose bytes are undefined now: all while it is under way, and after work before its
        end failed; () once it has landed. Never waits."""
        return () if self.landed() and self._failed is None else tuple(self._plan.target_ids.tolist())

    def landed(self) -> bool:
        """Whether the driver says that nothing of it runs any more. Never waits, never raises what failed."""
        try:
            return self._query()
        except Exception:  # no answer; its owner hears of it
            return not self._owners

    def settle(self, timeout_s: float | None = None) -> Exception | None:
        """Wait until nothing of it runs any more; what kept the driver from saying so, None where it has landed.

        Raises SimulatedHang where that would be for ever.
        """
        self._wait_for_submission()
        try:
            self._synchronize(timeout_s)
        except SimulatedHang:
            raise
        except Exception as error:
            return None if self.landed() else error
        return None

    def _query(self) -> bool:
        if not self._owners:
            return True
        if self.submitting.locked() or self.marker == "stream":
            return False
        if self.marker == "event":
            try:
                with self._driver.activate(self._device):
                    if not self.events.ended():
                        return False
            except Exception as error:
                self._keep_failure(error)
                raise
        self._owners = ()
        return True

    def _synchronize(self, timeout_s: float | None) -> None:
        if not self._owners:
            return
        try:
            with self._driver.activate(self._device):  # first: in a forked child it raises, and the lock may be held
                self._wait_for_submission()
                if self.marker == "event":
                    if not self.events.synchronize(soon=self.bytes <= SOON_BYTES, timeout_s=timeout_s):
                        raise TimeoutError(
                            f"{self.blocks} blocks swapped {self.direction} have not landed within {timeout_s} s; they "
                            "still may: see what holds their stream, and wait again"
                        )
                elif self.marker == "stream":
                    # Not the stream: its handle may mean another by now, or, as the per-thread one, in this thread.
                    self._driver.synchronize()
                    self.marker = "nothing"
        except Exception as error:
            self._keep_failure(error)
            raise
        self._owners = ()
        self._driver.in_flight.prune(self.queue)

    def _wait_for_submission(self) -> None:
        if self.submitting.locked() and self._submitter == threading.get_ident():
            raise RuntimeError("a transfer was waited for in the midst of its own submission; wait for it afterwards")
        with self.submitting:
            pass

    def _keep_failure(self, error: Exception) -> None:
        """Keep what failed on the device: whoever asks first is told, and that may not be the owner.

        Work that failed runs no more, so the memory may go. A failing question is another matter: it is for whoever
        asked, the next one may be answered, and until then nobody knows.
        """
        is_driver_error = isinstance(error, KVSwapDriverError)
        is_question = isinstance(error, KVSwapDriverError) and error.call.startswith(_QUESTIONS)
        if is_question or isinstance(error, SimulatedHang) or not (is_driver_error or self._fails_with(error)):
            return
        self._failure = self._failure or error
        self._owners = ()

    def _fails_with(self, error: Exception) -> bool:
        """Whether it is the work that failed with `error`: it does so again when asked again.

        What a signal handler raised in the midst of a wait says nothing of the work, which may still run.
        """
        if self.marker != "event":
            return False
        try:
            with self._driver.activate(self._device):
                self.events.ended()
        except Exception as again:
            return again is error
        return False

    def uses(self, memory: object) -> bool:
        return any(owner is memory for owner in self._owners)

    @property
    def _failed(self) -> Exception | None:
        """What failed in it. Of an earlier part only that one may have been told."""
        return next((part._failure for part in (*self._earlier, self) if part._failure is not None), None)

    def _raise_failure(self) -> None:
        if (failure := self._failed) is not None:
            raise failure

    def __repr__(self) -> str:
        landed = self.landed()
        if (failure := self._failed) is not None:
            state = f"failed: {failure}"
        elif landed:
            state = "done"
            with contextlib.suppress(KVSwapDriverError):
                state = f"done in {self.seconds * 1e3:.3f} ms"
        else:
            state = "under way"
        return (
            f"Transfer({self.direction} by {self.transport}, {self.blocks} blocks in {self.runs} runs, "
            f"{self.bytes} bytes, {state})"
        )
