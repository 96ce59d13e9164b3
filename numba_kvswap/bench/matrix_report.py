"""What the matrix found: rows by cell and way, as JSON and as a short table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from numba_kvswap.bench.cell_ways import CellWay, Taken
from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.must_show import JUDGED, Measure, verdict
from numba_kvswap.bench.spread import Spread, spread_of
from numba_kvswap.bench.table import aligned, number
from numba_kvswap.bench.transports_here import AUTO
from numba_kvswap.bench.ways import C_LOOP
from numba_kvswap.link import Link


@dataclass(frozen=True)
class Row:
    """A way in a cell; `cell` is its index. See `cell_ways.Taken` for the three times.

    gb_per_s: 10^9 bytes, by the median device time. to_link: that to the link's of the same direction, in the same run.
    to_c_loop: the C loop's median device time to this way's; landed_to_c_loop, host_to_c_loop: so of the other times;
    None where there is no C loop. chosen, expected_us: what "auto" chose and how long it expected that to take.
    """

    cell: int
    way: str
    chosen: str
    expected_us: float | None
    host: Spread
    landed: Spread
    device: Spread
    gb_per_s: float
    to_link: float
    to_c_loop: float | None
    landed_to_c_loop: float | None
    host_to_c_loop: float | None

    def ratio(self, measure: Measure) -> float | None:
        return {
            "link": self.to_link,
            "c loop landed": self.landed_to_c_loop,
            "c loop host": self.host_to_c_loop,
        }[measure]


@dataclass(frozen=True)
class Fault:
    """A way that did not match the reference in a cell, or failed; it has no row there."""

    cell: int
    way: str
    why: str


@dataclass(frozen=True)
class Missing:
    """A way that cannot be taken in `cells` of the cells, for one reason."""

    way: str
    why: str
    cells: int


@dataclass(frozen=True)
class MatrixReport:
    """cells: those measured, in order. left_out: cells by the rule that left them out. not_reached: cells for which
    there was no time. ended_by: what ended the run early, "" where nothing did. seconds: the time it took."""

    seconds: float
    seconds_asked: float
    repeats: int
    link: Link
    cells: Sequence[Cell]
    rows: Sequence[Row]
    faults: Sequence[Fault]
    missing: Sequence[Missing]
    left_out: Mapping[str, int]
    not_reached: int
    ended_by: str

    def table(self) -> str:
        """The must-show cells and a summary of each way, as plain aligned text."""
        parts = [self._heading(), self._must_show_lines(), self._summary_lines(), self._fault_lines()]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _heading(self) -> list[str]:
        link = self.link
        left_out = sum(self.left_out.values())
        return [
            f"matrix    {len(self.cells)} cells in {self.seconds:.0f} s; {self.not_reached} not reached in time, "
            f"{left_out} left out by rule",
            *(f"          {count:,} left out: {rule}" for rule, count in self.left_out.items()),
            *([f"          ended early: {self.ended_by}"] if self.ended_by else []),
            f"link      copies of {link.bytes:,} bytes: {link.out_gb_per_s:.2f} GB/s out, {link.in_gb_per_s:.2f} in, "
            f"{number(link.both_gb_per_s, 2)} both at once",
        ]

    def _must_show_lines(self) -> list[str]:
        heading = ("must show", "", "block bytes", "blocks", "way", "GB/s", "ratio", "", "bar", "", "best")
        rows = [row for index, cell in enumerate(self.cells) if cell.must_show for row in self._must_show(index)]
        return aligned([heading, *rows], left_columns=2) if rows else []

    def _must_show(self, index: int) -> Iterator[tuple[str, ...]]:
        """The choice's row in a must-show cell, or where nothing chooses the best transport's; and the best."""
        cell = self.cells[index]
        assert cell.must_show
        judged = JUDGED[cell.must_show]
        rows = [row for row in self.rows if row.cell == index and row.way != C_LOOP]
        if not rows:
            return
        best = max(rows, key=lambda row: row.ratio(judged.measure) or 0)
        ours = next((row for row in rows if row.way == AUTO), best)
        ratio = ours.ratio(judged.measure)
        yield (
            cell.must_show,
            cell.direction,
            f"{cell.block_bytes:,}",
            f"{cell.blocks:,}",
            f"{ours.way}: {ours.chosen}" if ours.chosen else ours.way,
            number(ours.gb_per_s, 2),
            number(ratio, 3),
            f"to {judged.measure}",
            "-" if judged.bar is None else f">= {judged.bar:.2f}",
            verdict(ratio, judged.bar),
            f"{best.way} {number(best.ratio(judged.measure), 3)}",
        )

    def _summary_lines(self) -> list[str]:
        heading = ("way", "cells", "best in", "median to link", "least", "most", "median to c loop", "faults")
        ways = list(dict.fromkeys([row.way for row in self.rows] + [fault.way for fault in self.faults]))
        return aligned([heading, *(self._summary(way) for way in ways)], left_columns=1)

    def _summary(self, way: str) -> tuple[str, ...]:
        rows = [row for row in self.rows if row.way == way]
        links = [row.to_link for row in rows]
        loops = [row.to_c_loop for row in rows if row.to_c_loop is not None]
        faults = sum(fault.way == way for fault in self.faults)
        return (
            way,
            str(len(rows)),
            str(self._wins().get(way, 0)),
            *(number(of(links) if links else None, 3) for of in (median, min, max)),
            number(median(loops) if loops else None, 2),
            str(faults),
        )

    def _wins(self) -> Counter[str]:
        """In how many cells each way, the choice aside, took the least device time."""
        fastest: dict[int, Row] = {}
        for row in sorted(self.rows, key=lambda row: row.device.median_us):
            if row.way != AUTO:
                fastest.setdefault(row.cell, row)
        return Counter(row.way for row in fastest.values())

    def _fault_lines(self) -> list[str]:
        faults = [f"fault     {fault.way} in {self.cells[fault.cell]}: {fault.why}" for fault in self.faults]
        return [*faults, *(f"missing   {one.way} in {one.cells} cells: {one.why}" for one in self.missing)]


@dataclass(frozen=True)
class Measured:
    """What was taken of one way in one cell, before the link of the whole run is known."""

    cell: int
    way: str
    chosen: str
    expected_us: float | None
    taken: Sequence[Taken]

    @classmethod
    def of(cls, cell: int, way: CellWay, taken: Sequence[Taken]) -> Measured:
        return cls(cell, way.name, way.chosen, way.expected_us, taken)

    def spreads(self) -> tuple[Spread, Spread, Spread]:
        """Host's, landed and device's."""
        return (
            spread_of([one.host_us for one in self.taken]),
            spread_of([one.landed_us for one in self.taken]),
            spread_of([one.device_us for one in self.taken]),
        )


def rows_of(measured: Sequence[Measured], cells: Sequence[Cell], link: Link) -> list[Row]:
    """Everything measured, each with its ratio to the link and to the C loop in its cell."""
    loops = {one.cell: one.spreads() for one in measured if one.way == C_LOOP}
    return [_row(one, cells[one.cell], link, loops.get(one.cell)) for one in measured]


def _row(one: Measured, cell: Cell, link: Link, loop: tuple[Spread, Spread, Spread] | None) -> Row:
    host, landed, device = spreads = one.spreads()
    gb_per_s = cell.bytes / device.median_us / 1e3
    of_link = link.gb_per_s(cell.direction)
    assert of_link is not None
    to_loop = [to.median_us / of.median_us for to, of in zip(loop, spreads, strict=True)] if loop else [None] * 3
    return Row(
        cell=one.cell,
        way=one.way,
        chosen=one.chosen,
        expected_us=one.expected_us,
        host=host,
        landed=landed,
        device=device,
        gb_per_s=gb_per_s,
        to_link=gb_per_s / of_link,
        to_c_loop=to_loop[2],
        landed_to_c_loop=to_loop[1],
        host_to_c_loop=to_loop[0],
    )
