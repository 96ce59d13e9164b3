"""The cells that must be shown: what is judged in each, the bar it is held to, and how it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from numba_kvswap.bench.cells import Cell, MustShow
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.named_ways import AUTO, FIXED
from numba_kvswap.bench.places import Direction
from numba_kvswap.bench.rows import Row
from numba_kvswap.text_table import aligned, number

#: "link": GB/s to the link's, the higher the better. "landed us", "host us": median microseconds from the call to the
#: last byte and until the call returned, the lower the better.
Measure = Literal["link", "landed us", "host us"]


@dataclass(frozen=True)
class Judged:
    """bars: by direction, the least that a ratio to the link, or the most that microseconds, may be."""

    measure: Measure
    bars: Mapping[Direction, float]

    def of(self, row: Row) -> float:
        return {"link": row.to_link, "landed us": row.landed.median_us, "host us": row.host.median_us}[self.measure]

    @property
    def rises(self) -> bool:
        """Whether more is better."""
        return self.measure == "link"

    @property
    def has_floor(self) -> bool:
        """Whether it is short enough for the host's driver calls to count, which cost one host twice what they cost
        another: the same calls from C, in the same run, then tell more than the bar."""
        return self.measure != "link"

    def met(self, row: Row, direction: Direction) -> bool:
        bar = self.bars[direction]
        return self.of(row) >= bar if self.rises else self.of(row) <= bar

    def in_words(self, row: Row) -> str:
        return number(self.of(row), 3 if self.rises else 1)

    def bar_in_words(self, direction: Direction) -> str:
        bar = self.bars[direction]
        return f">= {bar:.2f} of link" if self.rises else f"<= {bar:.0f} {self.measure}"


#: What the choice is held to on an H200.
JUDGED: Mapping[MustShow, Judged] = {
    "layer-major runs of 1": Judged("link", {"out": 0.92, "in": 0.90}),
    "block-major host runs": Judged("link", {"out": 0.97, "in": 0.97}),
    "block-major scattered": Judged("link", {"out": 0.93, "in": 0.92}),
    "both ways at once": Judged("link", {"both": 0.90}),
    "latency of 1 block": Judged("landed us", {"out": 80, "in": 80}),
    "host time": Judged("host us", {"out": 60, "in": 60}),
}


def floor_in(cell: Cell) -> bool:
    """Whether the cell's swap is also measured as a launch from C, see `Judged.has_floor`."""
    return bool(cell.must_show) and JUDGED[cell.must_show].has_floor


def must_show_lines(cells: Sequence[Cell], rows: Sequence[Row]) -> list[str]:
    """A line a cell that must be shown: the choice against the bar, and beside it the best fixed transport.

    from C, over C: microseconds of one launch from C, by the cell's measure, and how many more the choice took.
    """
    place = ("must show", "", "layout", "block bytes", "blocks")
    heading = (*place, "way", "GB/s", "found", "from C", "over C", "bar", "", "best fixed", "")
    found = [line for index, cell in enumerate(cells) if cell.must_show for line in _line(cell, _of_cell(index, rows))]
    return aligned([heading, *found], left_columns=3) if found else []


def _of_cell(index: int, rows: Sequence[Row]) -> dict[str, Row]:
    return {row.way: row for row in rows if row.cell == index}


def _line(cell: Cell, rows: Mapping[str, Row]) -> Iterator[tuple[str, ...]]:
    assert cell.must_show
    judged, auto = JUDGED[cell.must_show], rows.get(AUTO)
    if auto is None:  # it has a fault, which is told elsewhere
        return
    fixed = sorted((rows[name] for name in FIXED if name in rows), key=judged.of, reverse=judged.rises)
    yield (
        cell.must_show,
        cell.direction,
        cell.host_layout,
        f"{cell.block_bytes:,}",
        f"{cell.blocks:,}",
        f"{auto.way}: {auto.chosen}",
        number(auto.gb_per_s, 2),
        judged.in_words(auto),
        *_floor(judged, auto, rows.get(LAUNCH_C)),
        judged.bar_in_words(cell.direction),
        verdict(judged.met(auto, cell.direction)),
        fixed[0].way if fixed else "-",
        judged.in_words(fixed[0]) if fixed else "-",
    )


def _floor(judged: Judged, auto: Row, from_c: Row | None) -> tuple[str, str]:
    if not judged.has_floor:
        return "", ""
    return ("-", "-") if from_c is None else (judged.in_words(from_c), number(judged.of(auto) - judged.of(from_c), 1))


def verdict(met: bool) -> str:
    return "ok" if met else "MISS"
