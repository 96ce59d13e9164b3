"""What was taken of each way in each cell, and the figures made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numba_kvswap.bench.cell_ways import CellWay, Taken
from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.spread import Spread, spread_of
from numba_kvswap.bench.ways import C_LOOP
from numba_kvswap.link import Link


@dataclass(frozen=True)
class Row:
    """A way in a cell; `cell` is its index. See `cell_ways.Taken` for the three times.

    gb_per_s: 10^9 bytes, by the median device time. to_link: that to the link's of the same direction, in the same run.
    to_c_loop: the C loop's median device time to this way's; landed_to_c_loop, host_to_c_loop: so of the other times;
    None where there is no C loop. chosen, expected_us: what "auto" took and how long it expected its choice to take.
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
