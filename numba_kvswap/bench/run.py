"""The parts of ``bench`` that were asked for, on one engine, into one report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside import measure_beside
from numba_kvswap.bench.cells import CUDA_AXES, SIMULATED_AXES, Axes
from numba_kvswap.bench.facts import machine, versions
from numba_kvswap.bench.host_time import bench as measure_host_time
from numba_kvswap.bench.matrix import measure_matrix
from numba_kvswap.bench.pool_time import CUDA_SIZES, SIMULATED_SIZES, measure_pool
from numba_kvswap.bench.works import WorkName
from numba_kvswap.driver import Driver, SimulatedDriver, cuda_driver

What = Literal["all", "host-time", "calls", "matrix", "pool"]

Say = Callable[[str], object]
#: Given the report as far as it has come, now and then and at the end: a run that is killed has kept that much.
Keep = Callable[[BenchReport], object]


def bench(engine: str, what: What, minutes: float, repeats: int, calls: int, keep: Keep, say: Say = print) -> None:
    """Host time, the matrix within `minutes`, a pinned pool, or all; each part's table goes to `say` once it is there.

    "calls" is the quick part of host time: whole calls and launches.

    Raises what the parts raise.
    """
    driver, axes = _driver_named(engine)
    report = BenchReport(engine, machine(driver), versions())
    _say_if_simulated(engine, say)
    if what in ("all", "host-time", "calls"):
        measured = measure_host_time(engine, repeats, calls, only_calls=what == "calls")
        report = replace(report, host_time=measured.to_plain())
        keep(report)
        say(measured.table())
    if what in ("all", "matrix"):
        with driver.activate(0):
            matrix = measure_matrix(
                driver, axes, minutes * 60, repeats, keep=lambda so_far: keep(replace(report, matrix=so_far))
            )
        say(("\n" if report.host_time else "") + matrix.table())
        report = replace(report, matrix=matrix)
        keep(report)
    if what in ("all", "pool"):
        with driver.activate(0):
            pool = measure_pool(driver, CUDA_SIZES if engine == "cuda" else SIMULATED_SIZES)
        say(("\n" if report.matrix else "") + pool.table())
        keep(replace(report, pool=pool))


def bench_beside(engine: str, work: WorkName, window_s: float, keep: Keep, say: Say = print) -> None:
    """Swaps beside other work; the table goes to `say`. Raises what `measure_beside` raises."""
    driver, axes = _driver_named(engine)
    report = BenchReport(engine, machine(driver), versions())
    _say_if_simulated(engine, say)
    with driver.activate(0):
        beside = measure_beside(driver, axes, work, window_s, keep=lambda so_far: keep(replace(report, beside=so_far)))
    keep(replace(report, beside=beside))
    say(beside.table())


def _say_if_simulated(engine: str, say: Say) -> None:
    if engine == "simulated":
        say("note      times on the simulated device, and what is judged by them, say that bench works and no more")


def _driver_named(engine: str) -> tuple[Driver, Axes]:
    return (cuda_driver(), CUDA_AXES) if engine == "cuda" else (SimulatedDriver(), SIMULATED_AXES)
