"""The benchmark of host time, on the simulated device: its rows, its report, and that it finds out a wrong way."""

import ctypes
import gc
import json
import time
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numba_kvswap import choice
from numba_kvswap.__main__ import main
from numba_kvswap.bench import c_loop, host_time, matrix
from numba_kvswap.bench.arena import Arena, PlacedSwap
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.busy_thread import BusyThread
from numba_kvswap.bench.c_loop import LaunchSwap, NoCompiler
from numba_kvswap.bench.cell_ways import LaunchWay, SwapWay
from numba_kvswap.bench.launch_ways import (
    LAUNCH_C,
    LAUNCH_CALL,
    LAUNCH_SUBMIT,
    LaunchCWay,
    LaunchSubmitWay,
    PreparedLaunch,
)
from numba_kvswap.bench.named_ways import AUTO, FIXED
from numba_kvswap.bench.places import Place
from numba_kvswap.bench.plot import plot
from numba_kvswap.bench.report import (
    AFTER_A_SLEEP,
    AFTER_A_WAIT,
    ALONE,
    ANYWHERE,
    BEGINNINGS,
    BUSY,
    CallRow,
    HostTimeReport,
    SubmitRow,
)
from numba_kvswap.bench.scattered_swap import Geometry, ScatteredSwap
from numba_kvswap.bench.spread import spread_of
from numba_kvswap.bench.ways import BINDINGS_LOOP, C_LOOP, PYTHON_COPIES, CWay, PythonWay, python_name
from numba_kvswap.costs import h200_costs
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver
from numba_kvswap.link import LinkProbe, measure_link
from numba_kvswap.plan import Plan

SMALL = Geometry(blocks_moved=8, layers=4, block_bytes=64, cache_blocks=24)
#: So many blocks that their ids are copied to the device, where fewer are read where they lie.
MORE = Geometry(blocks_moved=16, layers=4, block_bytes=64, cache_blocks=48)
C_TIMED_FROM_PYTHON = f"{C_LOOP}, timed from Python"

_MEMCPY = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 4)


def has_compiler() -> bool:
    try:
        c_loop.CLoop()
    except NoCompiler:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler here")


@pytest.fixture(autouse=True)
def small_swaps(monkeypatch):
    monkeypatch.setattr(host_time, "SIMULATED_GEOMETRY", SMALL)
    monkeypatch.setattr(host_time, "CUDA_GEOMETRY", SMALL)
    monkeypatch.setattr(host_time, "_LINK_BYTES", 1 << 16)


def rows_of(report: HostTimeReport) -> set[tuple[str, str]]:
    return {(row.way, row.beside) for row in report.submit}


def planted(monkeypatch, tmp_path, right: str, wrong: str) -> None:
    """Have the C loop compiled from a source in which `right` is `wrong`."""
    source = c_loop.SOURCE.read_text()
    assert source.count(right) == 1
    wrong_source = tmp_path / "submit_loop.c"
    wrong_source.write_text(source.replace(right, wrong))
    monkeypatch.setattr(c_loop, "SOURCE", wrong_source)


@needs_compiler
def test_every_way_is_measured_alone_and_beside_a_busy_thread():
    report = host_time.bench("simulated", 2, calls=1)
    ways = (PYTHON_COPIES, C_LOOP, C_TIMED_FROM_PYTHON)
    assert rows_of(report) == {(way, beside) for way in ways for beside in (ALONE, BUSY)}
    assert [row.name for row in report.plan] == ["Plan(numpy arrays)", "Plan(lists)"]
    for row in [*report.plan, *report.submit]:
        assert 0 < row.time.min_us <= row.time.median_us <= row.time.max_us
    assert {row.time.repeats for row in report.submit} == {2}
    assert set(report.why_missing) == {BINDINGS_LOOP}
    medians = {(row.way, row.beside): row.time.median_us for row in report.submit}
    assert medians[C_TIMED_FROM_PYTHON, ALONE] >= medians[C_LOOP, ALONE]
    assert report.ratios["python_busy_to_python_alone"] == medians[PYTHON_COPIES, BUSY] / medians[PYTHON_COPIES, ALONE]
    assert report.ratios["bindings_to_c_alone"] is None


