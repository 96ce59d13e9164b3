"""Repeated measurements, as what is reported of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Microseconds over `repeats` measurements; q1 and q3 are the quartiles, interpolated linearly."""

    median_us: float
    min_us: float
    max_us: float
    q1_us: float
    q3_us: float
    repeats: int


def spread_of(values_us: Sequence[float]) -> Spread:
    """Of one value or more."""
    least, q1, median, q3, most = (float(value) for value in np.percentile(values_us, (0, 25, 50, 75, 100)))
    return Spread(median, least, most, q1, q3, len(values_us))


def percentile(values_us: Sequence[float], percent: float) -> float:
    """Interpolated linearly between the two nearest values."""
    return float(np.percentile(values_us, percent))
