"""The matrix on the simulated device: what it measures, leaves out and finds out; its ratios and its file."""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, replace
from itertools import count, pairwise
from typing import ClassVar

import pytest

from numba_kvswap.bench import c_loop, cell_ways, matrix, named_ways, works
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside import measure_beside
from numba_kvswap.bench.cell_ways import Taken
from numba_kvswap.bench.cells import SIMULATED_AXES, Cell, select
from numba_kvswap.bench.choice_report import choice_lines, lags
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.matrix import measure_matrix
from numba_kvswap.bench.matrix_report import MatrixReport
from numba_kvswap.bench.must_show import JUDGED, floor_in, must_show_lines
from numba_kvswap.bench.named_ways import AUTO, AUTO_COMPUTE, FIXED
from numba_kvswap.bench.rows import Measured, Row, rows_of
from numba_kvswap.bench.spread import spread_of
from numba_kvswap.bench.ways import C_LOOP
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver, cuda_driver, why_no_cuda
from numba_kvswap.link import Link, LinkProbe
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper
from numba_kvswap.transports import kernel

#: Few cells, and all of what must be shown.
AXES = replace(SIMULATED_AXES, block_bytes=(16, 64), shown_bytes=(64,), typical_bytes=64, full_bytes=1024)


def has_compiler() -> bool:
    try:
        c_loop.CLoop()
    except c_loop.NoCompiler:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler here")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(matrix, "_CELL_SECONDS_MIN", 0.0)
    monkeypatch.setattr(matrix, "_LINK_EVERY_S", float("inf"))


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")


def measured(cells: int, axes=AXES, repeats=1, driver=None, keep=lambda report: None) -> MatrixReport:
    """Of the first so many cells: the clock is asked once before each cell and passes the deadline then."""
    driver = driver or SimulatedDriver()
    steps = count()
    with driver.activate(0):
        # Asked at the start, after the link, and once a cell.
        report = measure_matrix(driver, axes, cells + 1.5, repeats, clock=lambda: next(steps), keep=keep)
    driver.tools.clear()  # what the transports keep of a device, but for its streams: of two rings, and two others
    gc.collect()
    assert driver.live_allocations() == 0 and driver.live_streams() <= 2 * 3 + 2
    return report


def ways_in(report: MatrixReport) -> set[str]:
    return {row.way for row in report.rows}


def test_cells_come_in_order_until_the_time_is_used_up(no_compiler):
    selection = select(AXES)
    report = measured(12)
    assert list(report.cells) == list(selection.cells[:12])
    assert report.not_reached == len(selection.cells) - 12
    assert report.left_out == selection.left_out
    assert f"12 cells in {report.seconds:.0f} s; {report.not_reached} not reached in time" in report.table()
    assert all(f"{number:,} left out: {rule}" in report.table() for rule, number in report.left_out.items())


def test_the_link_is_measured_again_now_and_then(monkeypatch, no_compiler):
    once, often = SimulatedDriver(), SimulatedDriver()
    takes = []
    monkeypatch.setattr(LinkProbe, "take", lambda probe, take=LinkProbe.take: (takes.append(probe), take(probe)))
    measured(6, driver=once)
    assert len(takes) == matrix._LINK_TAKES_AT_FIRST
    monkeypatch.setattr(matrix, "_LINK_EVERY_S", 4)
    takes.clear()
    measured(6, driver=often)
    assert len(takes) > matrix._LINK_TAKES_AT_FIRST


def test_no_time_measures_no_cell(no_compiler):
    report = measured(0)
    assert not report.cells and not report.rows
    assert report.link.both_gb_per_s > 0
    report.table()


def test_every_way_has_a_row_in_every_cell():
    report = measured(10, repeats=3)
    assert ways_in(report) >= set(FIXED) - {one.way for one in report.missing}
    for way in ways_in(report) - {LAUNCH_C}:  # in a few cells, see below
        rows = [row for row in report.rows if row.way == way]
        left_out = sum(one.cells for one in report.missing if one.way == way)
        assert len({row.cell for row in rows}) == len(rows) == 10 - left_out
        for row in rows:
            for spread in (row.host, row.landed, row.device):
                assert spread.repeats == 3
                assert spread.min_us <= spread.q1_us <= spread.median_us <= spread.q3_us <= spread.max_us
    assert not report.faults
    if not any(one.way == C_LOOP for one in report.missing):
        assert C_LOOP in ways_in(report)