@needs_compiler
def test_the_json_names_units_and_the_machine(tmp_path):
    path = tmp_path / "figures.json"
    few = ["--what", "host-time", "--repeats", "1", "--calls", "2"]
    assert main(["bench", "--engine", "simulated", *few, "--json", str(path)]) == 0
    found = json.loads(path.read_text())["host_time"]
    sections = {"engine", "repeats", "machine", "versions", "swap", "plan", "submit", "launch", "calls", "bars", "link"}
    assert set(found) >= sections
    assert found["machine"]["device_name"] == "simulated device"
    assert found["machine"]["cpus"] >= 1
    assert found["machine"]["c_compiler"]
    assert set(found["versions"]) >= {"numba_kvswap", "python", "numpy", "numba"}
    assert found["swap"] == {
        "blocks_moved": 8,
        "layers": 4,
        "block_bytes": 64,
        "cache_blocks": 24,
        "copies": 32,
        "bytes": 2048,
    }
    assert found["plan"][0]["target_us_max"] == 100.0
    assert set(found["submit"][0]) == {
        "way",
        "beside",
        "median_us",
        "min_us",
        "max_us",
        "q1_us",
        "q3_us",
        "repeats",
        "to_c_loop_alone_ratio",
        "landed_s",
        "landed_gb_per_s",
    }
    assert set(found["ratios"]) == {
        "python_to_c_alone",
        "python_busy_to_c_alone",
        "python_busy_to_python_alone",
        "bindings_to_c_alone",
        "bindings_busy_to_c_alone",
    }
    assert found["link"] is None, "a simulated device has no link"


@needs_compiler
def test_the_table_is_aligned_and_has_the_c_loop_alone_at_one():
    lines = host_time.bench("simulated", 1, calls=1).table().splitlines()
    heading = next(index for index, line in enumerate(lines) if line.startswith("way"))
    rows = lines[heading : heading + 7]
    assert len({len(line) for line in rows}) == 1
    (c_alone,) = [line for line in rows if line.startswith("c loop  ") and "alone" in line]
    assert c_alone.split()[-1] == "1.00"


@needs_compiler
def test_a_c_loop_that_skips_the_last_copy_gets_no_figures(monkeypatch, tmp_path):
    planted(monkeypatch, tmp_path, "i < copies", "i + 1 < copies")
    report = host_time.bench("simulated", 1, calls=1)
    assert rows_of(report) == {(PYTHON_COPIES, ALONE), (PYTHON_COPIES, BUSY)}
    assert "wrong bytes: layer 3" in report.why_missing[C_LOOP]
    assert report.why_missing[C_LOOP] in report.table()
    assert report.ratios["python_to_c_alone"] is None


@needs_compiler
def test_a_way_that_writes_where_it_should_not_gets_no_figures(monkeypatch, tmp_path):
    planted(monkeypatch, tmp_path, "copy(targets[i],", "copy(targets[i] + bytes[i],")
    assert "wrong bytes: layer 0" in host_time.bench("simulated", 1, calls=1).why_missing[C_LOOP]


@needs_compiler
def test_a_way_whose_driver_call_fails_gets_no_figures(monkeypatch, tmp_path):
    planted(monkeypatch, tmp_path, "copy(targets[i],", "copy(targets[i] + (1ull << 40),")
    report = host_time.bench("simulated", 1, calls=1)
    assert "CUDA_ERROR" in report.why_missing[C_LOOP]
    assert (PYTHON_COPIES, BUSY) in rows_of(report)


def test_without_a_compiler_the_c_row_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    report = host_time.bench("simulated", 1, calls=1)
    assert rows_of(report) == {(PYTHON_COPIES, ALONE), (PYTHON_COPIES, BUSY)}
    assert "no C compiler on PATH" in report.why_missing[C_LOOP]
    assert report.why_missing[C_LOOP] in report.table()
    assert json.loads(report.to_json())["machine"]["c_compiler"] is None


@needs_compiler
def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    planted(monkeypatch, tmp_path, "int status = 0;", "int status = nonsense;")
    assert "nonsense" in host_time.bench("simulated", 1, calls=1).why_missing[C_LOOP]


