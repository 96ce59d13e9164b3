"""How far the choice is from the best transport of each cell, by the time from the call to the last byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.named_ways import AUTO, FIXED
from numba_kvswap.bench.rows import Row
from numba_kvswap.text_table import aligned

#: "auto" may take this much longer than the best fixed transport.
RATIO_MAX = 1.10
#: A difference of medians below this is noise: such cells are within the bar whatever their ratio.
NOISE_US = 5.0
# Cells beyond the bar by less than this are counted on their own: there the host's call decides, not the link.
_SHORT_US = 100.0
_WORST_SHOWN = 10


@dataclass(frozen=True)
class Lag:
    """The choice's median from call to last byte in one cell, and that of the best fixed transport there."""

    cell: int
    chosen: str
    auto_us: float
    best: str
    best_us: float

    @property
    def ratio(self) -> float:
        return self.auto_us / self.best_us

    @property
    def beyond(self) -> bool:
        return self.ratio > RATIO_MAX and self.auto_us - self.best_us >= NOISE_US


def lags(rows: Sequence[Row]) -> list[Lag]:
    """Of every cell in which the choice and a fixed transport have a row, the longest behind first."""
    best: dict[int, Row] = {}
    for row in sorted((row for row in rows if row.way in FIXED), key=lambda row: row.landed.median_us):
        best.setdefault(row.cell, row)
    found = [
        Lag(row.cell, row.chosen, row.landed.median_us, best[row.cell].way, best[row.cell].landed.median_us)
        for row in rows
        if row.way == AUTO and row.cell in best
    ]
    return sorted(found, key=lambda lag: (lag.beyond, lag.ratio), reverse=True)


def choice_lines(cells: Sequence[Cell], rows: Sequence[Row]) -> list[str]:
    """How many cells the choice is beyond the bar in, and the worst of all cells."""
    found = lags(rows)
    if not found:
        return []
    beyond = [lag for lag in found if lag.beyond]
    short = sum(lag.auto_us - lag.best_us < _SHORT_US for lag in beyond)
    heading = ("worst cells", "auto took", "us", "best fixed", "us", "ratio", "")
    worst = [
        (
            str(cells[lag.cell]),
            lag.chosen,
            f"{lag.auto_us:,.1f}",
            lag.best,
            f"{lag.best_us:,.1f}",
            f"{lag.ratio:.3f}",
            "beyond" if lag.beyond else "within",
        )
        for lag in found[:_WORST_SHOWN]
    ]
    return [
        f"choice    from call to landed auto is more than {RATIO_MAX - 1:.0%} behind the best fixed transport in "
        f"{len(beyond)} of {len(found)} cells,",
        f"          in {short} of these by less than {_SHORT_US:.0f} us; differences below {NOISE_US:.0f} us are "
        "noise and count as none",
        *aligned([heading, *worst], left_columns=2),
    ]
