"""Pictures: that what there is to draw is drawn, readable, and nothing else. Figures here are made up or simulated."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest

from numba_kvswap.__main__ import main
from numba_kvswap.bench import plot as pictures
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside import beside_cells
from numba_kvswap.bench.beside_report import BesideReport, BesideRow
from numba_kvswap.bench.cell_ways import Taken
from numba_kvswap.bench.cells import CUDA_AXES, select
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.matrix_report import MatrixReport
from numba_kvswap.bench.named_ways import AUTO, CHOICES, FIXED
from numba_kvswap.bench.rows import Measured, rows_of
from numba_kvswap.bench.ways import C_LOOP
from numba_kvswap.link import Link

LINK = Link(1 << 30, 0.02, 0.02, 0.03)


def made_up_matrix(ways=(C_LOOP, "copies", "ring", AUTO)) -> MatrixReport:
    cells = select(CUDA_AXES).cells[:80]
    measured = [
        Measured(
            index, way, ("ring", "copies")[index % 2] if way == AUTO else "", None, [Taken(1, 9, cell.bytes / 5e4)]
        )
        for index, cell in enumerate(cells)
        for way in ways
    ]
    return MatrixReport(1.0, 1.0, 1, LINK, cells, rows_of(measured, cells, LINK), [], [], {}, 0, "")


def made_up_beside(work="gemm") -> BesideReport:
    cells = list(beside_cells(CUDA_AXES))
    rows = [
        BesideRow(index, way, "", 1.0, 1.0 + index / 10, 1.0 + index / 10, 50.0, 40.0 + index, 0.8, 0.7)
        for index in range(len(cells))
        for way in (C_LOOP, "copies", "ring")
    ]
    return BesideReport(work, "a matmul", 1.0, LINK, cells, rows, [], [])


@pytest.fixture
def words(tmp_path):
    """``words(report)``: the texts of every picture drawn, by the file's name."""
    pytest.importorskip("matplotlib")

    def drawn(report):
        return {path.name: path.read_text() for path in pictures.plot(report, tmp_path / "new" / "folder")}

    return drawn


def test_a_matrix_is_drawn_by_bandwidth_and_by_choice(words):
    found = words(BenchReport("cuda", {}, {}, matrix=made_up_matrix()))
    assert set(found) == {"bandwidth.svg", "choice.svg"}
    for word in (
        "GB/s",
        "block bytes in one layer",
        "32 KiB",
        "swap out, layer-major host",
        "the link",
        "ring",
        "c loop",
    ):
        assert word in found["bandwidth.svg"]
    for word in ("runs of 8, 17 to 256 blocks", "host runs", "swap in, block-major host", "72 KiB", "copies"):
        assert word in found["choice.svg"]
    assert "c loop" not in found["choice.svg"]
    for svg in found.values():
        assert "#808080" in svg
        assert "#000000" not in svg.replace(";stroke:#000000", ""), "black words are not seen on black"
    assert "fill: #ffffff" not in found["bandwidth.svg"], "a white ground is not transparent"


def test_without_a_choice_there_is_no_map_of_it(words):
    assert set(words(BenchReport("cuda", {}, {}, matrix=made_up_matrix((C_LOOP, "copies"))))) == {"bandwidth.svg"}


def test_work_beside_is_drawn_by_slowdown(words):
    found = words(BenchReport("cuda", {}, {}, beside=made_up_beside()))
    assert set(found) == {"beside-gemm.svg"}
    for word in ("a matmul, 1 = alone", "GB/s of the swap beside it", "contiguous host slots", "ring", "swap in"):
        assert word in found["beside-gemm.svg"]


def test_lines_show_the_largest_cell_of_each_size_and_none_that_move_little():
    matrix = made_up_matrix()
    points = pictures._points(matrix, "ring", "layer_major", "out")
    assert [size for size, *_rest in points] == sorted({size for size, *_rest in points})
    assert set(CUDA_AXES.shown_bytes) <= {size for size, *_rest in points}
    assert all(rate == pytest.approx(50) for _size, rate, *_rest in points)
    latency = next(cell for cell in matrix.cells if cell.must_show == "latency of 1 block")
    alone = replace(matrix, cells=[latency, *matrix.cells[:1]], rows=[replace(matrix.rows[2], cell=0)])
    assert pictures._points(alone, "ring", "layer_major", latency.direction) == []


def test_a_floor_from_c_is_in_no_picture_and_changes_no_colour(words):
    ways = (C_LOOP, "copies", "ring", AUTO)
    assert pictures._ways([C_LOOP, LAUNCH_C, *ways[1:]]) == list(ways)
    found = words(BenchReport("cuda", {}, {}, matrix=made_up_matrix((C_LOOP, LAUNCH_C, *ways[1:]))))
    assert set(found) == {"bandwidth.svg", "choice.svg"}
    assert not any(LAUNCH_C in svg for svg in found.values())


def test_every_way_has_a_look_of_its_own():
    ways = (C_LOOP, *FIXED, *CHOICES)
    colours, marks = zip(*(pictures._look(way, ways) for way in ways), strict=True)
    assert len(set(colours)) == len(set(marks)) == len(ways)


def test_a_square_of_the_map_counts_cells_that_differ_in_layers():
    matrix = made_up_matrix()
    cells = [replace(matrix.cells[0], layers=layers) for layers in (1, 2, 4)]
    rows = [replace(matrix.rows[3], cell=index, chosen=name) for index, name in enumerate(("ring", "ring", "copies"))]
    found = pictures._choices(replace(matrix, cells=cells), rows, cells[0].host_layout, cells[0].direction)
    assert list(found.values()) == [Counter({"ring": 2, "copies": 1})]


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="neither a matrix nor work beside"):
        pictures.plot(BenchReport("cuda", {}, {}), None)


def test_without_matplotlib_it_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = tmp_path / "figures.json"
    file.write_text(BenchReport("cuda", {}, {}, matrix=made_up_matrix()).to_json())
    assert main(["plot", str(file), "--out", str(tmp_path)]) == 2
    assert "pip install 'numba-kvswap[plot]'" in capsys.readouterr().err


def test_the_command_draws_what_bench_wrote_on_the_simulated_device(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("numba_kvswap.bench.matrix._CELL_SECONDS_MIN", 0.0)
    file, engine = tmp_path / "figures.json", ["--engine", "simulated", "--repeats", "1"]
    assert main(["bench", *engine, "--what", "matrix", "--minutes", "0.02", "--json", str(file)]) == 0
    assert "must show" in capsys.readouterr().out
    assert BenchReport.from_json(file.read_text()).matrix.seconds_asked == pytest.approx(1.2)
    assert main(["plot", str(file), "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "bandwidth.svg") in capsys.readouterr().out.splitlines()
    assert (tmp_path / "bandwidth.svg").stat().st_size > 1000
