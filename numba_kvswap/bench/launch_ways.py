"""Ways to submit the measured swap by one kernel: in C, by this package's compiled loop alone, and by the whole call.

They put the same driver calls on the stream: an event, a copy of the table of ids where the kernel transport makes one,
the launch, an event. C finds its table written; this package's loop writes it first.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns

import numpy as np

from numba_kvswap.bench.c_loop import LaunchSwap
from numba_kvswap.bench.scattered_swap import ScatteredSwap
from numba_kvswap.bench.ways import PythonWay, Sample, timed_in_c
from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.events import EventPair
from numba_kvswap.ids import Words
from numba_kvswap.plan import Plan
from numba_kvswap.submit import FAILED_WORDS, launch_over_runs_briefly
from numba_kvswap.transports import kernel

LAUNCH_C, LAUNCH_SUBMIT, LAUNCH_CALL = "launch, in c", "launch, compiled submit", "launch, whole call"
#: In place of a driver call's name: which of them failed, C does not say.
A_LAUNCH = "a call of the launch"
_WORD_BYTES = 8


class PreparedLaunch:
    """What a plan is launched with by the kernel transport: its launch's words, events and, of several runs, a table.

    words, read_at: the table's words, and where the kernel reads them and whether they are copied there first.

    Raises KVSwapDriverError or NoKernels. Needs the current context of the pair's device.
    """

    def __init__(self, pair: CachePair, plan: Plan, direction: Direction) -> None:
        device = pair.device_cache.device
        self.driver, self.plan = pair.driver, plan
        self.events = EventPair(self.driver, device)
        self._prepared = kernel.prepared_launch(pair, direction)
        self.launch: Words = self._prepared.launch
        self.words: Words = np.empty(0, np.uint64)
        self.read_at = np.uint64(0), False
        if plan.runs > 1:
            self._table = device_tools(self.driver, device).tables.lend(2 * plan.pairs)
            self.words, self.read_at = self._table.words, self._table.read_at(plan.pairs)


class LaunchFromC:
    """The calls of a prepared launch from C: those of the kernel transport for that plan, its table already written."""

    def __init__(self, loop: LaunchSwap, prepared: PreparedLaunch, stream: int) -> None:
        self._prepared = prepared
        plan, launch, (read_at, uploads) = prepared.plan, prepared.launch, prepared.read_at
        ids_at, firsts = _written_ids(plan, prepared.words, int(read_at))
        # As submit.py gives them to the kernel: its layers, the ids, no shifts, and of a single run the first ids.
        self._values: Words = np.array([*launch[3:7].tolist(), *ids_at, plan.blocks, 0, 0, *firsts], np.uint64)
        self._parameters: Words = self._values.ctypes.data + _WORD_BYTES * np.arange(self._values.size, dtype=np.uint64)
        start, end = prepared.events.words.tolist()
        table = int(read_at), prepared.words.ctypes.data, 2 * plan.blocks * _WORD_BYTES if uploads else 0
        self._submit = loop.ready(
            prepared.driver.entry_points, (start, end), table, tuple(launch[:3].tolist()), self._parameters, stream
        )

    def submit(self) -> tuple[int, int]:
        """Put them on the stream, in the current context; as what `LaunchSwap.ready` returns."""
        return self._submit()  # a method, so that whoever holds it holds what the calls read


def _written_ids(plan: Plan, words: Words, read_at: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Write the ids of sources and targets, one run aside; where the kernel reads either, or else their first ids."""
    if plan.runs == 1:
        return (0, 0), (int(plan.run_source[0]), int(plan.run_target[0]))
    within = np.arange(plan.blocks) - np.repeat(np.cumsum(plan.run_blocks) - plan.run_blocks, plan.run_blocks)
    for side, first in enumerate((plan.run_source, plan.run_target)):
        words[side * plan.blocks : (side + 1) * plan.blocks] = np.repeat(first, plan.run_blocks) + within
    return (read_at, read_at + _WORD_BYTES * plan.blocks), (0, 0)


class LaunchSubmitWay:
    """`launch_over_runs_briefly` for a plan that is ready: all that the kernel transport runs per swap and compiled."""

    name = LAUNCH_SUBMIT
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap, prepared: PreparedLaunch) -> None:
        self._swap, self._prepared = swap, prepared

    def run(self) -> Sample:
        swap, ready, failed = self._swap, self._prepared, np.zeros(FAILED_WORDS, np.int64)
        plan, stream = ready.plan, np.uint64(swap.stream)
        words, runs = swap.driver.entry_points.words, (plan.run_source, plan.run_target, plan.run_blocks)
        with swap.driver.uninterrupted():
            start = perf_counter_ns()
            status = launch_over_runs_briefly(
                words, stream, ready.events.words, ready.launch, *runs, ready.words, *ready.read_at, failed
            )
            returned = perf_counter_ns()
        swap.driver.stream_synchronize(swap.stream)
        landed = perf_counter_ns()
        if status:
            raise KVSwapDriverError(A_LAUNCH, swap.driver.result_name(status))
        return Sample((returned - start) / 1e3, (landed - start) / 1e9)


class LaunchCWay:
    """The same calls from C. Raises NoCompiler."""

    name = LAUNCH_C
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap, prepared: PreparedLaunch) -> None:
        loop = LaunchSwap()
        self.compiler = loop.compiler
        self._swap, self._from_c = swap, LaunchFromC(loop, prepared, swap.stream)

    def run(self) -> Sample:
        driver, stream = self._swap.driver, self._swap.stream
        return timed_in_c(driver, stream, A_LAUNCH, self._from_c.submit, partial(driver.stream_synchronize, stream))


class LaunchCallWay(PythonWay):
    """``Swapper.swap_out`` with NumPy ids by the kernel transport."""

    def __init__(self, swap: ScatteredSwap) -> None:
        super().__init__(swap, "kernel")
        self.name = LAUNCH_CALL
