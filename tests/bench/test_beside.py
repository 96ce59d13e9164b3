"""Swaps and the work beside them, on the simulated device: that both run, are counted, and end."""

from __future__ import annotations

import gc
import sys
import threading
import time
from dataclasses import replace

import pytest

from numba_kvswap import device_tools as device_tools_module
from numba_kvswap.bench import beside, cell_ways
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside import beside_cells, measure_beside
from numba_kvswap.bench.beside_report import BesideReport, BesideRow
from numba_kvswap.bench.cells import CUDA_AXES, SIMULATED_AXES
from numba_kvswap.bench.named_ways import AUTO, AUTO_COMPUTE, FIXED
from numba_kvswap.bench.works import PythonWork, QueuedWork, copies_within, work_named
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver
from numba_kvswap.link import Link
from numba_kvswap.swapper import Swapper

AXES = replace(SIMULATED_AXES, typical_bytes=64, beside_bytes=512)


class PretendedGPU(SimulatedDriver):
    name = "cuda"


def measured(work: str, keep=lambda report: None):
    driver = SimulatedDriver()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_tools_module, "_COPIES_MAX", 1)  # of earlier pairs, whose addresses may come again
        for _ in range(2):  # what the transports keep of a device, and tqdm of a thread, they have made the first time
            before = driver.live_allocations(), driver.live_streams(), threading.active_count()
            with driver.activate(0):
                report = measure_beside(driver, AXES, work, 0.01, keep)
            gc.collect()
    assert (driver.live_allocations(), driver.live_streams(), threading.active_count()) == before
    return report


def test_what_is_known_is_kept_after_every_cell():
    kept = []
    report = measured("python", kept.append)
    assert [len({row.cell for row in one.rows}) for one in kept[-6:]] == [1, 2, 3, 4, 5, 6]
    assert kept[-1] == report


def test_each_way_in_each_cell_has_what_it_costs_and_what_it_is_cost():
    report = measured("python")
    assert list(report.cells) == list(beside_cells(AXES))
    assert {(cell.direction, cell.host_layout, cell.run) for cell in report.cells} == {
        (direction, *kind)
        for direction in ("out", "in")
        for kind in (("block_major", "1"), ("block_major", "host"), ("layer_major", "1"))
    }
    assert {(row.cell, row.way) for row in report.rows} >= {
        (cell, way) for cell in range(6) for way in (*FIXED, AUTO, AUTO_COMPUTE)
    }
    for row in report.rows:
        assert row.slowdown == row.work_beside_s / row.work_alone_s > 0
        assert row.kept == row.beside_gb_per_s / row.alone_gb_per_s > 0
        link = report.link.gb_per_s(report.cells[row.cell].direction)
        assert row.to_link == pytest.approx(row.beside_gb_per_s / link)
        assert f"{row.slowdown:.3f}x" in report.table()
    assert "a turn of a busy Python thread" in report.table()
    whole = BenchReport("simulated", {}, {}, beside=report)
    assert BenchReport.from_json(whole.to_json()) == whole


def test_work_on_a_stream_is_counted_by_its_events_and_ends(monkeypatch):
    monkeypatch.setattr(beside, "work_named", lambda _name, driver: copies_within(driver, 256))
    report = measured("hbm")
    assert not report.faults
    assert report.unit == "a device-to-device copy of 256 bytes"
    assert all(row.work_beside_s > 0 for row in report.rows)


class Fails(Swapper):
    def submit(self, *arguments, **options):
        self.swaps = getattr(self, "swaps", 0) + 1
        if self.swaps > 2:
            raise KVSwapDriverError("cuLaunchKernel", "CUDA_ERROR_LATER")
        return super().submit(*arguments)


def test_a_way_that_fails_beside_leaves_faults_and_no_figures(monkeypatch):
    monkeypatch.setattr(cell_ways, "swapper_by", lambda device, host, way: Fails(device, host))
    report = measured("python")
    assert not report.rows
    assert {fault.cell for fault in report.faults} == set(range(6))
    assert "CUDA_ERROR_LATER" in report.table()


