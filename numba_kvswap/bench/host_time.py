"""The benchmark of host time: what a plan costs, and what submitting a swap costs beside a loop in C."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from random import Random
from statistics import median

from tqdm import tqdm

from numba_kvswap.bench.busy_thread import BusyThread
from numba_kvswap.bench.c_loop import NoCompiler
from numba_kvswap.bench.call_time import calls_of, spin
from numba_kvswap.bench.facts import machine, versions
from numba_kvswap.bench.launch_ways import LAUNCH_C, LaunchCallWay, LaunchCWay, LaunchSubmitWay, PreparedLaunch
from numba_kvswap.bench.named_ways import AUTO, FIXED, ways_of
from numba_kvswap.bench.plan_time import plan_rows
from numba_kvswap.bench.report import ALONE, BEGINNINGS, BUSY, HostTimeReport, SubmitRow
from numba_kvswap.bench.scattered_swap import Geometry, ScatteredSwap
from numba_kvswap.bench.spread import spread_of
from numba_kvswap.bench.ways import BINDINGS_LOOP, C_LOOP, PYTHON_COPIES, BindingsWay, CWay, PythonWay, Sample, Way
from numba_kvswap.driver import Driver, KVSwapDriverError, SimulatedDriver, cuda_driver
from numba_kvswap.link import measure_link
from numba_kvswap.plan import Plan
from numba_kvswap.transports import kernel

#: 512 MiB in 16,384 copies.
CUDA_GEOMETRY = Geometry(blocks_moved=256, layers=64, block_bytes=32 << 10, cache_blocks=768)
#: As many copies, small ones.
SIMULATED_GEOMETRY = Geometry(blocks_moved=256, layers=64, block_bytes=64, cache_blocks=768)

_LINK_BYTES = 1 << 30
# A row that has taken this long is not repeated further: a loop over the bindings beside a busy thread may wait
# for the GIL 16,384 times a swap.
_ROW_SECONDS_MAX = 45.0
_CALL_ROW_SECONDS_MAX = 5.0
# Of all rows of whole calls together, where nothing else is asked for: that part is to be quick.
_ONLY_CALLS_SECONDS_MAX = 25.0
# A launch is so short that a handful of them would measure the machine's hiccups.
_LAUNCHES_A_REPEAT = 10

Samples = dict[tuple[str, str], list[Sample]]


def bench(engine: str, repeats: int, calls: int = 300, *, only_calls: bool = False) -> HostTimeReport:
    """Measure on "simulated" or "cuda": all `repeats` times, plans more often, and transports' calls `calls` times.

    only_calls: without plans, without the link, and without every way that makes a driver call a copy. That leaves the
    whole calls, each row cut short so that the swaps of all of them take 25 s, and one launch beside the same from C.

    Host time ends when everything is submitted. Where the driver's queue is full, submitting waits for the device,
    the same in every way. The simulated device's figures show that the benchmark works and mean nothing else:
    there every copy is a call back into Python.

    Raises ValueError for another engine, less than one repeat or call, KVSwapDriverError or ImportError where there
    is no GPU.
    """
    if min(repeats, calls) < 1:
        raise ValueError(f"repeats is {repeats}, calls {calls}; expected 1 or more of each")
    driver, geometry = _driver_named(engine)
    plan = [] if only_calls else plan_rows(repeats)
    link = None
    with driver.activate(0), ScatteredSwap(driver, geometry) as swap:
        ways, why_missing = ([], {}) if only_calls else _ways(swap)
        by_name, not_here = _named_ways(swap)
        if only_calls:
            by_name = [way for way in by_name if way.name != PYTHON_COPIES]
        launches, no_launch = _launches(swap)
        right, wrong = _checked(swap, [*ways, *by_name, *launches])
        ways, by_name, launches = ([way for way in some if way in right] for some in (ways, by_name, launches))
        samples = _measured(ways, repeats, (ALONE, BUSY))
        launch_samples = _measured(launches, repeats * _LAUNCHES_A_REPEAT, (ALONE,))
        call_rows = calls_of(by_name, calls, _call_row_seconds_max(len(by_name), only_calls))
        if engine == "cuda" and not only_calls:
            link = measure_link(driver, swap.stream, _LINK_BYTES, repeats)
        compilers = [way.compiler for way in (*ways, *launches) if isinstance(way, CWay | LaunchCWay)]
    return HostTimeReport(
        engine=engine,
        repeats=repeats,
        machine=machine(driver) | {"c_compiler": compilers[0] if compilers else None},
        versions=versions(),
        geometry=geometry,
        plan=plan,
        submit=list(_rows(samples, landed=engine == "cuda")),
        launch=list(_rows(launch_samples, landed=engine == "cuda")),
        calls=call_rows,
        link=link,
        why_missing=why_missing | not_here | no_launch | wrong,
    )


def _driver_named(engine: str) -> tuple[Driver, Geometry]:
    if engine == "simulated":
        return SimulatedDriver(), SIMULATED_GEOMETRY
    if engine == "cuda":
        return cuda_driver(), CUDA_GEOMETRY
    raise ValueError(f"engine is {engine!r}; expected 'simulated' or 'cuda'")


def _call_row_seconds_max(ways: int, only_calls: bool) -> float:
    rows = max(1, ways) * len((ALONE, BUSY)) * len(BEGINNINGS)
    return min(_CALL_ROW_SECONDS_MAX, _ONLY_CALLS_SECONDS_MAX / rows) if only_calls else _CALL_ROW_SECONDS_MAX


def _ways(swap: ScatteredSwap) -> tuple[list[Way], dict[str, str]]:
    """The ways there are here, and why the others are not."""
    ways: list[Way] = [PythonWay(swap, FIXED[0])]
    missing: dict[str, str] = {}
    try:
        ways.append(CWay(swap))
    except NoCompiler as error:
        missing[C_LOOP] = str(error)
    if swap.driver.name == "cuda":
        from cuda.bindings import driver as bindings

        ways.append(BindingsWay(swap, bindings))
    else:
        missing[BINDINGS_LOOP] = "the bindings reach no simulated device"
    return ways, missing


def _named_ways(swap: ScatteredSwap) -> tuple[list[Way], dict[str, str]]:
    """A way a transport that can move this swap, the choice both ways, and why the other transports cannot."""
    names, missing = ways_of(swap.device, swap.host)
    return [*(PythonWay(swap, name) for name in names), PythonWay(swap, AUTO, "in")], missing


def _launches(swap: ScatteredSwap) -> tuple[list[Way], dict[str, str]]:
    """The ways to swap by one launch that there are here, and why not that from C; none where there is no kernel."""
    if kernel.why_not(swap.swapper.pair):  # told of the transport of that name
        return [], {}
    prepared = PreparedLaunch(swap.swapper.pair, Plan(swap.device_ids, swap.host_ids), "out")
    ways: list[Way] = [LaunchSubmitWay(swap, prepared), LaunchCallWay(swap)]
    try:
        return [LaunchCWay(swap, prepared), *ways], {}
    except NoCompiler as error:
        return ways, {LAUNCH_C: str(error)}


def _checked(swap: ScatteredSwap, ways: Sequence[Way]) -> tuple[list[Way], dict[str, str]]:
    """The ways that moved the right bytes, and what the others did wrong. Compiles what is compiled on first use."""
    right: list[Way] = []
    wrong: dict[str, str] = {}
    swap.prepare_content()
    for way in ways:
        swap.reset(way.direction)
        try:
            way.run()
            fault = swap.fault(way.direction)
        except KVSwapDriverError as error:
            fault = str(error)
        if fault:
            wrong[way.name] = fault
        else:
            right.append(way)
    swap.drop_content()
    return right, wrong


def _measured(ways: Sequence[Way], repeats: int, besides: Sequence[str]) -> Samples:
    """Samples by way and what ran beside it: ALONE, BUSY.

    Within a repeat every way has its turn, first alone and then beside the busy thread, in an order drawn anew: what
    drifts, drifts for all, and none always comes after the one that leaves the host's caches coldest.
    """
    samples: Samples = {(way.name, beside): [] for beside in besides for way in ways}
    random = Random(0)
    for _repeat in tqdm(range(repeats), desc="host time", unit=" repeats", leave=False, disable=None):
        for beside in besides:
            with BusyThread() if beside == BUSY else nullcontext():
                for way in random.sample(ways, len(ways)):
                    taken = samples[way.name, beside]
                    if sum(sample.landed_s for sample in taken) < _ROW_SECONDS_MAX:
                        spin(random.uniform(0, 2 * sys.getswitchinterval()))
                        taken.append(way.run())
    return samples


def _rows(samples: Samples, *, landed: bool) -> Iterator[SubmitRow]:
    for (name, beside), taken in samples.items():
        landed_s = median(sample.landed_s for sample in taken) if landed else None
        yield SubmitRow(name, beside, spread_of([sample.host_us for sample in taken]), landed_s)
        call_us = [sample.call_us for sample in taken if sample.call_us is not None]
        if call_us:
            # Not its own clock but Python's: with the call through ctypes, and the wait for the GIL at its end.
            yield SubmitRow(f"{name}, timed from Python", beside, spread_of(call_us), landed_s)
