"""What a simulated stream holds: queued operations, each with what it must come after."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from ctypes import memmove
from functools import partial
from time import perf_counter

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.simulated_memory import Allocation
from numba_kvswap.driver.simulated_pieces import (
    ASIDE_BYTES_MAX,
    Below,
    Piece,
    in_drawn_order,
    in_steps,
    read_aside,
    stretches_of,
)
from numba_kvswap.driver.statuses import ILLEGAL_ADDRESS, NAMES

# Of one batch, how many entries are themselves cut or read early, and of one 2-D copy, how many rows land one by one:
# more would cost time and show no more.
_CUT_ENTRIES_MAX, _SINGLE_ROWS_MAX = 16, 16


class Failure:
    """An error of queued work, until some synchronize has raised it.

    devices: those whose work it was, or came after it.
    """

    __slots__ = ("devices", "error", "reported")

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.reported = False
        self.devices: set[int] = set()


class Operation:
    """One queued operation. The one before it in its stream is implied by the queue.

    after:    operations of other streams that must be done first.
    held:     true while a latch keeps it from running.
    failures: its own and those of everything it came after; filled when it runs.
    """

    __slots__ = ("after", "done", "failures", "held", "stream")

    #: How a hang's message calls it.
    label = "operation"
    #: Whether `in_steps` does it too.
    can_be_cut = False

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

    def run(self) -> Iterator[object] | None:
        """Do the work, or its first step: then what is returned does another each time it is asked for its next.

        What either raises becomes a Failure.
        """
        return None

    def in_steps(self, below: Below) -> Iterator[object]:
        """The work in steps, cut as is drawn. Whoever asks for the next one may have let others run in between."""
        raise NotImplementedError


class Copy(Operation):
    __slots__ = ("size_bytes", "source", "source_in", "target", "target_in")

    label = "copy"
    can_be_cut = True

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

    def in_steps(self, below: Below) -> Iterator[None]:
        """In pieces; or read at the first step and written later, whole or in pieces."""
        check = partial(refuse_freed, "cuMemcpyAsync", self.target_in, self.source_in)
        size, early = self.size_bytes, below(3)
        if early and size <= ASIDE_BYTES_MAX:
            check()
            aside = read_aside(self.source, size)
            yield
            pieces = self._writes(aside, stretches_of(size, below) if early == 2 and size > 1 else [(0, size)])
        else:
            pieces = self.pieces(below)
        yield from in_steps(pieces, below, check)

    def pieces(self, below: Below) -> list[Piece]:
        """Cut where it is drawn."""
        if self.size_bytes == 1:
            return [partial(memmove, self.target, self.source, 1)]
        stretches = stretches_of(self.size_bytes, below)
        return [partial(memmove, self.target + first, self.source + first, end - first) for first, end in stretches]

    def read_now(self) -> Piece:
        """Read the source; the piece that is left to do writes what was read."""
        return self._writes(read_aside(self.source, self.size_bytes), [(0, self.size_bytes)])[0]

    def _writes(self, aside: ctypes.Array[ctypes.c_char], stretches: Sequence[tuple[int, int]]) -> list[Piece]:
        def write(first: int, end: int) -> None:
            memmove(self.target + first, ctypes.addressof(aside) + first, end - first)

        return [partial(write, first, end) for first, end in stretches]


class Copy2D(Operation):
    __slots__ = ("rows", "source", "source_in", "source_pitch", "target", "target_in", "target_pitch", "width")

    label = "2-D copy"
    can_be_cut = True

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
        self._move(0, self.rows, 0, self.width)

    def in_steps(self, below: Below) -> Iterator[None]:
        """Rows, or stretches of many, in any order, and one row in pieces."""
        check = partial(refuse_freed, "cuMemcpy2DAsync", self.target_in, self.source_in)
        return in_steps(self._pieces(below), below, check)

    def _pieces(self, below: Below) -> list[Piece]:
        if self.rows > _SINGLE_ROWS_MAX:
            return [partial(self._move, first, end, 0, self.width) for first, end in stretches_of(self.rows, below)]
        cut_row = below(self.rows)
        pieces: list[Piece] = []
        for row in range(self.rows):
            columns = stretches_of(self.width, below) if row == cut_row and self.width > 1 else [(0, self.width)]
            pieces += [partial(self._move, row, row + 1, first, end) for first, end in columns]
        return pieces

    def _move(self, first_row: int, end_row: int, first_byte: int, end_byte: int) -> None:
        target = self.target + first_row * self.target_pitch + first_byte
        source, size = self.source + first_row * self.source_pitch + first_byte, end_byte - first_byte
        for _ in range(end_row - first_row):
            memmove(target, source, size)
            target += self.target_pitch
            source += self.source_pitch


class Batch(Operation):
    """Copies that CUDA may make in any order, several of them at once."""

    __slots__ = ("_asides", "below", "copies")

    label = "batch of copies"
    can_be_cut = True

    def __init__(self, stream: Stream, copies: list[Copy], below: Below) -> None:
        super().__init__(stream)
        self.copies = copies
        self.below = below
        self._asides: list[ctypes.Array[ctypes.c_char]] = []

    def read_sources_now(self) -> None:
        """Before anything that the stream holds: allowed where the source access order is not the stream's."""
        self._asides = [read_aside(copy.source, copy.size_bytes) for copy in self.copies]
        for copy, aside in zip(self.copies, self._asides, strict=True):
            copy.source, copy.source_in = ctypes.addressof(aside), None

    def run(self) -> None:
        copies, self.copies = self.copies, []
        for copy in in_drawn_order(copies, self.below):
            copy.run()
        self._asides = []

    def in_steps(self, below: Below) -> Iterator[None]:
        copies, self.copies = self.copies, []
        check = partial(_refuse_freed_of_batch, copies)
        check()
        yield from in_steps(_pieces_of_batch(copies, below), below, check)
        self._asides = []