def test_no_way_at_all_is_reported_too(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(ScatteredSwap, "fault", lambda self, direction: "planted")
    report = host_time.bench("simulated", 1, calls=1)
    assert not report.submit and not report.launch and not report.calls
    assert "not measured: planted" in report.table()
    json.loads(report.to_json())


@needs_compiler
def test_python_and_c_submit_the_same_copies_in_the_same_order(monkeypatch):
    log = []
    enqueue = SimulatedDriver._enqueue_copy

    def logged(self, *copy):
        log.append(copy)
        return enqueue(self, *copy)

    monkeypatch.setattr(SimulatedDriver, "_enqueue_copy", logged)
    driver = SimulatedDriver()
    with driver.activate(0), ScatteredSwap(driver, SMALL) as swap:
        PythonWay(swap, "copies").run()
        from_python = log.copy()
        log.clear()
        CWay(swap).run()
    assert from_python == log
    assert len(log) == SMALL.copies
    assert driver.calls["cuMemcpy2DAsync"] == 0


def test_the_ids_are_scattered_and_everything_is_given_back():
    driver = SimulatedDriver()
    with driver.activate(0), ScatteredSwap(driver, SMALL) as swap:
        for ids in (swap.device_ids, swap.host_ids):
            found = sorted(ids.tolist())
            assert len(set(found)) == SMALL.blocks_moved
            assert all(later - earlier > 1 for earlier, later in pairwise(found))
        assert swap.swapper.swap_out(swap.device_ids, swap.host_ids, swap.stream).runs == SMALL.blocks_moved
    assert driver.live_streams() == 0, "one copy a run and layer needs none aside"
    assert driver.live_allocations() == 0


def test_the_busy_thread_spins_while_its_block_runs_and_stops_after_it():
    with BusyThread() as busy:
        before = busy.spins
        time.sleep(0.05)
        assert busy.spins > before + 1000
    after = busy.spins
    time.sleep(0.02)
    assert busy.spins == after


def test_the_busy_thread_stops_after_an_error():
    busy = BusyThread()
    with pytest.raises(ZeroDivisionError), busy:
        _ = 1 / 0
    assert not busy._thread.is_alive()


def test_a_row_that_takes_too_long_is_not_repeated_further(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(host_time, "_ROW_SECONDS_MAX", 1e-9)
    assert [row.time.repeats for row in host_time.bench("simulated", 3, calls=1).submit] == [1, 1]


def test_the_link_is_measured_both_ways_and_given_back():
    driver = SimulatedDriver()
    with driver.activate(0):
        stream = driver.stream_create()
        link = measure_link(driver, stream, 1 << 16, 3)
    assert link.bytes == 1 << 16
    assert link.out_gb_per_s == pytest.approx((1 << 16) / link.out_s / 1e9)
    assert link.in_gb_per_s > 0
    assert driver.live_allocations() == 0


def test_the_link_is_measured_both_ways_at_once_and_again():
    driver = SimulatedDriver()
    with driver.activate(0), LinkProbe(driver, 1 << 16) as probe:
        for _ in range(3):
            probe.take()
        link = probe.link()
    assert link.both_gb_per_s == link.gb_per_s("both") == pytest.approx(2 * (1 << 16) / link.both_s / 1e9)
    assert (link.gb_per_s("out"), link.gb_per_s("in")) == (link.out_gb_per_s, link.in_gb_per_s)
    assert (driver.live_allocations(), driver.live_streams()) == (0, 0)
    assert driver.calls["cuMemcpyAsync"] == 2 + 3 * 4


def test_the_link_reports_a_failing_copy():
    driver = SimulatedDriver()
    with driver.activate(0):
        stream = driver.stream_create()
        driver.fail("cuMemcpyAsync")
        with pytest.raises(KVSwapDriverError, match="cuMemcpyAsync failed with CUDA_ERROR_UNKNOWN"):
            measure_link(driver, stream, 1 << 16, 1)
    assert driver.live_allocations() == 0


@pytest.mark.parametrize(("engine", "repeats"), [("abacus", 1), ("simulated", 0)])
def test_nonsense_is_refused(engine, repeats):
    with pytest.raises(ValueError, match="expected"):
        host_time.bench(engine, repeats)
    with pytest.raises(ValueError, match="expected 1 or more"):
        host_time.bench("simulated", 1, calls=0)


def test_the_whole_call_of_each_transport_is_timed_however_it_begins():
    report = host_time.bench("simulated", 1, calls=3)
    found = {(row.way, row.beside, row.begins) for row in report.calls}
    ways = {*(python_name(name) for name in (*FIXED, AUTO)), python_name(AUTO, "in")}
    assert found == {(way, beside, begins) for way in ways for beside in (ALONE, BUSY) for begins in BEGINNINGS}
    assert all(0 < row.p50_us <= row.p99_us and row.calls == 3 for row in report.calls)
    assert "right after a wait" in report.table()


def test_the_same_swap_by_one_launch_is_timed_from_c_and_from_python():
    report = host_time.bench("simulated", 2, calls=1)
    ways = [row.way for row in report.launch]
    from_c = [LAUNCH_C, f"{LAUNCH_C}, timed from Python"] if has_compiler() else []
    assert ways == [*from_c, LAUNCH_SUBMIT, LAUNCH_CALL]
    assert {row.time.repeats for row in report.launch} == {2 * host_time._LAUNCHES_A_REPEAT}
    assert all(way in report.table() for way in ways)
    assert (LAUNCH_C in report.why_missing) != has_compiler()


def test_calls_alone_are_the_calls_and_launches_without_a_driver_call_a_copy(tmp_path, capsys):
    path = tmp_path / "calls.json"
    few = ["--what", "calls", "--repeats", "1", "--calls", "2"]
    assert main(["bench", "--engine", "simulated", *few, "--json", str(path)]) == 0
    found = json.loads(path.read_text())["host_time"]
    names = [*(python_name(name) for name in FIXED if python_name(name) != PYTHON_COPIES), python_name(AUTO)]
    assert {row["way"] for row in found["calls"]} == {*names, python_name(AUTO, "in")}
    assert {(row["beside"], row["begins"]) for row in found["calls"]} == set(product((ALONE, BUSY), BEGINNINGS))
    assert {LAUNCH_SUBMIT, LAUNCH_CALL} <= {row["way"] for row in found["launch"]}
    assert not found["plan"] and not found["submit"] and found["link"] is None
    assert not set(found["why_missing"]) & {C_LOOP, BINDINGS_LOOP}, "they were not asked for"
    assert bool(found["machine"]["c_compiler"]) == has_compiler()
    table = capsys.readouterr().out
    assert "whole call" in table and "the swap by one launch" in table
    assert not any(line.startswith(("plan", "submit", "way", "link")) for line in table.splitlines())
    assert "\n\n\n" not in table, "what is empty prints nothing"
    report = BenchReport.from_json(path.read_text())
    assert (report.host_time, report.matrix) == (found, None)
    with pytest.raises(ValueError, match="neither a matrix nor work beside"):
        plot(report, tmp_path)


def test_calls_alone_end_when_their_time_is_used_up(monkeypatch):
    monkeypatch.setattr(host_time, "_ONLY_CALLS_SECONDS_MAX", 1e-9)
    assert {row.calls for row in host_time.bench("simulated", 1, calls=3, only_calls=True).calls} == {1}
    assert {row.calls for row in host_time.bench("simulated", 1, calls=3).calls} == {3}


@pytest.mark.parametrize("what", ["host-time", "calls", "all"])
def test_that_simulated_times_mean_nothing_is_said_once(monkeypatch, capsys, what):
    monkeypatch.setattr(matrix, "_CELL_SECONDS_MIN", 0.0)
    few = ["--what", what, "--minutes", "0.0001", "--repeats", "1", "--calls", "1"]
    assert main(["bench", "--engine", "simulated", *few]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert len(notes) == 1 and "times on the simulated device" in notes[0]


def test_without_kernels_nothing_is_launched_and_the_transport_says_why(monkeypatch):
    monkeypatch.setattr("numba_kvswap.transports.kernel.why_not", lambda pair: "no kernels here")
    report = host_time.bench("simulated", 1, calls=1)
    assert not report.launch
    assert report.why_missing["kernel"] == "no kernels here"


@pytest.fixture
def log(monkeypatch):
    """Every entry point's calls, in order: the verb and its arguments, of a launch the parameters' values."""
    seen = []

    def logged(verb):
        enqueue = getattr(SimulatedDriver, verb)

        def put(self, *words):
            values = (ctypes.cast(words[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))) if verb == LAUNCH else ()
            seen.append((verb, *words[:9], *(values[i][0] for i in range(11 if values else 0))))
            return enqueue(self, *words)

        monkeypatch.setattr(SimulatedDriver, verb, put)

    for verb in ("_enqueue_copy", "_enqueue_record", LAUNCH):
        logged(verb)
    return seen


LAUNCH = "_enqueue_launch"


@needs_compiler
@pytest.mark.parametrize("geometry", [SMALL, MORE])
def test_c_and_the_compiled_loop_make_the_same_driver_calls_with_the_same_arguments(log, geometry):
    driver = SimulatedDriver()
    with driver.activate(0), ScatteredSwap(driver, geometry) as swap:
        prepared = PreparedLaunch(swap.swapper.pair, Plan(swap.device_ids, swap.host_ids), "out")
        log.clear()
        for way in (LaunchCWay(swap, prepared), LaunchSubmitWay(swap, prepared)):
            way.run()
    copies = ["_enqueue_copy"] if geometry == MORE else []
    verbs = ["_enqueue_record", *copies, LAUNCH, "_enqueue_record"]
    assert [call[0] for call in log[: len(verbs)]] == verbs
    assert log[: len(verbs)] == log[len(verbs) :]


PLACES = st.builds(
    Place,
    direction=st.sampled_from(["out", "in"]),
    block_bytes=st.integers(1, 200),
    layers=st.integers(1, 4),
    blocks=st.integers(1, 24),
    run=st.sampled_from(["1", "2", "8", "all", "host"]),
    host_layout=st.sampled_from(["layer_major", "block_major"]),
)


@needs_compiler
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PLACES)
def test_the_floor_makes_the_calls_of_the_kernel_transport_and_moves_the_same_bytes(log, place):
    driver, launch = SimulatedDriver(), launch_swap()
    with driver.activate(0), Arena(driver, max(place.device_bytes_max, place.host_bytes)) as arena:
        placed, streams = PlacedSwap(arena, place), [driver.stream_create()]
        calls = []
        for way in (SwapWay("kernel", placed, streams), LaunchWay(launch, placed, streams)):
            for swap in (lambda way=way: way.put()(), way.run):
                placed.restore()
                log.clear()
                swap()
                assert not placed.fault()
                calls.append(log.copy())
    verbs, values = zip(*(([call[0] for call in made], launched(made)) for made in calls), strict=True)
    assert verbs[0] == verbs[1] == verbs[2] == verbs[3]
    assert values[0] == values[1] == values[2] == values[3]


@lru_cache(maxsize=1)
def launch_swap():
    return LaunchSwap()


def launched(calls) -> tuple:
    """Of the one launch: function, sizes, shared bytes and stream, then the parameters; of a table only whether it is
    one, and of a copy its bytes."""
    (launch,) = (call[1:] for call in calls if call[0] == LAUNCH)
    copies = [call[3] for call in calls if call[0] == "_enqueue_copy"]
    head, values = launch[:9], launch[9:]
    return head, values[:4], values[4] > 0, values[5] > 0, values[6:], copies


@needs_compiler
def test_a_floor_whose_launch_fails_says_so_and_leaves_nothing_running():
    driver, place = SimulatedDriver(), Place("out", 64, 2, 16, "1", "layer_major")
    with driver.activate(0), Arena(driver, max(place.device_bytes_max, place.host_bytes)) as arena:
        stream = driver.stream_create()
        way = LaunchWay(launch_swap(), PlacedSwap(arena, place), [stream])
        way.run()
        driver.fail("cuLaunchKernel")
        waits = driver.calls["cuStreamSynchronize"]
        with pytest.raises(KVSwapDriverError, match="a call of the launch failed with CUDA_ERROR"):
            way.run()
        assert driver.calls["cuStreamSynchronize"] == waits + 1, "its table may be on its way"


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("table_host, table_bytes, stream)", "table_host, table_bytes - 8, stream)", "ILLEGAL_ADDRESS"),
        ("status = call(function,", "if (0) status = call(function,", "wrong bytes"),
        ("status = record(end, stream);", "status = record(NULL, stream);", "CUDA_ERROR"),
    ],
)
def test_a_wrong_launch_from_c_gets_no_figures(monkeypatch, tmp_path, right, wrong, why):
    monkeypatch.setattr(host_time, "SIMULATED_GEOMETRY", MORE)
    planted(monkeypatch, tmp_path, right, wrong)
    report = host_time.bench("simulated", 1, calls=1)
    assert {row.way for row in report.launch} == {LAUNCH_SUBMIT, LAUNCH_CALL}
    assert why in report.why_missing[LAUNCH_C]
    assert {report.over_c_us(row) for row in report.launch} == {None}


