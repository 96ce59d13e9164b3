"""What a simulated stream holds: queued operations, each with what it must come after."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from ctypes import memmove
from time import perf_counter

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.simulated_memory import Allocation
from numba_kvswap.driver.statuses import ILLEGAL_ADDRESS, NAMES


class Failure:
    """An error of queued work, until some synchronize has raised it."""

    __slots__ = ("error", "reported")

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.reported = False


class Operation:
    """One queued operation. The one before it in its stream is implied by the queue.

    after:    operations of other streams that must be done first.
    held:     true while a latch keeps it from running.
    failures: its own and those of everything it came after; filled when it runs.
    """

    __slots__ = ("after", "done", "failures", "held", "stream")

    #: How a hang's message calls it.
    label = "operation"

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.after: tuple[Operation, ...] = ()
        self.done = False
        self.held = False
        self.failures: tuple[Failure, ...] = ()

    def come_after(self, earlier: Operation | None) -> None:
        # A finished operation orders nothing any more, but its failure is still news to whoever waits for us.
        if earlier is not None and (not earlier.done or earlier.failures):
            self.after += (earlier,)

    def ready(self) -> bool:
        """Whether it could run now, were it at the head of its stream.

        Lets go of what it came after and is done, and takes over the failures of that.
        """
        while self.after:
            earlier = self.after[-1]
            if not earlier.done:
                return False
            self.failures += earlier.failures
            self.after = self.after[:-1]
        return not self.held

    def run(self) -> None:
        """Do the work. What it raises becomes a Failure."""


class Copy(Operation):
    __slots__ = ("size_bytes", "source", "source_in", "target", "target_in")

    label = "copy"

    def __init__(
        self,
        stream: Stream,
        target: int,
        target_in: Allocation | None,
        source: int,
        source_in: Allocation | None,
        size_bytes: int,
    ) -> None:
        """`target_in` and `source_in` are the allocations; None for pageable memory."""
        # Not through super(): half a million of these are made in one job.
        self.stream = stream
        self.after = ()
        self.done = self.held = False
        self.failures = ()
        self.target = target
        self.target_in = target_in
        self.source = source
        self.source_in = source_in
        self.size_bytes = size_bytes

    def run(self) -> None:
        refuse_freed("cuMemcpyAsync", self.target_in, self.source_in)
        memmove(self.target, self.source, self.size_bytes)


class Copy2D(Operation):
    __slots__ = ("rows", "source", "source_in", "source_pitch", "target", "target_in", "target_pitch", "width")

    label = "2-D copy"

    def __init__(
        self,
        stream: Stream,
        target: tuple[int, int, Allocation],
        source: tuple[int, int, Allocation],
        width_bytes: int,
        rows: int,
    ) -> None:
        """`target` and `source`: address of the first row, bytes from row to row, the allocation."""
        super().__init__(stream)
        self.target, self.target_pitch, self.target_in = target
        self.source, self.source_pitch, self.source_in = source
        self.width = width_bytes
        self.rows = rows

    def run(self) -> None:
        refuse_freed("cuMemcpy2DAsync", self.target_in, self.source_in)
        target, source, width = self.target, self.source, self.width
        for _ in range(self.rows):
            memmove(target, source, width)
            target += self.target_pitch
            source += self.source_pitch


class Batch(Operation):
    """Copies that CUDA may make in any order."""

    __slots__ = ("below", "copies")

    label = "batch of copies"

    def __init__(self, stream: Stream, copies: list[Copy], below: Callable[[int], int]) -> None:
        """below(n): a choice in [0, n)."""
        super().__init__(stream)
        self.copies = copies
        self.below = below

    def run(self) -> None:
        copies, self.copies = self.copies, []
        while copies:
            at = self.below(len(copies))
            copies[at], copies[-1] = copies[-1], copies[at]
            copies.pop().run()


class Record(Operation):
    __slots__ = ("seconds",)

    label = "event record"

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.seconds = 0.0

    def run(self) -> None:
        self.seconds = perf_counter()


class Wait(Operation):
    __slots__ = ()

    label = "wait for an event"


class Launch(Operation):
    __slots__ = ("function",)

    label = "launch"

    def __init__(self, stream: Stream, function: Callable[[], object]) -> None:
        super().__init__(stream)
        self.function = function

    def run(self) -> None:
        function, self.function = self.function, _nothing  # a stream keeps its last operation, which must keep nothing
        function()


def _nothing() -> None:
    """In place of a launched function that has run."""


class Hold(Operation):
    """Keeps its stream from going on until the latch is opened."""

    __slots__ = ()

    label = "closed latch"

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.held = True


class Stream:
    """A queue. Only its head may run. `last` is the operation put on it last, done or not."""

    __slots__ = ("blocking", "destroyed", "device", "failures", "handle", "last", "queue")

    def __init__(self, handle: int, device: int, *, blocking: bool) -> None:
        self.handle = handle
        self.device = device
        self.blocking = blocking
        self.destroyed = False
        self.queue: deque[Operation] = deque()
        self.last: Operation | None = None
        self.failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        return f"stream {self.handle:#x} of device {self.device}"


class Event:
    """A fence: the operation of its last record, None before the first."""

    __slots__ = ("device", "record")

    def __init__(self, device: int) -> None:
        self.device = device
        self.record: Record | None = None


def refuse_freed(call: str, target_in: Allocation | None, source_in: Allocation | None) -> None:
    for side, allocation in (("target", target_in), ("source", source_in)):
        if allocation is not None and not allocation.alive:
            raise KVSwapDriverError(
                call,
                NAMES[ILLEGAL_ADDRESS],
                advice=f"the {side}'s {allocation.kind} memory at {allocation.start:#x} was freed before the copy "
                "ran; keep the owner alive until the copy's event is done",
            )
