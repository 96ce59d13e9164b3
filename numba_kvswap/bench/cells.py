"""What the matrix measures: its axes, its cells, which are left out, and the order they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from numba_kvswap.bench.places import Direction, Place, Run
from numba_kvswap.caches import Layout

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MustShow = Literal[
    "",
    "layer-major runs of 1",
    "block-major host runs",
    "block-major scattered",
    "both ways at once",
    "latency of 1 block",
    "host time",
]


@dataclass(frozen=True)
class Cell(Place):
    """One place of blocks and one direction. must_show: what it is to show, "" where it only fills the matrix."""

    must_show: MustShow = ""

    def __str__(self) -> str:
        return (
            f"{self.direction:<4} {self.host_layout} run {self.run:<4} {self.blocks} x {self.layers} x "
            f"{self.block_bytes:,} bytes"
        )


@dataclass(frozen=True)
class Axes:
    """The values that cells are made of, and the limits they keep.

    block_bytes: of one block in one layer. typical_bytes: the block of the cells that show one size only.
    shown_bytes, shown_layers: blocks and layers of the cells that must be shown.
    full_bytes: what "all blocks" move each way. moved_bytes_max: the most a cell may move each way.
    host_time_blocks: how many blocks the cell for host time moves.
    link_bytes: of the link's one large copy.
    beside_bytes: what a swap beside other work moves: enough that the wait for a kernel of others to end, up to 1.65
        ms beside a bf16 8192^3 GEMM on an H200, is a small part of it.
    """

    block_bytes: Sequence[int]
    layers: Sequence[int]
    blocks: Sequence[int]
    shown_bytes: Sequence[int]
    shown_layers: int
    typical_bytes: int
    host_time_blocks: int
    full_bytes: int
    moved_bytes_max: int
    arena_bytes: int
    link_bytes: int
    beside_bytes: int
    runs: Sequence[Run] = ("1", "2", "8", "all")
    directions: Sequence[Direction] = ("out", "in", "both")
    host_layouts: Sequence[Layout] = ("layer_major", "block_major")

    def full_blocks(self, block_bytes: int, layers: int) -> int:
        """How many blocks move `full_bytes` or a little more."""
        return -(-self.full_bytes // (block_bytes * layers))


CUDA_AXES = Axes(
    block_bytes=(1 * KIB, 4 * KIB, 16 * KIB, 32 * KIB, 72 * KIB, 256 * KIB, 2 * MIB),
    layers=(1, 2, 32, 64, 160),
    blocks=(1, 16, 256),
    shown_bytes=(4 * KIB, 16 * KIB, 32 * KIB, 72 * KIB, 256 * KIB),
    shown_layers=64,
    typical_bytes=32 * KIB,
    host_time_blocks=256,
    full_bytes=256 * MIB,
    moved_bytes_max=1 * GIB,
    arena_bytes=GIB * 9 // 4,
    link_bytes=1 * GIB,
    beside_bytes=1 * GIB,
)
#: So small that every copy may call back into Python.
SIMULATED_AXES = Axes(
    block_bytes=(16, 64, 256, 512, 1152, 4 * KIB, 32 * KIB),
    layers=(1, 2, 4),
    blocks=(1, 4, 16),
    shown_bytes=(64, 256, 512, 1152, 4 * KIB),
    shown_layers=4,
    typical_bytes=512,
    host_time_blocks=8,
    full_bytes=16 * KIB,
    moved_bytes_max=128 * KIB,
    arena_bytes=512 * KIB,
    link_bytes=64 * KIB,
    beside_bytes=16 * KIB,
)


@dataclass(frozen=True)
class Selection:
    """Cells in the order they are measured in, and how many were left out, by rule."""

    cells: Sequence[Cell]
    left_out: dict[str, int]


def select(axes: Axes, seed: int = 0) -> Selection:
    """The cells that must be shown, then all others, well spread: the same for the same axes and seed."""
    left_out: Counter[str] = Counter()
    shown = _kept(shown_cells(axes), axes, set(), left_out)
    others = _kept(_every_cell(axes), axes, {replace(cell, must_show="") for cell in shown}, left_out)
    return Selection([*shown, *_well_spread(others, axes, seed)], dict(left_out))


def shown_cells(axes: Axes) -> Iterator[Cell]:
    """The cells that must be shown, whether they fit or not."""
    sizes, typical, layers = axes.shown_bytes, axes.typical_bytes, axes.shown_layers

    def full(direction: Direction, size: int, run: Run, layout: Layout, shows: MustShow) -> Cell:
        return Cell(direction, size, layers, axes.full_blocks(size, layers), run, layout, shows)

    for size in sizes:
        yield full("out", size, "1", "layer_major", "layer-major runs of 1")
        yield full("in", size, "1", "layer_major", "layer-major runs of 1")
    for size in sizes:
        yield full("out", size, "host", "block_major", "block-major host runs")
        yield full("in", size, "host", "block_major", "block-major host runs")
    yield full("out", typical, "1", "block_major", "block-major scattered")
    yield full("in", typical, "1", "block_major", "block-major scattered")
    yield full("both", typical, "host", "block_major", "both ways at once")
    for direction in axes.directions[:2]:
        for layout in axes.host_layouts:
            yield Cell(direction, typical, layers, 1, "1", layout, "latency of 1 block")
            yield Cell(direction, typical, layers, axes.host_time_blocks, "1", layout, "host time")


def _every_cell(axes: Axes) -> Iterator[Cell]:
    geometries = product(axes.block_bytes, axes.layers)
    for (block_bytes, layers), direction, layout in product(geometries, axes.directions, axes.host_layouts):
        for blocks, run in product([*axes.blocks, axes.full_blocks(block_bytes, layers)], axes.runs):
            yield Cell(direction, block_bytes, layers, blocks, run, layout)


def _kept(cells: Iterator[Cell], axes: Axes, seen: set[Cell], left_out: Counter[str]) -> list[Cell]:
    kept = []
    for cell in cells:
        rule = _why_left_out(cell, axes, seen)
        if rule:
            left_out[rule] += 1
        else:
            kept.append(cell)
            seen.add(cell)
    return kept


def _why_left_out(cell: Cell, axes: Axes, seen: set[Cell]) -> str:
    """The rule by which a cell is left out, "" where none is."""
    one_layout = cell.layers == 1 and cell.host_layout == "block_major"
    one_run = cell.blocks == 1 if cell.run == "all" else cell.run.isdecimal() and int(cell.run) > cell.blocks
    if cell in seen or one_layout or one_run:
        return "the same as another cell"
    if cell.bytes_a_way > axes.moved_bytes_max:
        return f"more than {axes.moved_bytes_max:,} bytes a way"
    if max(cell.device_bytes_max, cell.host_bytes) > axes.arena_bytes:
        return f"does not fit {axes.arena_bytes:,} bytes a side"
    return ""


def _well_spread(cells: Sequence[Cell], axes: Axes, seed: int) -> Iterator[Cell]:
    """Next, always, the cell whose values were met least so far; a shuffle decides between equals.

    So any prefix covers the axes about evenly, however early the time is used up.
    """
    shuffled = [cells[i] for i in np.random.default_rng(seed).permutation(len(cells))]
    columns = zip(*(_values(cell, axes) for cell in shuffled), strict=True)
    codes = [np.unique(np.array(column, dtype=str), return_inverse=True)[1] for column in columns]
    met = [np.zeros(len(cells)) for _ in codes]
    waiting = np.ones(len(cells), dtype=bool)
    for _ in cells:
        score = np.sum([counts[code] for counts, code in zip(met, codes, strict=True)], axis=0)
        chosen = int(np.argmin(np.where(waiting, score, np.inf)))
        waiting[chosen] = False
        for counts, code in zip(met, codes, strict=True):
            counts[code[chosen]] += 1
        yield shuffled[chosen]


def _values(cell: Cell, axes: Axes) -> tuple[object, ...]:
    # "All blocks" is another number for every geometry, and one value.
    blocks = cell.blocks if cell.blocks in axes.blocks else "all"
    return cell.direction, cell.block_bytes, cell.layers, cell.run, cell.host_layout, blocks