def made_up(calls=(), launch=()) -> HostTimeReport:
    launches = [SubmitRow(way, ALONE, spread_of([us]), None) for way, us in launch]
    return HostTimeReport("cuda", 1, {}, {}, SMALL, [], [], launches, calls)


@pytest.mark.parametrize(("busy_us", "word"), [(150.0, "ok"), (151.0, "MISS")])
def test_the_hundredth_worst_call_beside_a_busy_thread_is_held_to_the_median_alone(busy_us, word):
    rows = [
        CallRow(python_name(way, direction), beside, begins, p50, p99, 9)
        for way, direction in ((AUTO, "out"), (AUTO, "in"), ("ring", "out"))
        for begins, factor in ((ANYWHERE, 1), (AFTER_A_WAIT, 2), (AFTER_A_SLEEP, 3))
        for beside, p50, p99 in ((ALONE, 50.0 * factor, 900.0), (BUSY, 70.0, busy_us * factor))
    ]
    report = made_up(calls=rows)
    assert [bar.found for bar in report.bars()] == pytest.approx([busy_us / 50.0] * 6)
    table = report.table()
    lines = [line for line in table[table.index("must show") :].splitlines() if "busy thread" in line]
    assert [line.split()[-1] for line in lines] == [word] * 6


@pytest.mark.parametrize(("over", "word"), [(10.0, "ok"), (10.5, "MISS")])
def test_launches_from_python_are_held_to_the_same_from_c(over, word):
    others = [(f"{LAUNCH_C}, timed from Python", 99.0), (LAUNCH_SUBMIT, 7 + over), (LAUNCH_CALL, 99.0)]
    report = made_up(launch=[(LAUNCH_C, 7.0), *others])
    assert [(bar.found, bar.met) for bar in report.bars()] == [(over, word == "ok")]
    assert json.loads(report.to_json())["bars"][0]["met"] == (word == "ok")
    assert report.table().splitlines()[-1].split()[-1] == word