def test_without_a_compiler_the_loop_is_missing_once_and_says_so(no_compiler):
    report = measured(2)
    assert [(one.way, one.cells) for one in report.missing] == [(C_LOOP, 1), (LAUNCH_C, 1)]
    missing = report.missing[0]
    assert "no C compiler on PATH" in missing.why and missing.why in report.table()
    assert {row.to_c_loop for row in report.rows} == {None}


#: So many that all that must be shown are among them.
SHOWN = sum(1 for cell in select(AXES).cells if cell.must_show)


@needs_compiler
def test_the_floor_from_c_is_measured_where_host_time_is_shown_and_nowhere_else():
    report = measured(SHOWN + 4, repeats=2)
    with_floor = {row.cell for row in report.rows if row.way == LAUNCH_C}
    shows = ("latency of 1 block", "host time")
    assert with_floor == {index for index, cell in enumerate(report.cells) if cell.must_show in shows}
    assert len(with_floor) == 8 and not report.faults
    for row in report.rows:
        if row.way == LAUNCH_C:
            assert 0 < row.host.median_us <= row.landed.median_us and row.device.median_us > 0
            assert (row.chosen, row.expected_us) == ("", None)
    assert BenchReport.from_json(BenchReport("simulated", {}, {}, matrix=report).to_json()).matrix == report


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("status = call(function,", "if (0) status = call(function,", "wrong bytes"),
        (
            "status = record(end, stream);",
            "status = record(NULL, stream);",
            "a call of the launch failed with CUDA_ERR",
        ),
    ],
)
def test_a_wrong_floor_has_a_fault_and_no_figures(monkeypatch, tmp_path, right, wrong, why):
    source = c_loop.SOURCE.read_text()
    assert source.count(right) == 1
    (tmp_path / "submit_loop.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(c_loop, "SOURCE", tmp_path / "submit_loop.c")
    report = measured(SHOWN)
    assert LAUNCH_C not in ways_in(report) and ways_in(report) >= {C_LOOP, AUTO}
    assert {fault.way for fault in report.faults} == {LAUNCH_C} and len(report.faults) == 8
    assert all(why in fault.why for fault in report.faults)
    lines = [line for line in report.table().splitlines() if line.startswith(("latency of 1 block", "host time"))]
    assert len(lines) == 8 and all(line.split().count("-") == 2 for line in lines)


@needs_compiler
def test_without_a_kernel_the_floor_is_missing_once_and_says_why(no_kernel):
    report = measured(SHOWN)
    (missing,) = [one for one in report.missing if one.way == LAUNCH_C]
    assert (missing.why, missing.cells) == ("no kernels here", 8)
    assert f"missing   {LAUNCH_C} in 8 cells: no kernels here" in report.table()
    assert LAUNCH_C not in ways_in(report) and not report.faults


class Forgets(Swapper):
    """Leaves the last pair out."""

    def checked_plan(self, direction, device_ids, host_ids=None, **options):
        plan = super().checked_plan(direction, device_ids, host_ids, **options)
        return Plan(plan.source_ids[:-1], plan.target_ids[:-1])


class Spills(Swapper):
    """Moves a block that nobody named."""

    def checked_plan(self, direction, device_ids, host_ids=None, **options):
        plan = super().checked_plan(direction, device_ids, host_ids, **options)
        return Plan([*plan.source_ids, 0], [*plan.target_ids, 0])


class Tires(Swapper):
    """Is right once, and wrong from then on."""

    def submit(self, direction, plan, stream=None, **options):
        self.swaps = getattr(self, "swaps", 0) + 1
        if self.swaps > 1:
            plan = Plan([*plan.source_ids, 0], [*plan.target_ids, 0])
        return super().submit(direction, plan, stream)


class Fails(Swapper):
    def submit(self, *arguments, **options):
        raise KVSwapDriverError("cuLaunchKernel", "CUDA_ERROR_PLANTED")


class FailsLater(Swapper):
    def submit(self, *arguments, **options):
        self.swaps = getattr(self, "swaps", 0) + 1
        if self.swaps > 1:
            raise KVSwapDriverError("cuLaunchKernel", "CUDA_ERROR_LATER")
        return super().submit(*arguments)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Forgets, "wrong bytes"),
        (Spills, "wrong bytes"),
        (Tires, "after all repeats of all ways: wrong bytes"),
        (Fails, "CUDA_ERROR_PLANTED"),
        (FailsLater, "CUDA_ERROR_LATER"),
    ],
)
def test_a_wrong_transport_has_a_fault_and_no_figures(monkeypatch, no_compiler, wrong, why):
    monkeypatch.setattr(cell_ways, "swapper_by", lambda device, host, way: wrong(device, host))
    report = measured(4)
    assert not report.rows
    assert len(report.faults) >= 4
    for fault in report.faults:
        assert why in fault.why
        assert f"{fault.way} in {report.cells[fault.cell]}: {fault.why}" in report.table()


