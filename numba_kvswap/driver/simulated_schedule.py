"""Which queued operation runs next, and when: any order that CUDA allows, none that it forbids."""

from __future__ import annotations

import random
from collections.abc import Callable

from numba_kvswap.driver.simulated_work import Failure, Hold, Operation, Stream

SYNCHRONIZED_INSIDE = (
    "a launched function synchronized, but it is itself work that somebody waits for. "
    "Synchronize outside it; inside, use SimulatedArray.live()"
)


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

    __slots__ = ("_eagerness", "_position", "_random", "_tape")

    #: A seed draws one of these. A fixed coin would leave "all at once" and "nothing yet" out of reach.
    EAGERNESS = (0.5, 0.0, 1.0, 0.1, 0.9)

    def __init__(self, seed: int, tape: bytes | None) -> None:
        self._tape = tape
        self._position = 0
        self._random = random.Random(seed)
        self._eagerness = self._random.choice(self.EAGERNESS)

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
        """Whether one more operation runs now, though nobody waits for it."""
        if self._tape is None:
            return self._random.random() < self._eagerness
        return self.below(2) == 1


class Schedule:
    """The queues that hold work. Not thread safe: the driver's lock is held around every call."""

    __slots__ = ("_busy", "_choices", "_failures", "running")

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        # Insertion order, not a set's: the same seed must meet the same streams in the same order.
        self._busy: dict[Stream, None] = {}
        self._failures: list[Failure] = []
        #: True while an operation runs. What it calls must not start another.
        self.running = False

    def below(self, count: int) -> int:
        """A choice in [0, count), for an operation whose parts may run in any order."""
        return self._choices.below(count)

    def put(self, operation: Operation) -> None:
        stream = operation.stream
        stream.queue.append(operation)
        stream.last = operation
        self._busy[stream] = None

    def advance(self) -> None:
        """Run as many ready operations as the choices say, perhaps none."""
        while self._busy and not self.running and self._choices.goes_on():
            ready = self._ready()
            if not ready:
                return
            self._run(ready[self._choices.below(len(ready))])

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

    def finish_all(self, stuck: Callable[[], bool]) -> None:
        """Run everything, then raise the first failure that nobody has been told of."""
        while self._busy:
            self._run_until(next(iter(self._busy)).queue[-1], stuck)
        self._raise_first(tuple(self._failures))

    def _run_until(self, operation: Operation, stuck: Callable[[], bool]) -> None:
        while not operation.done:
            if self.running:
                raise RuntimeError(SYNCHRONIZED_INSIDE)
            ready = self._ready()
            if ready:
                self._run(self._choose(ready, operation))
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

    def _run(self, stream: Stream) -> None:
        operation = stream.queue[0]
        self.running = True
        try:
            operation.run()
        except Exception as error:
            failure = Failure(error)
            self._failures.append(failure)
            operation.failures += (failure,)
        finally:
            self.running = False
            self._retire(operation)

    def _retire(self, operation: Operation) -> None:
        stream = operation.stream
        stream.queue.popleft()
        if not stream.queue:
            del self._busy[stream]
        operation.done = True
        if stream.failures or operation.failures:
            known = dict.fromkeys(stream.failures + operation.failures)
            operation.failures = stream.failures = tuple(f for f in known if not f.reported)

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