def made_up(work, *found) -> BesideReport:
    """found: of each way its ratio to the link, and the slowdown, in a block-major cell of host runs."""
    cells = list(beside_cells(CUDA_AXES))
    rows = [
        BesideRow(1, way, "ring" if way == AUTO_COMPUTE else "", 1.0, slowdown, slowdown, 50.0, 45.0, 0.9, to_link)
        for way, to_link, slowdown in found
    ]
    assert (cells[1].host_layout, cells[1].run) == ("block_major", "host")
    return BesideReport(work, "a matmul", 1.0, Link(1, 1.0, 1.0), cells, rows, [], [])


@pytest.mark.parametrize(
    ("to_link", "slowdown", "word"), [(0.88, 1.03, "ok"), (0.87, 1.0, "MISS"), (0.95, 1.04, "MISS")]
)
def test_sparing_compute_is_held_to_both_of_its_bars(to_link, slowdown, word):
    ways = ((AUTO_COMPUTE, to_link, slowdown), ("batch", 0.6, 1.01), ("ring", 0.85, 1.02), ("kernel", 0.99, 1.3))
    table = made_up("gemm", *ways).table()
    (line,) = [line for line in table[table.index("must show") :].splitlines() if AUTO_COMPUTE in line]
    assert line.split()[-3:] == [word, "ring", "0.850"], "the kernel slows the work too much to be a best"
    assert "must show" not in made_up("hbm", *ways).table()


def test_only_what_ran_since_the_mark_counts():
    """However long before it was launched."""
    driver = SimulatedDriver()
    gate = threading.Semaphore(60)

    def launch(stream):
        gate.acquire()

    def ended(count):
        while len(work._seconds) < count:
            time.sleep(1e-3)
        return len(work._seconds)

    with driver.activate(0), QueuedWork(driver, "a wait", launch) as work:
        try:
            assert ended(41) == 41, "the others are queued ahead"
            mark = work.mark()
            assert mark == 41
            gate.release(3)
            assert ended(44) == 44
            assert not work.has_iteration(mark), "they may have begun before it"
            gate.release(1)
            assert ended(45) == 45
            assert work.has_iteration(mark)
            assert work.iteration_s(mark) == work._seconds[44]
        finally:
            work._stop = True
            gate.release(100)
    assert driver.live_streams() == 0


class NoSwaps:
    """A way that moves nothing, and of whose landings one hears late."""

    def __init__(self, late_s=0.0):
        self.puts, self._late_s = 0, late_s

    def put(self):
        self.puts += 1
        return lambda: time.sleep(self._late_s)


def test_a_window_goes_on_until_an_iteration_of_the_work_fits_into_it():
    class SlowWork:
        def mark(self):
            return 0

        def has_iteration(self, since):
            return way.puts > 50

        def iteration_s(self, since):
            assert way.puts > 50, "no swap ran beside it any more"
            return 1.0

    driver, way = SimulatedDriver(), NoSwaps()
    with driver.activate(0):
        assert beside._window(beside._Swaps(driver, way, 0), 0.0, SlowWork()).iteration_s == 1.0


def test_a_window_lasts_from_landing_to_landing_however_late_one_hears_of_them():
    driver = SimulatedDriver(schedule=b"\x01" * 1000)  # what is put there runs at once
    with driver.activate(0):
        window = beside._window(beside._Swaps(driver, NoSwaps(late_s=0.4), 0), 0.0, None)
    assert window.landed == 1
    assert window.seconds < 0.4  # that one landing heard of late would be as long


def test_work_that_fails_is_told_to_whoever_asks_and_ends():
    driver = SimulatedDriver()

    def launch(stream):
        raise MemoryError("planted")

    work = QueuedWork(driver, "a matmul", launch)
    with driver.activate(0), pytest.raises(KVSwapDriverError, match=r"MemoryError.*a matmul: planted"), work:
        work.iteration_s(0)
    assert driver.live_streams() == 0


def test_a_python_thread_counts_its_turns():
    with PythonWork() as work:
        mark = work.mark()
        time.sleep(0.02)
        assert 0 < work.iteration_s(mark) < 0.02


@pytest.mark.parametrize("name", ["gemm", "hbm"])
def test_a_simulated_device_has_no_time_to_lose(name):
    with pytest.raises(ValueError, match=f"--beside {name} on the simulated device.*expected python"):
        work_named(name, SimulatedDriver())


def test_a_gemm_without_torch_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"--beside gemm needs torch.*pip install torch"):
        work_named("gemm", PretendedGPU())