def test_a_swap_in_is_told_from_one_that_goes_wrong():
    driver = SimulatedDriver()
    with driver.activate(0), ScatteredSwap(driver, SMALL) as swap:
        swap.prepare_content()
        for direction in ("out", "in"):
            swap.reset(direction)
            assert "wrong bytes: layer 0" in swap.fault(direction), "nothing has moved yet"
            PythonWay(swap, "kernel", direction).run()
            assert not swap.fault(direction)
        spoilt = np.zeros(1, np.uint8)
        layer = swap.device.layers[-1]
        driver.copy_now(layer.address + layer.block_bytes * layer.blocks - 1, spoilt.ctypes.data, 1)
        assert "layer 3, device block 23" in swap.fault("in")


class PretendedGPU(SimulatedDriver):
    name = "cuda"


@pytest.fixture
def pretended_gpu(monkeypatch):
    """Its costs are known: it has no time to be measured."""
    monkeypatch.setattr(choice, "costs_of", lambda driver, device: h200_costs())
    driver = PretendedGPU()
    monkeypatch.setattr(host_time, "cuda_driver", lambda: driver)
    return driver


@needs_compiler
def test_on_cuda_there_are_the_bindings_the_landed_times_and_the_link(monkeypatch, pretended_gpu):
    """The GPU's part of the report, with the bindings' own types and a simulated device behind their one call."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    driver = pretended_gpu
    memcpy = _MEMCPY(driver.entry_points.memcpy_async)

    def memcpy_async(target, source, size_bytes, stream):
        return (bindings.CUresult(memcpy(int(target), int(source), size_bytes, int(stream))),)

    monkeypatch.setattr(bindings, "cuMemcpyAsync", memcpy_async)
    report = host_time.bench("cuda", 1, calls=1)
    assert {(BINDINGS_LOOP, ALONE), (BINDINGS_LOOP, BUSY)} <= rows_of(report)
    assert not report.why_missing
    assert None not in report.ratios.values()
    found = json.loads(report.to_json())
    assert all(row["landed_gb_per_s"] > 0 for row in found["submit"])
    assert found["link"]["out_gb_per_s"] > 0
    assert "GB/s in" in report.table()
    driver.tools.clear()  # what the transports keep of a device
    gc.collect()
    assert driver.live_allocations() == 0


def test_a_failing_copy_of_the_bindings_is_found_out(monkeypatch, pretended_gpu):
    bindings = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(bindings, "cuMemcpyAsync", lambda *_: (bindings.CUresult.CUDA_ERROR_INVALID_VALUE,))
    monkeypatch.setenv("PATH", "")
    assert (
        "cuMemcpyAsync failed with CUDA_ERROR_INVALID_VALUE"
        in host_time.bench("cuda", 1, calls=1).why_missing[BINDINGS_LOOP]
    )


@pytest.mark.cuda
def test_on_a_gpu_every_way_moves_the_right_bytes():
    from numba_kvswap.driver import why_no_cuda

    if why_no_cuda():
        pytest.skip(why_no_cuda())
    report = host_time.bench("cuda", 1, calls=1)
    assert set(report.why_missing) <= ({C_LOOP} if not has_compiler() else set())
    assert report.link is not None
