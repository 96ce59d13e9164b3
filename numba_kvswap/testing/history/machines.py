"""What a history runs on: a driver, streams, kernels that write and judge blocks, and latches that hold a stream."""

from __future__ import annotations

from itertools import count
from typing import Protocol

from numba_kvswap.driver import Driver, KVSwapDriverError, SimulatedDevice
from numba_kvswap.swapper import Swapper
from numba_kvswap.testing.history.order import StreamKind
from numba_kvswap.testing.history.sides import Bytes, Side


class Latch(Protocol):
    def open(self) -> None:
        """Let the stream go on. A second call does nothing."""


class Machine(Protocol):
    """Streams are handles. All but `hold` and `found_wrong` may raise KVSwapDriverError where a fault was asked for.

    Attributes: streams, a handle each: the legacy default one by both of its handles, the calling thread's own, a
    blocking one, three others. timelines, of each stream, where its work stands: two handles may name one stream;
    kinds, of each timeline. passes_latches: whether the host may wait for, allocate and free what no closed latch
    holds; where it may not, all latches are opened before. simulated: the simulated driver behind it, None on a real
    device.
    """

    name: str
    driver: Driver
    streams: tuple[int, ...]
    timelines: tuple[int, ...]
    kinds: tuple[StreamKind, ...]
    passes_latches: bool
    simulated: SimulatedDevice | None

    def prepare(self, swapper: Swapper) -> None:
        """Make what its swaps would else make when first called, while no latch is closed."""

    def write(self, stream: int, side: Side, block: int, version: int) -> None:
        """Queue the writing of a block of a device cache, in all layers."""

    def judge(self, stream: int, side: Side, block: int, version: int) -> None:
        """Queue the comparison of a block of a device cache."""

    def found_wrong(self, *, synchronized: bool = False) -> list[str]:
        """What was judged to be wrong so far, in words: once each. synchronized: whether all judging must be over."""

    def hold(self, stream: int) -> Latch:
        """Queue a latch, closed."""

    def fill(self, side: Side) -> None:
        """Put what `side` must hold into its memory, guards too. Nothing may be under way there."""

    def images(self, side: Side) -> list[Bytes]:
        """Copies of its memory, guards too. Nothing may be under way there."""


KINDS: tuple[StreamKind, ...] = ("legacy", "blocking", "blocking", "apart", "apart", "apart")
#: Of the streams every machine has: handles 0 and 1 are both the legacy default one.
TIMELINES = (0, 0, 1, 2, 3, 4, 5)
_LEGACY, _PER_THREAD = 1, 2
# So many blocks fit a slot of the simulated ring: a handful of pairs goes round it.
_RING_BLOCKS = 2
_SECONDS_A_LOOK = 0.02


class SimulatedMachine:
    """A simulated device. The same seed, or tape, and the same calls give the same run.

    hang_seconds: see SimulatedDriver.
    """

    name = "simulated"
    timelines: tuple[int, ...] = TIMELINES
    kinds, passes_latches = KINDS, True

    def __init__(
        self, seed: int = 0, schedule: bytes | None = None, *, block_bytes: int = 64, hang_seconds: float = 0.0
    ) -> None:
        """block_bytes: of the largest block over all layers; a slot of the ring holds two."""
        ring_slot_bytes = _RING_BLOCKS * block_bytes
        self.simulated: SimulatedDevice | None = SimulatedDevice(
            seed, schedule, ring_slot_bytes=ring_slot_bytes, hang_seconds=hang_seconds
        )
        self.driver: Driver = self.simulated.driver
        self._simulated_driver = self.simulated.driver
        self.driver.idle_events_max = 4  # as a real one keeps some: they must not be used too soon
        looks = count()
        self.driver.clock = lambda: next(looks) * _SECONDS_A_LOOK  # what depends on time must not differ in a replay
        with self.driver.activate(0):
            blocking = self._simulated_driver.stream_create_blocking()
            apart = [self.driver.stream_create() for _ in range(3)]
        self.streams = (0, _LEGACY, _PER_THREAD, blocking, *apart)
        self._found: list[str] = []
        self._unjudged = 0
        self._kept: list[Bytes] = []

    def prepare(self, swapper: Swapper) -> None:
        pass

    def write(self, stream: int, side: Side, block: int, version: int) -> None:
        rows = side.content.of(version)

        def kernel() -> None:
            for view, row in zip(side.views, rows, strict=True):
                view[block] = row

        with self.driver.activate(0):
            self._simulated_driver.launch(stream, kernel)

    def judge(self, stream: int, side: Side, block: int, version: int) -> None:
        rows = side.content.of(version)

        def kernel() -> None:
            for layer, (view, row) in enumerate(zip(side.views, rows, strict=True)):
                if (view[block] != row).any():
                    self._found.append(f"a kernel read device block {block}, layer {layer}: not version {version}")
            self._unjudged -= 1

        with self.driver.activate(0):
            self._unjudged += 1  # first: it may run at once
            try:
                self._simulated_driver.launch(stream, kernel)
            except KVSwapDriverError:
                self._unjudged -= 1
                raise

    def found_wrong(self, *, synchronized: bool = False) -> list[str]:
        found, self._found = self._found, []
        if synchronized and self._unjudged:
            found.append(f"{self._unjudged} kernels that judge blocks never ran")
            self._unjudged = 0
        return found

    def hold(self, stream: int) -> Latch:
        with self.driver.activate(0):
            return self._simulated_driver.latch(stream)

    def fill(self, side: Side) -> None:
        for memory, (expected, _) in zip(side.images, side.expected(), strict=True):
            allocated = self._simulated_driver.allocation_at(memory.address).memory
            allocated[:] = expected
            # Whether a later pool gets the place of a closed one is the system's choice, and what it decides (a table
            # of layers made again or not) would not be so again in a replay: so none does.
            self._kept.append(allocated)

    def images(self, side: Side) -> list[Bytes]:
        return [self._simulated_driver.allocation_at(memory.address).memory.copy() for memory in side.images]


def machine_named(engine: str, seed: int = 0, schedule: bytes | None = None, *, block_bytes: int = 64) -> Machine:
    """A new "simulated" one, as SimulatedMachine takes the rest; or "cuda", the process's only one.

    Raises ValueError for another name, KVSwapDriverError or ImportError where there is no GPU or no compiler.
    """
    if engine == "simulated":
        return SimulatedMachine(seed, schedule, block_bytes=block_bytes)
    if engine == "cuda":
        from numba_kvswap.testing.history.cuda_machine import cuda_machine

        return cuda_machine()
    raise ValueError(f"engine is {engine!r}; expected 'simulated' or 'cuda'")
