"""Ways to submit the measured swap by one kernel: in C, by this package's compiled loop alone, and by the whole call.

They put the same four driver calls on the stream, the first two with the same arguments: an event, a copy of the table
of ids, the launch, an event. C finds its table written; this package's loop writes it first.
"""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from numba_kvswap.bench.c_loop import LaunchSwap
from numba_kvswap.bench.scattered_swap import ScatteredSwap
from numba_kvswap.bench.ways import PythonWay, Sample
from numba_kvswap.cache_pair import Direction
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.events import EventPair
from numba_kvswap.ids import Words
from numba_kvswap.plan import Plan
from numba_kvswap.submit import FAILED_WORDS, launch_over_runs_briefly
from numba_kvswap.transports import kernel

LAUNCH_C, LAUNCH_SUBMIT, LAUNCH_CALL = "launch, in c", "launch, compiled submit", "launch, whole call"
_WORD_BYTES = 8


class PreparedLaunch:
    """What a swap by the kernel transport is launched with: a table of ids, events, and the launch's words.

    Raises KVSwapDriverError or NoKernels.
    """

    def __init__(self, swap: ScatteredSwap) -> None:
        pair, driver = swap.swapper.pair, swap.driver
        self.plan = Plan(swap.device_ids, swap.host_ids)
        self.table = device_tools(driver, pair.device_cache.device).tables.lend(2 * self.plan.pairs)
        self.events = EventPair(driver, pair.device_cache.device)
        self.launch: Words = kernel.prepared_launch(pair, "out").launch


class LaunchSubmitWay:
    """`launch_over_runs_briefly` for a plan that is ready: all that the kernel transport runs per swap and compiled."""

    name = LAUNCH_SUBMIT
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap, prepared: PreparedLaunch) -> None:
        self._swap, self._prepared = swap, prepared

    def run(self) -> Sample:
        swap, ready, failed = self._swap, self._prepared, np.zeros(FAILED_WORDS, np.int64)
        plan, table, stream = ready.plan, ready.table, np.uint64(swap.stream)
        words, runs = swap.driver.entry_points.words, (plan.run_source, plan.run_target, plan.run_blocks)
        with swap.driver.uninterrupted():
            start = perf_counter_ns()
            status = launch_over_runs_briefly(
                words, stream, ready.events.words, ready.launch, *runs, table.words, table.device_at, True, failed
            )
            returned = perf_counter_ns()
        swap.driver.stream_synchronize(swap.stream)
        landed = perf_counter_ns()
        if status:
            raise KVSwapDriverError("a call of the launch", swap.driver.result_name(status))
        return Sample((returned - start) / 1e3, (landed - start) / 1e9)


class LaunchCWay:
    """The same four calls from C. Raises NoCompiler."""

    name = LAUNCH_C
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap, prepared: PreparedLaunch) -> None:
        self._loop = LaunchSwap()
        self.compiler = self._loop.compiler
        self._swap, self._prepared = swap, prepared
        plan, table, launch = prepared.plan, prepared.table, prepared.launch
        table.words[: 2 * plan.pairs] = np.concatenate([plan.run_source, plan.run_target])  # none merged
        ids_at = int(table.device_at)
        ids = [ids_at, ids_at + _WORD_BYTES * plan.pairs, plan.pairs]
        # As submit.py gives them to the kernel: its layers, the ids, and no shifts.
        self._values: Words = np.array([*launch[3:7].tolist(), *ids, 0, 0, 0, 0], np.uint64)
        self._parameters: Words = self._values.ctypes.data + _WORD_BYTES * np.arange(self._values.size, dtype=np.uint64)
        self._launch = tuple(launch[:3].tolist())
        self._table = ids_at, table.words.ctypes.data, 2 * plan.pairs * _WORD_BYTES

    def run(self) -> Sample:
        swap, ready = self._swap, self._prepared
        start = perf_counter_ns()
        status, host_ns = self._loop(
            swap.driver.entry_points,
            (int(ready.events.words[0]), int(ready.events.words[1])),
            self._table,
            self._launch,
            self._parameters,
            swap.stream,
        )
        returned = perf_counter_ns()
        swap.driver.stream_synchronize(swap.stream)
        landed = perf_counter_ns()
        if status:
            raise KVSwapDriverError("a call of the launch", swap.driver.result_name(status))
        return Sample(host_ns / 1e3, (landed - start) / 1e9, (returned - start) / 1e3)


class LaunchCallWay(PythonWay):
    """``Swapper.swap_out`` with NumPy ids by the kernel transport."""

    def __init__(self, swap: ScatteredSwap) -> None:
        super().__init__(swap, "kernel")
        self.name = LAUNCH_CALL
