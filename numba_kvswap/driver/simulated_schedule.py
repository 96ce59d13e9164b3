"""Which queued operation, or step of one, runs next, and when: any order that CUDA allows, none that it forbids."""

from __future__ import annotations

import random
from collections.abc import Callable

from numba_kvswap.driver.simulated_pieces import in_drawn_order, stretches_of
from numba_kvswap.driver.simulated_work import Failure, Hold, Operation, Stream

SYNCHRONIZED_INSIDE = (
    "a launched function synchronized, but it is itself work that somebody waits for. "
    "Synchronize outside it; inside, use SimulatedArray.live()"
)

_OVER = object()


class SimulatedHang(RuntimeError):
    """A synchronize waits for work that nothing can bring about, where a real program would hang.

    Attributes:
        waiting_for: the operation waited for, and what it stands behind.
    """

    def __init__(self, waiting_for: str) -> None:
        self.waiting_for = waiting_for
        super().__init__(f"this would wait for ever for {waiting_for}. Open the latch before synchronizing")


class Choices:
    """Where the scheduler's choices come from: a tape of bytes, or a seed.

    A tape that is used up gives 0 for ever, and 0 always is the laziest choice, so that Hypothesis
    shrinks towards "nothing ran until somebody waited for it".
    """

    __slots__ = ("_cut_share", "_eagerness", "_position", "_random", "_tape")

    #: A seed draws one of these. A fixed coin would leave "all at once" and "nothing yet" out of reach.
    EAGERNESS = (0.5, 0.0, 1.0, 0.1, 0.9)
    #: And one of these: of the operations that others may come into the midst of, how many are cut. A cut one takes
    #: several times as long.
    CUT_SHARES = (0.0, 0.03, 0.2)

    def __init__(self, seed: int, tape: bytes | None) -> None:
        self._tape = tape
        self._position = 0
        self._random = random.Random(seed)
        self._eagerness = self._random.choice(self.EAGERNESS)
        self._cut_share = self._random.choice(self.CUT_SHARES)

    def below(self, count: int) -> int:
        """A choice in [0, count). Nothing is drawn where there is nothing to choose."""
        if count == 1:
            return 0
        if self._tape is None:
            return self._random.randrange(count)
        if self._position >= len(self._tape):
            return 0
        self._position += 1
        return self._tape[self._position - 1] % count

    def goes_on(self) -> bool:
        """Whether one more operation, or one more step of one, runs now, though nobody waits for it."""
        if self._tape is None:
            return self._random.random() < self._eagerness
        return self.below(2) == 1

    def cuts(self) -> bool:
        """Whether an operation that starts now is done in steps."""
        if self._tape is None:
            return self._random.random() < self._cut_share
        return self.below(2) == 1


