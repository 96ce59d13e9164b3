"""What the matrix found: rows by cell and way, as JSON and as a short table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.choice_report import choice_lines
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.must_show import must_show_lines
from numba_kvswap.bench.named_ways import AUTO
from numba_kvswap.bench.rows import Row
from numba_kvswap.link import Link
from numba_kvswap.text_table import aligned, number


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
        """The cells that must be shown, how the choice did, and a summary of each way, as plain aligned text."""
        parts = [
            self._heading(),
            must_show_lines(self.cells, self.rows),
            choice_lines(self.cells, self.rows),
            self._summary_lines(),
            self._fault_lines(),
        ]
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
        """In how many cells each way, the choice and the floor aside, took the least device time."""
        fastest: dict[int, Row] = {}
        for row in sorted(self.rows, key=lambda row: row.device.median_us):
            if row.way not in (AUTO, LAUNCH_C):
                fastest.setdefault(row.cell, row)
        return Counter(row.way for row in fastest.values())

    def _fault_lines(self) -> list[str]:
        faults = [f"fault     {fault.way} in {self.cells[fault.cell]}: {fault.why}" for fault in self.faults]
        return [*faults, *(f"missing   {one.way} in {one.cells} cells: {one.why}" for one in self.missing)]