@needs_compiler
def test_a_wrong_transport_leaves_the_others_their_figures(monkeypatch):
    monkeypatch.setattr(cell_ways, "swapper_by", lambda device, host, way: Spills(device, host))
    report = measured(4)
    assert ways_in(report) == {C_LOOP}
    assert {fault.way for fault in report.faults} >= set(FIXED)


def test_what_the_choice_took_counts_not_what_it_meant_to_take(no_compiler, monkeypatch):
    """The kernel is what it would take, and turns out to have no memory."""
    explained = []
    monkeypatch.setattr(
        Swapper, "explain", lambda *asked, real=Swapper.explain: explained.append(real(*asked)) or explained[-1]
    )
    monkeypatch.setattr(kernel, "make_ready", no_memory)
    report = measured(26, axes=SIMULATED_AXES)
    assert "kernel" in {each.chosen for each in explained}
    taken = {part for row in report.rows if row.way == AUTO for part in row.chosen.split(" + ")}
    assert taken and "kernel" not in taken


def no_memory(pair, direction):
    raise KVSwapDriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")


class Misses(Swapper):
    """Has no kernel, and keeps what it was made with."""

    asked: ClassVar[list] = []

    def __init__(self, device, host, *, transport="auto", favor="swap"):
        super().__init__(device, host, transport=transport, favor=favor)
        self.asked.append((transport, favor))

    def why_not(self, name):
        return "no kernels here" if name == "kernel" else super().why_not(name)


@pytest.fixture
def no_kernel(monkeypatch):
    Misses.asked.clear()
    monkeypatch.setattr(named_ways, "Swapper", Misses)


def test_every_transport_and_the_choice_are_measured_and_what_cannot_be_is_counted(no_kernel, no_compiler):
    report = measured(26, repeats=1, axes=SIMULATED_AXES)
    assert ways_in(report) == {*FIXED, AUTO} - {"kernel"}
    assert {(one.way, one.why, one.cells) for one in report.missing if one.way not in (C_LOOP, LAUNCH_C)} == {
        ("kernel", "no kernels here", 26)
    }
    for row in report.rows:
        assert (row.chosen != "", row.expected_us is not None) == (row.way == AUTO, row.way == AUTO)
        assert row.way != AUTO or (set(row.chosen.split(" + ")) <= set(FIXED) and row.expected_us > 0)
    assert set(Misses.asked) == {(name, "swap") for name in (*FIXED, AUTO) if name != "kernel"}
    table = report.table()
    assert "missing   kernel in 26 cells: no kernels here" in table
    shown = table[table.index("must show") : table.index("choice")]
    assert sum(" auto: " in line for line in shown.splitlines()) == 26
    wins = report._wins()
    assert AUTO not in wins and sum(wins.values()) == 26


def test_beside_work_the_choice_is_measured_for_either_favour(no_kernel, no_compiler):
    driver = SimulatedDriver()
    with driver.activate(0):
        report = measure_beside(driver, AXES, "python", 0.001)
    assert {row.way for row in report.rows} == {*FIXED, AUTO, AUTO_COMPUTE} - {"kernel"}
    assert ("auto", "compute") in Misses.asked
    assert {row.chosen != "" for row in report.rows if row.way in (AUTO, AUTO_COMPUTE)} == {True}
    assert "kernel" not in {row.chosen for row in report.rows if row.way == AUTO_COMPUTE}


