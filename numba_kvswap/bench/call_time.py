"""How long the whole Python call of a swap takes, by transport: its median and its hundredth worst."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from random import Random
from time import perf_counter, sleep

from tqdm import tqdm

from numba_kvswap.bench.busy_thread import BusyThread
from numba_kvswap.bench.report import AFTER_A_SLEEP, ALONE, ANYWHERE, BEGINNINGS, BUSY, CallRow
from numba_kvswap.bench.spread import percentile
from numba_kvswap.bench.ways import Sample, Way


def calls_of(ways: Sequence[Way], calls: int, row_seconds_max: float) -> list[CallRow]:
    """`calls` calls a row, or as many as `row_seconds_max` seconds hold. Ways and beginnings take turns, in an order
    drawn anew for each round."""
    taken: dict[tuple[str, str, str], list[Sample]] = {
        (way.name, beside, begins): [] for way, beside, begins in product(ways, (ALONE, BUSY), BEGINNINGS)
    }
    random = Random(0)
    for beside in (ALONE, BUSY):
        with BusyThread() if beside == BUSY else nullcontext():
            for _round in tqdm(range(calls), desc=f"calls, {beside}", unit=" rounds", leave=False, disable=None):
                turns = list(product(ways, BEGINNINGS))
                for way, begins in random.sample(turns, len(turns)):
                    samples = taken[way.name, beside, begins]
                    if sum(sample.landed_s for sample in samples) < row_seconds_max:
                        if begins == ANYWHERE:
                            spin(random.uniform(0, 2 * sys.getswitchinterval()))
                        elif begins == AFTER_A_SLEEP:  # as long as one waits for the GIL beside a busy thread
                            sleep(sys.getswitchinterval())
                        samples.append(way.run())
    return [_row(*key, [sample.host_us for sample in samples]) for key, samples in taken.items()]


def _row(way: str, beside: str, begins: str, values_us: Sequence[float]) -> CallRow:
    return CallRow(way, beside, begins, percentile(values_us, 50), percentile(values_us, 99), len(values_us))


def spin(seconds: float) -> None:
    """Keep running Python, so that a measurement begins anywhere in this thread's turn with the GIL.

    After a wait it would always begin with a fresh turn, which nobody cuts short for a whole switch interval.
    """
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass
