"""What a calibration found, in words: ``python -m numba_kvswap calibrate``, and a line of ``info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter

from numba_kvswap import disk_cache
from numba_kvswap.calibration import calibrate, costs_file, kept_costs
from numba_kvswap.costs import CURVES, Costs, Curve
from numba_kvswap.driver import Driver, cuda_available, cuda_driver, why_no_cuda
from numba_kvswap.text_table import aligned

_KIB, _MIB = 1 << 10, 1 << 20


def calibrated() -> tuple[Costs, list[str]]:
    """Measure device 0 anew and keep it on disk; the costs, and what there is to say, a line each.

    Raises ValueError where there is no GPU, KVSwapDriverError.
    """
    if not cuda_available():
        raise ValueError(
            f"there is no GPU to measure ({why_no_cuda()}); expected one: the simulated device takes an H200's costs"
        )
    driver = cuda_driver()
    with driver.activate(0):
        started = perf_counter()
        costs = calibrate(driver, 0)
        seconds = perf_counter() - started
        return costs, [*costs_lines(costs), "", f"measured in {seconds:.2f} s", *kept_lines(driver)]


def kept_lines(driver: Driver) -> Iterator[str]:
    """Whether, and where, device 0's costs are on disk."""
    path = Path(disk_cache.cache_folder(), costs_file(driver, 0))
    if kept_costs(driver, 0) is None:
        yield f"calibration    none of device 0 in {path.parent}; the first Swapper that chooses makes one"
    else:
        yield f"calibration    of device 0 in {path}"


def costs_lines(costs: Costs) -> Iterator[str]:
    """Both ways, a row a size of piece: microseconds a piece and GB/s of every curve."""
    yield f"costs of {costs.machine}"
    for way, curves in (("out", costs.out), ("in", costs.in_)):
        yield ""
        yield from _way_lines(way, curves)


def _way_lines(way: str, curves: Mapping[str, Curve]) -> list[str]:
    heading = [way, *(cell for name in CURVES for cell in (f"{name} us", "GB/s"))]
    # Of 2-D copies the fixed part is a copy's, of the others a swap's.
    fixed = ["fixed", *(cell for name in CURVES for cell in (f"{curves[name].fixed_s * 1e6:,.1f}", ""))]
    sizes = sorted({size for curve in curves.values() for size in curve.bytes})
    rows = [[_size(size), *(cell for name in CURVES for cell in _piece(curves[name], size))] for size in sizes]
    return aligned([tuple(row) for row in (heading, fixed, *rows)], left_columns=1)


def _piece(curve: Curve, size: int) -> tuple[str, str]:
    measured = dict(zip(curve.bytes, curve.piece_s, strict=True))
    if size not in measured:
        return "-", "-"
    return f"{measured[size] * 1e6:,.2f}", f"{size / measured[size] / 1e9:.2f}"


def _size(size: int) -> str:
    for unit, name in ((_MIB, "MiB"), (_KIB, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