def test_what_is_known_is_kept_now_and_then(monkeypatch, no_compiler):
    monkeypatch.setattr(matrix, "_CELLS_A_REPORT", 3)
    kept = []
    report = measured(7, keep=kept.append)
    assert [list(one.cells) for one in kept] == [list(report.cells[:3]), list(report.cells[:6])]
    assert [len({row.cell for row in one.rows}) for one in kept] == [3, 6], "each a report of its own"


def test_a_driver_that_fails_between_swaps_ends_the_run_and_keeps_what_was_measured(no_compiler):
    driver = SimulatedDriver()
    with driver.activate(0):
        measure_matrix(driver, AXES, -1, 1)
        set_up = driver.calls["cuMemcpy"]
    driver = SimulatedDriver()
    driver.fail("cuMemcpy", at=set_up + 30, times=None)
    report = measured(20, driver=driver)
    assert "cuMemcpy failed" in report.ended_by and report.ended_by in report.table()
    assert report.rows and len(report.cells) < 20
    driver = SimulatedDriver()
    driver.fail("cuMemcpy", at=set_up, times=None)
    with driver.activate(0), pytest.raises(KVSwapDriverError, match="cuMemcpy failed"):
        measure_matrix(driver, AXES, 9, 1)


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats is 0; expected 1 or more"):
        measure_matrix(SimulatedDriver(), AXES, 1, 0)


# ---- ratios and verdicts, of made-up times ----

CELL = Cell("out", 1 << 20, 10, 100, "1", "layer_major", "latency of 1 block")
LINK = Link(10**9, out_s=0.02, in_s=0.04, both_s=0.05)


def taken(*times_us: tuple[float, float, float]) -> list[Taken]:
    return [Taken(*times) for times in times_us]


def made_up(cell: Cell = CELL, link: Link = LINK) -> MatrixReport:
    found = [
        Measured(0, C_LOOP, "", None, taken((100, 1000, 40_000), (200, 2000, 50_000), (300, 3000, 90_000))),
        Measured(0, "ring", "", None, taken((10, 4000, 25_000))),
        Measured(0, AUTO, "ring", 20.0, taken((20, 1000, 20_000))),
    ]
    return MatrixReport(1.0, 60.0, 7, link, [cell], rows_of(found, [cell], link), [], [], {"a rule": 3}, 2, "")


def test_each_row_has_its_ratio_to_the_link_of_its_direction_and_to_the_loop():
    loop, ring, auto = made_up().rows
    assert ring.gb_per_s == pytest.approx((1 << 20) * 1000 / 0.025 / 1e9)
    assert ring.to_link == pytest.approx(ring.gb_per_s / 50)
    assert (ring.to_c_loop, ring.landed_to_c_loop, ring.host_to_c_loop) == (2.0, 0.5, 20.0)
    assert (loop.to_c_loop, loop.landed_to_c_loop, loop.host_to_c_loop) == (1.0, 1.0, 1.0)
    assert (loop.device.median_us, loop.device.q1_us, loop.device.q3_us) == (50_000, 45_000, 70_000)
    assert (auto.chosen, auto.expected_us) == ("ring", 20.0)
    for direction, rate, moved in (("in", 25, 1), ("both", 40, 2)):
        row = made_up(replace(CELL, direction=direction)).rows[1]
        assert row.to_link == pytest.approx(moved * (1 << 20) * 1000 / 0.025 / 1e9 / rate)


def row(way: str, to_link: float = 0.5, landed_us: float = 1.0, host_us: float = 1.0, cell: int = 0) -> Row:
    """A row of one take; its device time stands for nothing."""
    chosen = "ring" if way == AUTO else ""
    times = [spread_of([us]) for us in (host_us, landed_us, 1.0)]
    return Row(cell, way, chosen, None, *times, 1.0, to_link, None, None, None)


def a_cell(shows: str, direction: str) -> Cell:
    return Cell(direction, 32 << 10, 64, 1, "1", "layer_major", shows)


