"""Pictures of what ``bench`` found: ``python -m numba_kvswap plot FILE.json``.

Each is an SVG on a transparent ground, its words mid-grey, so that it reads on white and on black.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.bench.beside_report import BesideReport
from numba_kvswap.bench.cells import Cell
from numba_kvswap.bench.launch_ways import LAUNCH_C
from numba_kvswap.bench.matrix_report import MatrixReport
from numba_kvswap.bench.named_ways import AUTO
from numba_kvswap.bench.places import Run
from numba_kvswap.bench.rows import Row
from numba_kvswap.bench.ways import C_LOOP

_GREY = "#808080"
# Six of Okabe and Ito's colours, which the colour-blind tell apart, and three more; all show on white and on black.
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933", "#6a51a3")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY),
}
#: The runs that the picture of bandwidths shows of each layout: scattered, and as an allocator of host runs gives them.
_SHOWN_RUN = {"layer_major": "1", "block_major": "host"}
# Of what the largest cell moves: what moves less is bound by latency, whatever its blocks.
_MUCH = 1 / 8
_LAYOUTS = {"layer_major": "layer-major host", "block_major": "block-major host"}
_DIRECTIONS = {"out": "swap out", "in": "swap in"}


def plot(report: BenchReport, folder: Path) -> list[Path]:
    """Write what can be drawn of the report into `folder`, made where it is missing; the paths written.

    Raises ImportError where there is no matplotlib, ValueError where the report holds nothing to draw.
    """
    pictures = dict(_pictures(report))
    if not pictures:
        raise ValueError(
            "the report holds neither a matrix nor work beside; expected what bench --what matrix or --beside wrote"
        )
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(f"plot draws with matplotlib ({error}); pip install 'numba-kvswap[plot]'") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in pictures.items():
        with matplotlib.rc_context(_STYLE):
            figure = draw()
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], transparent=True, bbox_inches="tight")
    return paths


def _pictures(report: BenchReport) -> Iterator[tuple[str, Callable[[], Any]]]:
    matrix, beside = report.matrix, report.beside
    if matrix is not None and matrix.rows:
        yield "bandwidth", lambda: bandwidth(matrix)
        if any(row.way == AUTO for row in matrix.rows):
            yield "choice", lambda: choice_map(matrix)
    if beside is not None and beside.rows:
        yield f"beside-{beside.work}", lambda: slowdown(beside)


# ---- GB/s against block size ----


def bandwidth(matrix: MatrixReport) -> Any:
    """The figure: a row of panels a layout, a column a direction, a line a way, the link across."""
    figure, panels = _panels(2, 2, "block bytes in one layer", "GB/s")
    ways = _ways([row.way for row in matrix.rows])
    for axes, (layout, direction) in panels:
        for way in ways:
            points = _points(matrix, way, layout, direction)
            _line(axes, points, way, ways)
        link = matrix.link.gb_per_s(direction)
        axes.axhline(
            link, color=_GREY, linestyle="--", linewidth=1, label=f"the link: one {_size(matrix.link.bytes)} copy"
        )
        run = "scattered blocks" if _SHOWN_RUN[layout] == "1" else "scattered blocks to contiguous host slots"
        axes.set_title(f"{_DIRECTIONS[direction]}, {_LAYOUTS[layout]}\n{run}", fontsize=10)
        _size_axis(axes, sorted({matrix.cells[row.cell].block_bytes for row in matrix.rows}))
        axes.set_ylim(bottom=0)
    _legend(figure, panels)
    return figure


def _points(matrix: MatrixReport, way: str, layout: str, direction: str) -> list[tuple[int, float, float, float]]:
    """Block bytes, GB/s, and those of the quartiles; of each block size the cell that moves most, if it moves much."""
    chosen: dict[int, tuple[Cell, Row]] = {}
    much = max(cell.bytes_a_way for cell in matrix.cells) * _MUCH
    for row in matrix.rows:
        cell = matrix.cells[row.cell]
        shown = (way, layout, direction, _SHOWN_RUN[layout])
        if (row.way, cell.host_layout, cell.direction, cell.run) == shown and cell.bytes >= much:
            known = chosen.get(cell.block_bytes)
            if known is None or (cell.bytes, cell.layers) > (known[0].bytes, known[0].layers):
                chosen[cell.block_bytes] = cell, row
    return [
        (size, row.gb_per_s, cell.bytes / row.device.q3_us / 1e3, cell.bytes / row.device.q1_us / 1e3)
        for size, (cell, row) in sorted(chosen.items())
    ]


def _line(axes: Any, points: Sequence[tuple[int, float, float, float]], way: str, ways: Sequence[str]) -> None:
    if points:
        sizes, rates, low, high = zip(*points, strict=True)
        colour, mark = _look(way, ways)
        if way == AUTO:  # a ring around whatever it chose
            axes.plot(sizes, rates, color=_GREY, marker="o", markersize=10, linewidth=0, fillstyle="none", label=way)
            return
        axes.plot(sizes, rates, color=colour, marker=mark, markersize=5, linewidth=1.5, label=way)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)


# ---- what the choice takes ----


def choice_map(matrix: MatrixReport) -> Any:
    """The figure: a column a block size, a row a run length and number of blocks, coloured by what was chosen.

    A square stands for cells of any number of layers; where they were given different transports it shows the most
    frequent, and a dot. What was not measured is left open.
    """
    figure, panels = _panels(2, 2, "block bytes in one layer", "run length, blocks")
    rows = [row for row in matrix.rows if row.way == AUTO and matrix.cells[row.cell].direction in _DIRECTIONS]
    names = _ways([row.way for row in matrix.rows])  # for the colours of the other pictures
    names += [row.chosen for row in rows if row.chosen not in names]
    sizes = sorted({matrix.cells[row.cell].block_bytes for row in rows})
    lines = _choice_lines([matrix.cells[row.cell] for row in rows])
    for axes, (layout, direction) in panels:
        for (size, line), found in _choices(matrix, rows, layout, direction).items():
            _square(axes, sizes.index(size), lines.index(line), found, names)
        axes.set_title(f"{_DIRECTIONS[direction]}, {_LAYOUTS[layout]}", fontsize=10)
        axes.set_xticks(range(len(sizes)), [_size(size) for size in sizes], rotation=45)
        axes.set_yticks(range(len(lines)), [f"{_run(run)}, {blocks}" for run, blocks in lines])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set_ylim(-0.5, len(lines) - 0.5)
    figure.set_figheight(2 + 0.5 * len(lines))
    _legend(figure, panels, [_patch(name, names) for name in dict.fromkeys(row.chosen for row in rows)])
    return figure


Line = tuple[str, str]

# "All blocks" are another number for every geometry, hence ranges.
_BLOCKS = {1: "1 block", 16: "2 to 16 blocks", 256: "17 to 256 blocks", 1 << 62: "more blocks"}


def _line_of(cell: Cell) -> Line:
    return cell.run, next(words for most, words in _BLOCKS.items() if cell.blocks <= most)


def _choice_lines(cells: Sequence[Cell]) -> list[Line]:
    runs, blocks = get_args(Run), list(_BLOCKS.values())
    return sorted({_line_of(cell) for cell in cells}, key=lambda line: (runs.index(line[0]), blocks.index(line[1])))


def _run(run: str) -> str:
    return {"all": "one run", "host": "host runs"}.get(run, f"runs of {run}")


def _choices(
    matrix: MatrixReport, rows: Sequence[Row], layout: str, direction: str
) -> Mapping[tuple[int, Line], Counter[str]]:
    found: dict[tuple[int, Line], Counter[str]] = {}
    for row in rows:
        cell = matrix.cells[row.cell]
        if (cell.host_layout, cell.direction) == (layout, direction):
            found.setdefault((cell.block_bytes, _line_of(cell)), Counter())[row.chosen] += 1
    return found


def _square(axes: Any, x: int, y: int, found: Counter[str], names: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    name = found.most_common(1)[0][0]
    axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, color=_look(name, names)[0], linewidth=0))
    if len(found) > 1:
        axes.plot([x], [y], marker="o", markersize=3, color="white")


def _patch(name: str, names: Sequence[str]) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=_look(name, names)[0], label=name)


# ---- bandwidth against slowdown ----


def slowdown(beside: BesideReport) -> Any:
    """The figure: GB/s of the swap beside the work against what the work is slowed down to; a panel a direction."""
    figure, panels = _panels(1, 2, f"time of {beside.unit}, 1 = alone", "GB/s of the swap beside it")
    ways = _ways([row.way for row in beside.rows])
    kinds = list(dict.fromkeys((cell.host_layout, cell.run) for cell in beside.cells))
    for axes, (_layout, direction) in panels:
        for row in beside.rows:
            cell = beside.cells[row.cell]
            if cell.direction == direction:
                mark = _MARKS[kinds.index((cell.host_layout, cell.run))]
                axes.plot([row.slowdown], [row.beside_gb_per_s], mark, color=_look(row.way, ways)[0], markersize=7)
        axes.axhline(beside.link.gb_per_s(direction), color=_GREY, linestyle="--", linewidth=1)
        axes.axvline(1, color=_GREY, linestyle=":", linewidth=1)
        axes.set_title(_DIRECTIONS[direction], fontsize=10)
        axes.set_ylim(bottom=0)
    _legend(figure, panels, [*(_patch(way, ways) for way in ways), *_kind_marks(kinds)])
    return figure


def _kind_marks(kinds: Sequence[tuple[str, str]]) -> Iterator[Any]:
    from matplotlib.lines import Line2D

    for (layout, run), mark in zip(kinds, _MARKS, strict=False):
        words = "scattered" if run == "1" else "contiguous host slots"
        yield Line2D([], [], color=_GREY, marker=mark, linestyle="", label=f"{_LAYOUTS[layout]}, {words}")
    yield Line2D([], [], color=_GREY, linestyle="--", linewidth=1, label="the link, idle")


# ---- what they share ----


def _panels(rows: int, columns: int, x_label: str, y_label: str) -> tuple[Any, list[tuple[Any, tuple[str, Any]]]]:
    """A figure, and each panel with its layout and direction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1 + 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid[-1]:
        axes.set_xlabel(x_label)
    for line in grid:
        line[0].set_ylabel(y_label)
    keys = [(layout, direction) for layout in list(_LAYOUTS)[:rows] for direction in _DIRECTIONS]
    for axes in grid.flat:
        axes.grid(color=_GREY, alpha=0.25, linewidth=0.5)
    return figure, list(zip(grid.flat, keys, strict=True))


def _legend(figure: Any, panels: Sequence[tuple[Any, Any]], handles: Sequence[Any] = ()) -> None:
    """One for all panels, below them; a label that several have stands once."""
    if not handles:
        labelled = [pair for axes, _key in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
        handles = list({label: handle for handle, label in labelled}.values())
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=9)


def _size_axis(axes: Any, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [_size(size) for size in sizes], rotation=45)
    axes.minorticks_off()


def _ways(names: Sequence[str]) -> list[str]:
    """Each once: the C loop, then in order of appearance. A launch from C is a floor for the host's time alone."""
    return sorted(dict.fromkeys(name for name in names if name != LAUNCH_C), key=lambda name: name != C_LOOP)


def _look(way: str, ways: Sequence[str]) -> tuple[str, str]:
    if way == C_LOOP:
        return _GREY, "x"
    index = [name for name in ways if name != C_LOOP].index(way)
    return _COLOURS[index % len(_COLOURS)], _MARKS[index % len(_MARKS)]


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"
