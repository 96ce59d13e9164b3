"""The cells that must be shown: what is judged in each, and the bar it is held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numba_kvswap.bench.cells import MustShow

#: Each a ratio, the higher the better. "link": GB/s to the link's. "c loop landed", "c loop host": the C loop's time to
#: ours, from call to last byte and until the call returned.
Measure = Literal["link", "c loop landed", "c loop host"]


@dataclass(frozen=True)
class Judged:
    """bar: the least the ratio may be; None where none was set."""

    measure: Measure
    bar: float | None = None


JUDGED: Mapping[MustShow, Judged] = {
    "layer-major runs of 1": Judged("link"),
    "block-major host runs": Judged("link"),
    "block-major scattered": Judged("link"),
    "both ways at once": Judged("link"),
    "latency of 1 block": Judged("c loop landed"),
    "host time": Judged("c loop host"),
}


def verdict(ratio: float | None, bar: float | None) -> str:
    if ratio is None or bar is None:
        return "-"
    return "ok" if ratio >= bar else "MISS"