@pytest.mark.parametrize("shows", JUDGED)
@pytest.mark.parametrize("way_off", [0.0, 0.011])
def test_the_choice_is_held_to_the_bar_of_what_its_cell_shows(shows, way_off):
    judged = JUDGED[shows]
    for direction, bar in judged.bars.items():
        found = bar - way_off if judged.rises else bar * (1 + way_off)
        figure = {"link": "to_link", "landed us": "landed_us", "host us": "host_us"}[judged.measure]
        best, worse = (0.99, 0.98) if judged.rises else (1.0, 2.0)
        ways = [(AUTO, found), ("ring", worse), ("copies", best), (C_LOOP, 0.999 if judged.rises else 0.5)]
        rows = [row(way, **{figure: value}) for way, value in ways]
        (line,) = must_show_lines([a_cell(shows, direction)], rows)[1:]
        words = line.split()
        assert words[-3:] == ["MISS" if way_off else "ok", "copies", judged.in_words(rows[2])]
        assert judged.in_words(rows[0]) in words and "auto: ring" in line


@pytest.mark.parametrize("shows", JUDGED)
def test_what_the_choice_took_beyond_the_same_from_c_is_told_in_the_measure_of_the_cell(shows):
    judged = JUDGED[shows]
    rows = [
        row(AUTO, landed_us=70.5, host_us=50.25),
        row("copies", landed_us=90.0, host_us=80.0),
        row(LAUNCH_C, to_link=0.999, landed_us=40.0, host_us=20.0),
    ]
    found, over = {"landed us": ("40.0", "30.5"), "host us": ("20.0", "30.2")}.get(judged.measure, ("", ""))
    for direction in judged.bars:
        heading, line = must_show_lines([a_cell(shows, direction)], rows)
        (without,) = must_show_lines([a_cell(shows, direction)], rows[:2])[1:]
        at = [slice(heading.index("found") + 5, heading.index("from C") + 6)]
        at.append(slice(at[0].stop, heading.index("over C") + 6))
        assert [line[part].strip() for part in at] == [found, over]
        assert without.split().count("-") == (2 if found else 0)
        assert line.split()[-2] == "copies", "a floor is no rival"
        assert floor_in(a_cell(shows, direction)) == bool(found)
    assert not floor_in(a_cell("", "out"))


def test_no_way_always_has_its_turn_after_the_same_other():
    turns = []

    class Way:
        def __init__(self, name):
            self.name = name

        def run(self):
            turns.append(self.name)
            return Taken(1.0, 1e5, 1.0)

    taken = matrix._repeated([Way(name) for name in "abcdef"], 9, {})
    assert [len(taken[name]) for name in "abcdef"] == [9] * 6
    for name in "abcdef":
        assert len({before for before, turn in pairwise(turns) if turn == name}) > 2


def test_a_floor_is_the_best_of_no_cell_however_fast_it_is():
    rows = [row(LAUNCH_C, landed_us=1.0), row("ring", landed_us=30.0), row(AUTO, landed_us=40.0)]
    assert replace(made_up(), rows=rows)._wins() == {"ring": 1}
    assert [lag.best for lag in lags(rows)] == ["ring"]


def test_what_must_be_shown_is_what_was_asked_for():
    bars = {(shows, judged.measure): dict(judged.bars) for shows, judged in JUDGED.items()}
    assert bars == {
        ("layer-major runs of 1", "link"): {"out": 0.92, "in": 0.90},
        ("block-major host runs", "link"): {"out": 0.97, "in": 0.97},
        ("block-major scattered", "link"): {"out": 0.93, "in": 0.92},
        ("both ways at once", "link"): {"both": 0.90},
        ("latency of 1 block", "landed us"): {"out": 80, "in": 80},
        ("host time", "host us"): {"out": 60, "in": 60},
    }
    shown = {(cell.must_show, cell.direction) for cell in select(SIMULATED_AXES).cells if cell.must_show}
    assert shown == {(shows, direction) for shows, judged in JUDGED.items() for direction in judged.bars}


def test_a_choice_without_a_row_is_not_judged_and_one_without_rivals_is():
    cell = a_cell("latency of 1 block", "out")
    assert must_show_lines([cell], [row("ring")]) == []
    assert must_show_lines([cell], [row(AUTO)])[1].split()[-3:] == ["ok", "-", "-"]
    assert choice_lines([cell], [row(AUTO)]) == []