def _pieces_of_batch(copies: list[Copy], below: Below) -> list[Piece]:
    """Some of the copies are cut, some read now and written later."""
    first = below(max(1, len(copies) - _CUT_ENTRIES_MAX + 1))
    pieces: list[Piece] = []
    for index, copy in enumerate(copies):
        how = below(3) if first <= index < first + _CUT_ENTRIES_MAX else 0
        if how == 1:
            pieces += copy.pieces(below)
        elif how == 2 and copy.size_bytes <= ASIDE_BYTES_MAX:
            pieces.append(copy.read_now())
        else:
            pieces.append(partial(memmove, copy.target, copy.source, copy.size_bytes))
    return pieces


def _refuse_freed_of_batch(copies: list[Copy]) -> None:
    """All of them, those that have landed too: nobody can know which have."""
    for target_in, source_in in {(copy.target_in, copy.source_in) for copy in copies}:
        refuse_freed("cuMemcpyBatchAsync", target_in, source_in)


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

    def run(self) -> Iterator[object] | None:
        """A function that returns an iterator, as a generator's does, is the work in steps."""
        function, self.function = self.function, _nothing  # a stream keeps its last operation, which must keep nothing
        steps = function()
        return steps if isinstance(steps, Iterator) else None


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
    """A queue. Only its head may run. `last` is the operation put on it last, done or not; `steps`, where the head is
    done in part, the rest of it."""

    __slots__ = ("blocking", "destroyed", "device", "failures", "handle", "last", "queue", "steps")

    def __init__(self, handle: int, device: int, *, blocking: bool) -> None:
        self.handle = handle
        self.device = device
        self.blocking = blocking
        self.destroyed = False
        self.queue: deque[Operation] = deque()
        self.last: Operation | None = None
        self.steps: Iterator[object] | None = None
        self.failures: tuple[Failure, ...] = ()

    def __str__(self) -> str:
        return f"stream {self.handle:#x} of device {self.device}"


class Event:
    """A fence: the operation of its last record, None before the first."""

    __slots__ = ("device", "record", "timed")

    def __init__(self, device: int, *, timed: bool) -> None:
        self.device = device
        self.timed = timed
        self.record: Record | None = None


def refuse_freed(call: str, target_in: Allocation | None, source_in: Allocation | None) -> None:
    for side, allocation in (("target", target_in), ("source", source_in)):
        if allocation is not None and not allocation.alive:
            raise KVSwapDriverError(
                call,
                NAMES[ILLEGAL_ADDRESS],
                advice=f"the {side}'s {allocation.kind} memory at {allocation.start:#x} was freed before the copy "
                "was done; keep the owner alive until the copy's event is",
            )
