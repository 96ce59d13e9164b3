"""The matrix: cell after cell until the time is used up, every way in each, beside the link and the C loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter
from typing import TypeVar

from tqdm import tqdm

from numba_kvswap.bench.arena import Arena, PlacedSwap
from numba_kvswap.bench.c_loop import CLoop, LaunchSwap, NoCompiler
from numba_kvswap.bench.cell_ways import CellWay, LaunchWay, LoopWay, SwapWay, Taken
from numba_kvswap.bench.cells import Axes, Cell, Selection, select
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.matrix_report import Fault, MatrixReport, Missing
from numba_kvswap.bench.must_show import floor_in
from numba_kvswap.bench.named_ways import ways_of
from numba_kvswap.bench.rows import Measured, rows_of
from numba_kvswap.bench.ways import C_LOOP
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.link import Link, LinkProbe

_LINK_TAKES_AT_FIRST = 3
_LINK_EVERY_S = 10.0
# A way that has taken this long in a cell is not repeated further there, though three times in any case.
_WAY_SECONDS_MAX = 1.0
_REPEATS_MIN = 3
# A cell so short that all its repeats take less than this is repeated further, up to so many times as asked.
_CELL_SECONDS_MIN = 0.1
_MORE_REPEATS = 10
# Between two reports of what was measured so far.
_CELLS_A_REPORT = 20

Clock = Callable[[], float]
_T = TypeVar("_T")


@dataclass
class _Run:
    """A matrix under way: what was asked for, and what is known so far."""

    axes: Axes
    seconds: float
    repeats: int
    clock: Clock
    start: float
    selection: Selection
    cells: list[Cell] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    missing: Counter[tuple[str, str]] = field(default_factory=Counter)
    link: Link | None = None
    ended_by: str = ""

    def report(self, now: float) -> MatrixReport:
        assert self.link is not None
        return MatrixReport(
            seconds=now - self.start,
            seconds_asked=self.seconds,
            repeats=self.repeats,
            link=self.link,
            cells=list(self.cells),
            rows=rows_of(self.measured, self.cells, self.link),
            faults=list(self.faults),
            missing=[Missing(way, why, cells) for (way, why), cells in self.missing.items()],
            left_out=self.selection.left_out,
            not_reached=len(self.selection.cells) - len(self.cells),
            ended_by=self.ended_by,
        )


def measure_matrix(
    driver: Driver,
    axes: Axes,
    seconds: float,
    repeats: int,
    clock: Clock = perf_counter,
    keep: Callable[[MatrixReport], object] = lambda report: None,
) -> MatrixReport:
    """Measure cells, each way `repeats` times or so, until `seconds` are over; the cell begun then is the last.

    Needs the current context of device 0. A way that fails, or does not match the reference, has a fault and no
    row in that cell. A driver that fails outside of any way ends the run, and what was measured is reported.
    `keep` is given what is known after every 20 cells.

    Raises ValueError for less than one repeat, KVSwapDriverError where nothing could be measured at all.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; expected 1 or more")
    run = _Run(axes, seconds, repeats, clock, clock(), select(axes))
    try:
        _measure_cells(driver, run, keep)
    except KVSwapDriverError as error:
        if run.link is None or not run.measured:
            raise
        run.ended_by = str(error)
    return run.report(clock())


def _measure_cells(driver: Driver, run: _Run, keep: Callable[[MatrixReport], object]) -> None:
    loop, launch = compiled_loop(run.missing), _compiled(LaunchSwap, LAUNCH_C, run.missing)
    with (
        LinkProbe(driver, run.axes.link_bytes) as probe,
        Arena(driver, run.axes.arena_bytes) as arena,
        two_streams(driver) as streams,
        tqdm(total=round(run.seconds), desc="matrix", unit="s", disable=None) as bar,
    ):
        for _ in range(_LINK_TAKES_AT_FIRST):
            probe.take()
        run.link, last_take = probe.link(), run.clock()
        for cell in run.selection.cells:
            now = run.clock()
            if now - run.start >= run.seconds:
                break
            if now - last_take >= _LINK_EVERY_S:
                probe.take()
                run.link, last_take = probe.link(), now
            bar.set_postfix_str(f"{len(run.cells)} of {len(run.selection.cells)} cells", refresh=False)
            bar.update(int(now - run.start) - bar.n)
            run.cells.append(cell)
            _measure_cell(PlacedSwap(arena, cell), loop, launch if floor_in(cell) else None, streams, run)
            if len(run.cells) % _CELLS_A_REPORT == 0:
                keep(run.report(now))