@pytest.mark.parametrize(
    ("auto_us", "best_us", "beyond"),
    [(111, 100, True), (110, 100, False), (44, 40, False), (45, 40, True), (44.9, 40, False), (1099, 1000, False)],
)
def test_the_choice_lags_beyond_a_tenth_and_beyond_noise(auto_us, best_us, beyond):
    rows = [row(AUTO, landed_us=auto_us), row("ring", landed_us=2e4), row("copies", landed_us=best_us)]
    (lag,) = lags([*rows, row(C_LOOP, landed_us=1.0)])
    assert (lag.best, lag.chosen, lag.ratio, lag.beyond) == ("copies", "ring", auto_us / best_us, beyond)


def test_the_worst_cells_are_shown_first_and_those_beyond_are_counted():
    times = [(1000, 500), (100, 100), (130, 100), (9, 5)]  # beyond by much, not, by little, by noise
    cells = [a_cell("", "out") for _ in times]
    rows = [
        row(way, landed_us=us, cell=cell)
        for cell, pair in enumerate(times)
        for way, us in zip((AUTO, "copies"), pair, strict=True)
    ]
    assert [lag.cell for lag in lags(rows)] == [0, 2, 3, 1]
    lines = choice_lines(cells, rows)
    assert "in 2 of 4 cells" in lines[0] and "in 1 of these by less than 100 us" in lines[1]
    assert [line.split()[-2:] for line in lines[3:]] == [
        ["2.000", "beyond"],
        ["1.300", "beyond"],
        ["1.800", "within"],
        ["1.000", "within"],
    ]


# ---- the file ----


def test_the_file_comes_back_as_it_was(no_compiler):
    report = BenchReport("simulated", {"cpus": 2}, {"python": "3"}, {"any": [1, None]}, measured(3))
    assert BenchReport.from_json(report.to_json()) == report
    assert BenchReport.from_json(BenchReport("cuda", {}, {}).to_json()) == BenchReport("cuda", {}, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plain: plain["matrix"].pop("link"), "the report.matrix has fields"),
        (lambda plain: plain.update(colour="red"), "colour"),
        (lambda plain: plain["matrix"]["rows"][1].update(cell="two"), r"the report.matrix.rows\[1\].cell is 'two'"),
        (lambda plain: plain["matrix"]["rows"][0]["host"].update(min_us=None), r"host.min_us is None; expected float"),
        (lambda plain: plain["matrix"]["cells"][0].update(run="3"), "expected one of '1', '2', '8', 'all', 'host'"),
        (lambda plain: plain["matrix"].update(rows={}), "the report.matrix.rows is {}; expected a list"),
        (lambda plain: plain["matrix"].update(left_out=[]), "expected an object"),
        (lambda plain: plain.update(matrix=[]), "the report.matrix is \\[\\]; expected an object"),
    ],
)
def test_a_file_that_is_not_one_is_refused_where_it_is_wrong(change, words):
    plain = json.loads(BenchReport("cuda", {}, {}, matrix=made_up()).to_json())
    change(plain)
    with pytest.raises(ValueError, match=words):
        BenchReport.from_json(json.dumps(plain))
    assert asdict(made_up())["rows"], "the fixture itself is sound"


@pytest.mark.cuda
def test_on_a_gpu_every_way_moves_the_right_bytes():
    if why_no_cuda():
        pytest.skip(why_no_cuda())
    driver, steps = cuda_driver(), count()
    with driver.activate(0):
        report = measure_matrix(driver, SIMULATED_AXES, 61.5, 1, clock=lambda: next(steps))
    assert len(report.cells) == 60
    assert not report.faults and not report.ended_by
    assert ways_in(report) >= set(FIXED) - {one.way for one in report.missing}


@pytest.mark.cuda
def test_on_a_gpu_work_beside_is_counted(monkeypatch):
    if why_no_cuda():
        pytest.skip(why_no_cuda())
    monkeypatch.setattr(works, "_HBM_BYTES", 1 << 24)
    with cuda_driver().activate(0):
        report = measure_beside(cuda_driver(), AXES, "hbm", 0.02)
    assert not report.faults
    assert all(row.work_beside_s > 0 for row in report.rows)