class Schedule:
    """The queues that hold work. Not thread safe: the driver's lock is held around every call."""

    __slots__ = ("_busy", "_choices", "_failures", "_may_cut", "running")

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        # Insertion order, not a set's: the same seed must meet the same streams in the same order.
        self._busy: dict[Stream, None] = {}
        self._failures: list[Failure] = []
        self._may_cut = False
        #: While an operation runs, its stream. What it calls must not start another.
        self.running: Stream | None = None

    def below(self, count: int) -> int:
        """A choice in [0, count), for an operation whose parts may run in any order."""
        return self._choices.below(count)

    def stretches(self, count: int) -> list[tuple[int, int]]:
        """How `count` parts of what runs now are cut, in the order in which the stretches [first, end) are done."""
        if count < 2 or not (self._may_cut and self._choices.cuts()):
            return [(0, count)]
        return list(in_drawn_order(stretches_of(count, self.below), self.below))

    def put(self, operation: Operation) -> None:
        stream = operation.stream
        stream.queue.append(operation)
        stream.last = operation
        self._busy[stream] = None

    def advance(self) -> None:
        """Run as many steps of ready operations as the choices say, perhaps none."""
        while self._busy and self.running is None and self._choices.goes_on():
            ready = self._ready()
            if not ready:
                return
            self._step(ready[self._choices.below(len(ready))], may_cut=True)

    def finish(self, operation: Operation, stuck: Callable[[], bool], *, again: bool = False) -> None:
        """Run ready operations until `operation` is done, then raise the first failure it came after.

        Once, or `again` and again: who asked about another operation first may not be whom the failure concerns.
        What is queued later does not inherit what was raised. `stuck` is called where nothing can run; it returns
        whether something may have changed.
        """
        self._run_until(operation, stuck)
        if again and operation.failures:
            self._note_reported(operation.failures[0])
            raise operation.failures[0].error
        self._raise_first(operation.failures)

    def finish_all(self, stuck: Callable[[], bool], device: int | None = None) -> None:
        """Run everything, of one device or of all, then raise the first failure of it that nobody has been told of."""
        while (busy := self._busy_one(device)) is not None:
            self._run_until(busy.queue[-1], stuck)
        self._raise_first(tuple(f for f in self._failures if device is None or device in f.devices))

    def _busy_one(self, device: int | None) -> Stream | None:
        return next((stream for stream in self._busy if device is None or stream.device == device), None)

    def _run_until(self, operation: Operation, stuck: Callable[[], bool]) -> None:
        while not operation.done:
            if self.running is not None:
                raise RuntimeError(SYNCHRONIZED_INSIDE)
            ready = self._ready()
            if ready:
                # Where one stream alone can go on, nothing comes in between the steps of its operation.
                self._step(self._choose(ready, operation), may_cut=len(ready) > 1)
            elif not stuck():
                raise SimulatedHang(self._why_not(operation))

    def _choose(self, ready: list[Stream], operation: Operation) -> Stream:
        if len(ready) == 1:
            return ready[0]
        # What is waited for stands first, so that choice 0 leaves unrelated streams where they are.
        needed = self._needed(operation)
        if needed is not None:
            ready.remove(needed)
            ready.insert(0, needed)
        return ready[self._choices.below(len(ready))]

    def _ready(self) -> list[Stream]:
        return [stream for stream in self._busy if stream.queue[0].ready()]

    def _needed(self, operation: Operation) -> Stream | None:
        """The stream whose head is ready and must run before `operation` can; None where a latch is in the way."""
        while True:
            head = operation.stream.queue[0]
            if head.ready():
                return head.stream
            if not head.after:
                return None
            operation = head.after[-1]

    def _step(self, stream: Stream, *, may_cut: bool) -> None:
        """Do the head of the stream, or its next step."""
        operation, over = stream.queue[0], True
        self.running, self._may_cut = stream, may_cut
        try:
            steps = stream.steps
            if steps is None:
                if may_cut and operation.can_be_cut and self._choices.cuts():
                    steps = operation.in_steps(self.below)
                else:
                    steps = operation.run()
            if steps is not None:
                over = next(steps, _OVER) is _OVER
                stream.steps = steps
        except Exception as error:
            failure = Failure(error)
            self._failures.append(failure)
            operation.failures += (failure,)
        finally:
            self.running = None
            if over:
                self._retire(operation)

    def _retire(self, operation: Operation) -> None:
        stream = operation.stream
        stream.queue.popleft()
        stream.steps = None
        if not stream.queue:
            del self._busy[stream]
        operation.done = True
        if stream.failures or operation.failures:
            known = dict.fromkeys(stream.failures + operation.failures)
            operation.failures = stream.failures = tuple(f for f in known if not f.reported)
            for failure in operation.failures:
                failure.devices.add(stream.device)

    def _raise_first(self, failures: tuple[Failure, ...]) -> None:
        for failure in failures:
            if not failure.reported:
                self._note_reported(failure)
                raise failure.error

    def _note_reported(self, failure: Failure) -> None:
        if not failure.reported:
            failure.reported = True
            self._failures.remove(failure)

    def _why_not(self, operation: Operation) -> str:
        head = operation.stream.queue[0]
        text = f"the {operation.label} on {operation.stream}"
        while head.after:
            head = head.after[-1].stream.queue[0]
        if isinstance(head, Hold):
            text += f", held by the closed latch on {head.stream}"
        return text
