"""How soon a pool is ready: what is measured, told and held to its bar. On the simulated device, whose figures mean
nothing."""

from __future__ import annotations

import gc
import json

import pytest

from numba_kvswap import host_memory
from numba_kvswap.bench import pool_time
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.pool_time import JUDGED_BYTES, PoolReport, PoolSizes, measure_pool
from numba_kvswap.bench.run import bench
from numba_kvswap.driver import SimulatedDriver
from numba_kvswap.host_memory import POOL_BYTES_MIN

SIZES = PoolSizes(blocks=2, driver_bytes=4096)


def measured(driver):
    with driver.activate(0):
        report = measure_pool(driver, SIZES, pools=2)
    gc.collect()
    return report


def test_pools_are_measured_and_given_back():
    driver = SimulatedDriver()
    report = measured(driver)
    assert report.bytes == 80 << 20 >= POOL_BYTES_MIN, "else the driver's own allocation would be measured"
    assert len(report.pool_s) == 2
    for pool_s, *parts_s in zip(report.pool_s, report.touch_s, report.register_s, strict=True):
        assert 0 < sum(parts_s) < pool_s
    assert report.driver_s > 0
    assert driver.calls["cuMemHostRegister"] == driver.calls["cuMemHostUnregister"] == 2
    driver.tools.clear()
    gc.collect()
    assert driver.live_allocations() == 0


def test_a_pool_whose_blocks_do_not_come_back_has_no_figures(monkeypatch):
    class Tired(pool_time.Swapper):
        def swap_out(self, device_ids, host_ids):
            return super().swap_out(device_ids, [1])

    monkeypatch.setattr(pool_time, "Swapper", Tired)
    report = measured(SimulatedDriver())
    assert (list(report.pool_s), report.driver_s) == ([], None)
    assert "did not come back as it was in layers [0, 1, 2" in report.table()
    assert "touching" not in report.table()


@pytest.mark.parametrize("failing", ["cuMemHostRegister", "cuMemHostAlloc", "cuMemAlloc"])
def test_memory_that_is_not_to_be_had_is_told(failing):
    driver = SimulatedDriver()
    driver.fail(failing)
    report = measured(driver)
    assert (list(report.pool_s), report.driver_s) == ([], None)
    assert failing in report.table()


def test_too_large_a_pool_is_told(monkeypatch):
    def no_room(*_arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(host_memory, "check_room", no_room)
    assert "no room" in measured(SimulatedDriver()).table()


@pytest.mark.parametrize(("slowest_s", "word"), [(3.0, "ok"), (3.1, "MISS")])
def test_a_pool_of_40_gib_is_held_to_its_bar(slowest_s, word):
    table = PoolReport(JUDGED_BYTES, [1.0, slowest_s, 2.0], [0.4], [0.5], 1 << 30, 1.0, "").table()
    assert table.endswith(f"{slowest_s:.2f} s <= 3 s {word}")
    assert f"{40 / slowest_s:.1f} times as fast" in table
    assert "must show" not in PoolReport(JUDGED_BYTES - 1, [1.0], [0.4], [0.5], 1 << 30, 1.0, "").table()


def test_a_bench_of_the_pool_keeps_and_tells_it():
    kept, said = [], []
    bench("simulated", "pool", 1.0, 1, 1, kept.append, said.append)
    assert BenchReport.from_json(kept[-1].to_json()) == kept[-1]
    assert "simulated device" in said[0]
    assert said[1:] == [kept[-1].pool.table()]
    assert kept[-1].matrix is kept[-1].host_time is None


def test_a_file_from_before_there_was_a_pool_is_read():
    report = BenchReport("simulated", {}, {})
    plain = json.loads(report.to_json())
    del plain["pool"]
    assert BenchReport.from_json(json.dumps(plain)) == report
    del plain["engine"]
    with pytest.raises(ValueError, match="see engine"):
        BenchReport.from_json(json.dumps(plain))
