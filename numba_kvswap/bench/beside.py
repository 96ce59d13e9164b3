"""What swaps cost the work beside them, and what that work costs the swaps: ``bench --beside gemm | hbm | python``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

from tqdm import tqdm

from numba_kvswap.bench.arena import Arena, PlacedSwap
from numba_kvswap.bench.beside_report import BesideReport, BesideRow
from numba_kvswap.bench.cell_ways import CellWay, Wait
from numba_kvswap.bench.cells import Axes, Cell
from numba_kvswap.bench.matrix import compiled_loop, right_ways, two_streams
from numba_kvswap.bench.matrix_report import Fault, Missing
from numba_kvswap.bench.works import Work, WorkName, work_named
from numba_kvswap.driver import Driver
from numba_kvswap.events import Event
from numba_kvswap.link import Link, LinkProbe

_LINK_TAKES = 5
# Swaps queued ahead, so that their stream never runs dry.
_QUEUED_AHEAD = 3
# Into so many parts is a window beside the work cut, the work being alone before and after each: a GPU's clock changes
# by 3 % in tenths of seconds.
_PARTS = 4


def beside_cells(axes: Axes) -> Iterator[Cell]:
    """Blocks of one size over all layers, out and in: block-major scattered and in host runs, layer-major scattered."""
    size, layers = axes.typical_bytes, axes.shown_layers
    blocks = -(-axes.beside_bytes // (size * layers))
    for direction in axes.directions[:2]:
        yield Cell(direction, size, layers, blocks, "1", "block_major")
        yield Cell(direction, size, layers, blocks, "host", "block_major")
        yield Cell(direction, size, layers, blocks, "1", "layer_major")


def measure_beside(
    driver: Driver,
    axes: Axes,
    name: WorkName,
    window_s: float,
    keep: Callable[[BesideReport], object] = lambda report: None,
) -> BesideReport:
    """Each way in each cell, for `window_s` seconds alone and as long beside the work, the work alone in between.

    The swaps keep their stream busy for the whole window. `keep` is given what is known after every cell. Needs the
    current context of device 0. Raises what `work_named` raises, and KVSwapDriverError.
    """
    cells, missing = list(beside_cells(axes)), Counter[tuple[str, str]]()
    rows: list[BesideRow] = []
    faults: list[Fault] = []

    def report() -> BesideReport:
        gaps = [Missing(way, why, count) for (way, why), count in missing.items()]
        return BesideReport(name, unit, window_s, link, cells, list(rows), list(faults), gaps)

    unit = work_named(name, driver).unit  # first of all: what is missing for it is better known before the work
    loop = compiled_loop(missing)
    link = _measured_link(driver, axes)
    with Arena(driver, axes.arena_bytes) as arena, two_streams(driver) as streams:
        for index, cell in enumerate(tqdm(cells, desc=f"beside {name}", unit=" cells", disable=None)):
            placed = PlacedSwap(arena, cell)
            ways, wrong, absent = right_ways(placed, loop, streams[:1], favors=True)
            missing.update(absent.items())
            try:
                swaps = [_Swaps(driver, way, streams[0]) for way in ways]
                found = _cell_rows(index, cell, link, swaps, lambda: work_named(name, driver), window_s)
                fault = placed.fault() if ways else ""
            except Exception as error:  # a cell that fails must not take the others' figures along
                found, fault = [], f"{type(error).__name__}: {error}"
            if fault:
                wrong |= {way.name: f"in the swaps of all ways: {fault}" for way in ways}
            faults += [Fault(index, way, why) for way, why in wrong.items()]
            rows += [row for row in found if not fault]
            keep(report())
    return report()


def _measured_link(driver: Driver, axes: Axes) -> Link:
    with LinkProbe(driver, axes.link_bytes) as probe:
        for _ in range(_LINK_TAKES):
            probe.take()
        return probe.link()


@dataclass(frozen=True)
class _Swaps:
    """A way, and the stream that it puts its swaps on."""

    driver: Driver
    way: CellWay
    stream: int

    def put(self) -> tuple[Wait, Event]:
        """One more swap; what waits for it, and what the device will record at its end."""
        wait, landed = self.way.put(), Event(self.driver)
        landed.record(self.stream)
        return wait, landed


@dataclass(frozen=True)
class _Window:
    """Swaps that landed, in how many seconds, and the work's seconds an iteration meanwhile."""

    landed: int
    seconds: float
    iteration_s: float | None


def _cell_rows(
    index: int, cell: Cell, link: Link, ways: Sequence[_Swaps], make_work: Callable[[], Work], window_s: float
) -> list[BesideRow]:
    alone = [_window(swaps, window_s, None) for swaps in ways]
    with make_work() as work:
        beside = [_window_in_parts(swaps, window_s, work) for swaps in ways]
    rows = []
    of_link = link.gb_per_s(cell.direction)
    assert of_link is not None
    for swaps, before, (now, work_alone_s) in zip(ways, alone, beside, strict=True):
        assert now.iteration_s is not None
        alone_gb_per_s, gb_per_s = (cell.bytes * one.landed / one.seconds / 1e9 for one in (before, now))
        rows.append(
            BesideRow(
                cell=index,
                way=swaps.way.name,
                chosen=swaps.way.chosen,
                work_alone_s=work_alone_s,
                work_beside_s=now.iteration_s,
                slowdown=now.iteration_s / work_alone_s,
                alone_gb_per_s=alone_gb_per_s,
                beside_gb_per_s=gb_per_s,
                kept=gb_per_s / alone_gb_per_s,
                to_link=gb_per_s / of_link,
            )
        )
    return rows


def _work_alone_s(work: Work, seconds: float) -> float:
    mark = work.mark()
    sleep(seconds)
    return work.iteration_s(mark)


def _window_in_parts(swaps: _Swaps, seconds: float, work: Work) -> tuple[_Window, float]:
    """All that landed in parts of a window; and the work's seconds an iteration before, between and after them."""
    part_s = seconds / _PARTS
    parts, alone_s = [], [_work_alone_s(work, part_s)]
    for _ in range(_PARTS):
        parts.append(_window(swaps, part_s, work))
        alone_s.append(_work_alone_s(work, part_s))
    landed, took_s = sum(part.landed for part in parts), sum(part.seconds for part in parts)
    iterations_s = [part.iteration_s for part in parts if part.iteration_s is not None]
    return _Window(landed, took_s, median(iterations_s)), median(alone_s)


def _window(swaps: _Swaps, seconds: float, work: Work | None) -> _Window:
    """Swap again and again, some queued ahead; the window is from one landing to another, and longer than asked for
    where no iteration of the work fits into it.

    By the device's clock: this thread hears of a landing when the one that feeds the work lets it, milliseconds late.
    """
    queued = deque(swaps.put() for _ in range(_QUEUED_AHEAD))
    wait, first = queued.popleft()
    wait()
    mark, start, landed, last = work.mark() if work else None, perf_counter(), 0, first
    while True:
        if landed and perf_counter() - start >= seconds:
            if work is None or work.has_iteration(mark):
                break
            sleep(1e-3)  # or the thread that feeds the work never gets the GIL
        queued.append(swaps.put())
        wait, last = queued.popleft()
        wait()
        landed += 1
    last.synchronize()  # which comes right after the swap, and may not be over yet
    took_s = last.seconds_since(first)
    iteration_s = work.iteration_s(mark) if work else None
    for wait, _landed in queued:
        wait()
    return _Window(landed, took_s, iteration_s)
