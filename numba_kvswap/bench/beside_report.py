"""What swaps and the work beside them cost each other, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.matrix_report import Fault, Missing
from numba_kvswap.bench.must_show import verdict
from numba_kvswap.bench.named_ways import AUTO_COMPUTE, FIXED
from numba_kvswap.bench.works import WorkName
from numba_kvswap.link import Link
from numba_kvswap.text_table import aligned, number

#: What the choice that spares compute is held to beside a GEMM on an H200: the least of the link, the most slowdown.
TO_LINK_MIN, SLOWDOWN_MAX = 0.88, 1.03
# Where a host allocator of runs, or none, has put scattered device blocks.
_JUDGED_PLACES = (("block_major", "host"), ("layer_major", "1"))


@dataclass(frozen=True)
class BesideRow:
    """A way in a cell; `cell` is its index, `chosen` what a choosing way chose.

    work_alone_s, work_beside_s: seconds an iteration of the work; slowdown: the second to the first.
    alone_gb_per_s, beside_gb_per_s: 10^9 bytes, of swaps one after the other; kept: the second to the first.
    to_link: beside_gb_per_s to the idle link's of the same direction, in the same run.
    """

    cell: int
    way: str
    chosen: str
    work_alone_s: float
    work_beside_s: float
    slowdown: float
    alone_gb_per_s: float
    beside_gb_per_s: float
    kept: float
    to_link: float


@dataclass(frozen=True)
class BesideReport:
    """work: its name; unit: what an iteration of it is. window_s: how long each figure was measured."""

    work: WorkName
    unit: str
    window_s: float
    link: Link
    cells: Sequence[Cell]
    rows: Sequence[BesideRow]
    faults: Sequence[Fault]
    missing: Sequence[Missing]

    def table(self) -> str:
        link = self.link
        lines = [
            f"beside    {self.unit}",
            f"link      copies of {link.bytes:,} bytes: {link.out_gb_per_s:.2f} GB/s out, {link.in_gb_per_s:.2f} in",
            "",
        ]
        heading = ("cell", "way", "work alone us", "beside us", "slowdown", "GB/s alone", "beside", "kept", "to link")
        lines += aligned([heading, *map(self._cells_of, self.rows)], left_columns=2)
        lines += self._must_show_lines()
        lines += [f"fault     {fault.way} in {self.cells[fault.cell]}: {fault.why}" for fault in self.faults]
        return "\n".join([*lines, *(f"missing   {one.way} in {one.cells} cells: {one.why}" for one in self.missing)])

    def _must_show_lines(self) -> list[str]:
        found = list(self._must_show()) if self.work == "gemm" else []
        bar = f"to link >= {TO_LINK_MIN:.2f}, slowdown <= {SLOWDOWN_MAX:.2f}"
        heading = ("must show", "way", bar, "", "", "best fixed that slows no more", "to link")
        return ["", *aligned([heading, *found], left_columns=2)] if found else []

    def _must_show(self) -> Iterator[tuple[str, ...]]:
        for row in self.rows:
            cell = self.cells[row.cell]
            if row.way == AUTO_COMPUTE and (cell.host_layout, cell.run) in _JUDGED_PLACES:
                sparing = [
                    one
                    for one in self.rows
                    if one.cell == row.cell and one.way in FIXED and one.slowdown <= SLOWDOWN_MAX
                ]
                best = max(sparing, key=lambda one: one.to_link, default=None)
                met = row.to_link >= TO_LINK_MIN and row.slowdown <= SLOWDOWN_MAX
                yield (
                    str(cell),
                    f"{row.way}: {row.chosen}",
                    number(row.to_link, 3),
                    f"{row.slowdown:.3f}x",
                    verdict(met),
                    best.way if best else "-",
                    number(best.to_link if best else None, 3),
                )

    def _cells_of(self, row: BesideRow) -> tuple[str, ...]:
        return (
            str(self.cells[row.cell]),
            f"{row.way}: {row.chosen}" if row.chosen else row.way,
            number(row.work_alone_s * 1e6, 2),
            number(row.work_beside_s * 1e6, 2),
            f"{row.slowdown:.3f}x",
            number(row.alone_gb_per_s, 2),
            number(row.beside_gb_per_s, 2),
            number(row.kept, 3),
            number(row.to_link, 3),
        )
