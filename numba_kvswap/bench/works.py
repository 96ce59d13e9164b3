"""Work that never ends, to run beside swaps: a GEMM, copies within the device, or a Python thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Literal, Protocol

from numba_kvswap.bench.busy_thread import BusyThread
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.link import memcpy_async
from numba_kvswap.memory import DriverMemory

WorkName = Literal["gemm", "hbm", "python"]

_GEMM_SIDE = 8192
_HBM_BYTES = 1 << 30
# The first iteration that ends after a mark began before it, and of some that ended before it the thread that waits for
# them may not know yet.
_PERHAPS_BEFORE = 3
# Launches queued ahead: enough that the device never waits for this thread to get the GIL.
_QUEUED_AHEAD = 20


class Work(Protocol):
    """Runs within its ``with`` block.

    `unit` is what one iteration is, in words.
    """

    unit: str

    def __enter__(self) -> Work: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def mark(self) -> Any:
        """A moment, for the two below."""

    def has_iteration(self, since: Any) -> bool:
        """Whether an iteration has begun and ended since the mark. Raises what the work raised."""

    def iteration_s(self, since: Any) -> float:
        """Seconds an iteration took from the mark until now. Waits until there is one. Raises what the work raised."""


class QueuedWork:
    """Iterations put on a stream of their own by a thread of their own, an event after each.

    `launch(stream)` puts one iteration there; it is let go of, with what it holds, once the work has ended. An
    iteration's time is the device's, from the event before it to its own. Raises KVSwapDriverError.
    """

    def __init__(self, driver: Driver, unit: str, launch: Callable[[int], object]) -> None:
        self.unit = unit
        self._driver, self._launch = driver, launch
        self._stop = False
        self._failure: BaseException | None = None
        #: Seconds of the iterations that ended, in order.
        self._seconds: list[float] = []
        self._thread: threading.Thread | None = None

    def mark(self) -> int:
        """How many have ended. What was launched before and runs later counts: it runs beside what is measured."""
        return len(self._seconds)

    def has_iteration(self, since: int) -> bool:
        self._raise_failure()
        return len(self._seconds) > since + _PERHAPS_BEFORE

    def iteration_s(self, since: int) -> float:
        """The median device time of the iterations that began since and ended by now."""
        while not self.has_iteration(since):
            sleep(1e-3)
        return median(self._seconds[since + _PERHAPS_BEFORE :])

    def _feed(self) -> None:
        try:
            with self._driver.activate(0):
                stream = self._driver.stream_create()
                try:
                    self._feed_stream(stream)
                finally:
                    self._driver.stream_synchronize(stream)
                    self._driver.stream_destroy(stream)
        except BaseException as error:
            self._failure = error

    def _feed_stream(self, stream: int) -> None:
        queued: deque[Event] = deque([self._marked(stream)])
        while not self._stop:
            self._launch(stream)
            queued.append(self._marked(stream))
            if len(queued) > _QUEUED_AHEAD:
                before = queued.popleft()
                queued[0].synchronize()
                self._seconds.append(queued[0].seconds_since(before))

    def _marked(self, stream: int) -> Event:
        event = Event(self._driver)
        event.record(stream)
        return event

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise KVSwapDriverError(
                "the work beside", type(self._failure).__name__, advice=f"{self.unit}: {self._failure}"
            ) from self._failure

    def __enter__(self) -> QueuedWork:
        self._thread = threading.Thread(target=self._feed, name=f"numba_kvswap {self.unit}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop = True
        if self._thread is not None:
            self._thread.join()
        self._thread, self._launch = None, _nothing


def _nothing(_stream: int) -> None:
    """In place of a launch that is over."""


class PythonWork(BusyThread):
    """`BusyThread` as work: an iteration is a turn of its loop."""

    unit = "a turn of a busy Python thread"

    def __enter__(self) -> PythonWork:
        super().__enter__()
        return self

    def mark(self) -> tuple[int, float]:
        return self.spins, perf_counter()

    def has_iteration(self, since: tuple[int, float]) -> bool:
        """Yes: a turn is short, and how soon this thread lets go of the GIL for one is part of what is measured."""
        return True

    def iteration_s(self, since: tuple[int, float]) -> float:
        spins, start = since
        while self.spins == spins:
            sleep(1e-3)
        return (perf_counter() - start) / (self.spins - spins)


def work_named(name: WorkName, driver: Driver) -> Work:
    """Ready, not begun. Needs the current context of device 0.

    Raises ValueError for "gemm" and "hbm" on a simulated device, ImportError where there is no torch for "gemm",
    KVSwapDriverError where the memory is not to be had.
    """
    if name == "python":
        return PythonWork()
    if driver.name != "cuda":
        raise ValueError(f"--beside {name} on the simulated device, whose time means nothing; expected python there")
    return _gemm(driver) if name == "gemm" else copies_within(driver, _HBM_BYTES)


def copies_within(driver: Driver, size_bytes: int) -> QueuedWork:
    """Copies of `size_bytes` bytes from device memory to device memory."""
    target, source = (DriverMemory(driver, 0, size_bytes, "device") for _ in range(2))
    return QueuedWork(
        driver,
        f"a device-to-device copy of {size_bytes:,} bytes",
        lambda stream: memcpy_async(driver, target.address, source.address, size_bytes, stream),
    )


def _gemm(driver: Driver) -> QueuedWork:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"--beside gemm needs torch, which does not import ({error}); pip install torch") from error
    if not torch.cuda.is_available():
        raise ImportError("--beside gemm needs torch, which finds no CUDA device; install a CUDA build of it")
    a, b = (torch.randn(_GEMM_SIDE, _GEMM_SIDE, device="cuda:0", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    torch.matmul(a, b, out=product)  # makes cuBLAS's handle and workspace
    torch.cuda.synchronize(0)

    def launch(stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=a.device)):
            torch.matmul(a, b, out=product)

    return QueuedWork(driver, f"a bf16 {_GEMM_SIDE}^3 torch.matmul", launch)