def compiled_loop(missing: Counter[tuple[str, str]]) -> CLoop | None:
    """FastDeploy's loop; None, and the reason counted once, where there is no compiler."""
    return _compiled(CLoop, C_LOOP, missing)


def _compiled(make: Callable[[], _T], name: str, missing: Counter[tuple[str, str]]) -> _T | None:
    try:
        return make()
    except NoCompiler as error:
        missing[name, str(error)] += 1
        return None


@contextmanager
def two_streams(driver: Driver) -> Iterator[tuple[int, int]]:
    streams = (driver.stream_create(), driver.stream_create())
    try:
        yield streams
    finally:
        for stream in streams:
            # All that counts was waited for; and after an error the driver may be past answering.
            with suppress(KVSwapDriverError):
                driver.stream_synchronize(stream)
                driver.stream_destroy(stream)


def _measure_cell(
    placed: PlacedSwap, loop: CLoop | None, launch: LaunchSwap | None, streams: Sequence[int], run: _Run
) -> None:
    index = len(run.cells) - 1
    ways, faults, missing = right_ways(placed, loop, streams[: len(placed.moves)], launch=launch)
    run.missing.update(missing.items())
    taken = _repeated(ways, run.repeats, faults)
    right = [way for way in ways if way.name not in faults]
    if right and (fault := placed.fault()):
        # Each was right once, and nobody can say which was wrong later.
        faults |= {way.name: f"after all repeats of all ways: {fault}" for way in right}
    run.faults += [Fault(index, way, why) for way, why in faults.items()]
    run.measured += [Measured.of(index, way, taken[way.name]) for way in right if way.name not in faults]


def right_ways(
    placed: PlacedSwap,
    loop: CLoop | None,
    streams: Sequence[int],
    *,
    launch: LaunchSwap | None = None,
    favors: bool = False,
) -> tuple[list[CellWay], dict[str, str], dict[str, str]]:
    """The ways that moved the right bytes, what the others did wrong, and why transports cannot be taken here.

    launch: to be measured too, by the calls of the kernel transport; for a swap of one direction.
    """
    names, missing = ways_of(placed.device_cache, placed.host_cache, favors=favors)
    makers: dict[str, Callable[[], CellWay]] = {}
    if loop is not None:
        makers[C_LOOP] = partial(LoopWay, loop, placed, streams)
    if launch is not None:
        if why := missing.get("kernel"):
            missing[LAUNCH_C] = why
        else:
            makers[LAUNCH_C] = partial(LaunchWay, launch, placed, streams)
    makers |= {name: partial(SwapWay, name, placed, streams) for name in names}
    right, faults = [], {}
    for name, make in makers.items():
        placed.restore()
        try:
            way = make()
            way.run()
            fault = placed.fault(placed.target_sides)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            faults[name] = fault
        else:
            right.append(way)
    placed.restore()  # what a wrong one left would else be found after the right ones
    return right, faults, missing


def _repeated(ways: Sequence[CellWay], repeats: int, faults: dict[str, str]) -> dict[str, list[Taken]]:
    """Within a repeat every way has its turn, in an order drawn anew: what drifts, drifts for all, and none always
    comes after the one that leaves the host's caches coldest. A way that fails has a fault and no further turn."""
    taken: dict[str, list[Taken]] = {way.name: [] for way in ways}
    random, start = Random(0), perf_counter()
    for repeat in range(repeats * _MORE_REPEATS):
        if repeat >= repeats and perf_counter() - start > _CELL_SECONDS_MIN:
            break
        for way in random.sample(ways, len(ways)):
            if way.name not in faults and _goes_on(taken[way.name]):
                try:
                    taken[way.name].append(way.run())
                except Exception as error:
                    faults[way.name] = f"{type(error).__name__}: {error}"
    return taken


def _goes_on(taken: Sequence[Taken]) -> bool:
    return len(taken) < _REPEATS_MIN or sum(one.landed_us for one in taken) < _WAY_SECONDS_MAX * 1e6
