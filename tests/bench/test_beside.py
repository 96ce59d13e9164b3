"""Swaps and the work beside them, on the simulated device: that both run, are counted, and end."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

import pytest

from numba_kvswap.bench import beside, cell_ways
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside import beside_cells, measure_beside
from numba_kvswap.bench.cells import SIMULATED_AXES
from numba_kvswap.bench.transports_here import NAMES
from numba_kvswap.bench.works import PythonWork, QueuedWork, copies_within, work_named
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver
from numba_kvswap.swapper import Swapper

AXES = replace(SIMULATED_AXES, typical_bytes=64, full_bytes=512)


class PretendedGPU(SimulatedDriver):
    name = "cuda"


def measured(work: str, driver=None):
    driver = driver or SimulatedDriver()
    before = threading.active_count()
    with driver.activate(0):
        report = measure_beside(driver, AXES, work, 0.01)
    assert threading.active_count() == before
    assert (driver.live_allocations(), driver.live_streams()) == (0, 0)
    return report


def test_each_way_in_each_cell_has_what_it_costs_and_what_it_is_cost():
    report = measured("python")
    assert list(report.cells) == list(beside_cells(AXES))
    assert {(cell.direction, cell.host_layout, cell.run) for cell in report.cells} == {
        (direction, *kind)
        for direction in ("out", "in")
        for kind in (("block_major", "1"), ("block_major", "host"), ("layer_major", "1"))
    }
    assert {(row.cell, row.way) for row in report.rows} >= {(cell, way) for cell in range(6) for way in NAMES}
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
    def submit(self, *arguments):
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


def test_only_what_was_launched_since_the_mark_counts():
    driver = SimulatedDriver()
    gate = threading.Semaphore(60)

    def launch(stream):
        gate.acquire()

    with driver.activate(0), QueuedWork(driver, "a wait", launch) as work:
        while work.mark() < 60:
            time.sleep(1e-3)
        mark = work.mark()
        assert len(work._seconds) < mark
        gate.release(100)
        assert work.iteration_s(mark) > 0
        assert len(work._seconds) > mark
        work._stop = True
        gate.release(100)
    assert driver.live_streams() == 0


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
