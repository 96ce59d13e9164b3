"""The matrix's cells, where their blocks lie, and the bytes they are compared by."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kvswap.bench.arena import Arena, PlacedSwap
from numba_kvswap.bench.cells import CUDA_AXES, SIMULATED_AXES, Cell, select, shown_cells
from numba_kvswap.bench.places import GUARD_BYTES, Place
from numba_kvswap.driver import SimulatedDriver
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper

PLACES = st.builds(
    Place,
    direction=st.sampled_from(["out", "in", "both"]),
    block_bytes=st.integers(1, 700),
    layers=st.integers(1, 5),
    blocks=st.integers(1, 30),
    run=st.sampled_from(["1", "2", "8", "all", "host"]),
    host_layout=st.sampled_from(["layer_major", "block_major"]),
)


def values(cell: Cell, axes) -> tuple:
    blocks = cell.blocks if cell.blocks in axes.blocks else "all"
    return cell.direction, cell.block_bytes, cell.layers, cell.run, cell.host_layout, blocks


@pytest.mark.parametrize("axes", [CUDA_AXES, SIMULATED_AXES])
def test_what_must_be_shown_comes_first_and_whole(axes):
    cells = select(axes).cells
    shown = list(shown_cells(axes))
    assert list(cells[: len(shown)]) == shown
    assert not any(cell.must_show for cell in cells[len(shown) :])
    bound_by_bytes = [cell for cell in shown if cell.must_show not in ("latency of 1 block", "host time")]
    assert all(axes.full_bytes <= cell.bytes_a_way for cell in bound_by_bytes)
    assert Counter(cell.must_show for cell in shown)["layer-major runs of 1"] == 2 * len(axes.shown_bytes)


@pytest.mark.parametrize("axes", [CUDA_AXES, SIMULATED_AXES])
@pytest.mark.parametrize("seed", range(3))
def test_any_prefix_covers_the_axes(axes, seed):
    selection = select(axes, seed)
    assert selection == select(axes, seed)
    rest = [values(cell, axes) for cell in selection.cells if not cell.must_show]
    everything = [set(column) for column in zip(*rest, strict=True)]
    assert [set(column) for column in zip(*rest[:12], strict=True)] == everything
    for length in (40, 80, 160):
        for column in zip(*rest[:length], strict=True):
            met = Counter(column)
            assert max(met.values()) <= 2 * min(met.values()), "each value about as often as the others"


@pytest.mark.parametrize("axes", [CUDA_AXES, SIMULATED_AXES])
def test_every_cell_is_kept_or_left_out_by_a_rule(axes):
    selection = select(axes)
    assert len(set(selection.cells)) == len(selection.cells)
    grid = len(axes.block_bytes) * len(axes.layers) * 3 * 2 * (len(axes.blocks) + 1) * len(axes.runs)
    made = len(list(shown_cells(axes))) + grid
    assert len(selection.cells) + sum(selection.left_out.values()) == made
    for cell in selection.cells:
        assert cell.bytes_a_way <= axes.moved_bytes_max
        assert max(cell.device_bytes_max, cell.host_bytes) <= axes.arena_bytes
    small = select(replace(axes, arena_bytes=axes.arena_bytes // 8, moved_bytes_max=axes.moved_bytes_max // 2))
    assert len(small.cells) < len(selection.cells)
    assert len(small.cells) + sum(small.left_out.values()) == made


@given(PLACES, st.integers(0, 3))
def test_ids_lie_in_runs_as_named_between_blocks_that_nobody_names(place, seed):
    moves = place.moves(np.random.default_rng(seed))
    assert [move.direction for move in moves] == (["out", "in"] if place.direction == "both" else [place.direction])
    for side in ("device", "host"):
        ids = np.concatenate([getattr(move, f"{side}_ids") for move in moves])
        assert len(set(ids.tolist())) == ids.size == place.blocks * len(moves)
        assert ids.min() >= 1, "the first block is a guard"
        assert ids.max() <= place.slots(side) - 2, "the last block is a guard"
    run = {"all": place.blocks, "host": 1}.get(place.run) or int(place.run)
    for move in moves:
        plan = Plan(move.device_ids, move.host_ids)
        if place.run == "host":
            assert (np.diff(move.host_ids) == 1).all()
            assert (np.diff(np.sort(move.device_ids)) > 1).all()
        assert plan.runs == -(-place.blocks // run)
        assert plan.run_blocks.max() == min(run, place.blocks)


@given(PLACES, st.integers(0, 3))
def test_layers_lie_apart_in_the_arena_and_none_can_be_copied_with_the_next(place, seed):
    offsets = place.device_offsets(np.random.default_rng(seed))
    layer_bytes = place.slots("device") * place.block_bytes
    assert all(later + layer_bytes <= earlier for earlier, later in pairwise(offsets))
    assert min(offsets) >= GUARD_BYTES
    assert max(offsets) + layer_bytes + GUARD_BYTES <= place.device_bytes_max
    assert all(offset % 256 == 0 for offset in offsets)
    driver = SimulatedDriver()
    with driver.activate(0), Arena(driver, max(place.device_bytes_max, place.host_bytes)) as arena:
        placed = PlacedSwap(arena, place)
        swapper = Swapper(placed.device_cache, placed.host_cache)
        assert swapper.pair.groups.layers.tolist() == [1] * place.layers


@settings(max_examples=60)
@given(PLACES, st.integers(0, 3), st.data())
def test_a_swap_is_told_from_one_that_goes_wrong_anywhere(place, seed, data):
    driver = SimulatedDriver()
    with driver.activate(0), Arena(driver, max(place.device_bytes_max, place.host_bytes)) as arena:
        placed = PlacedSwap(arena, place, seed)
        placed.restore()
        assert placed.fault(placed.target_sides), "nothing has moved yet"
        swapper = Swapper(placed.device_cache, placed.host_cache, transport="copies")
        for move in placed.moves:
            swap = swapper.swap_out if move.direction == "out" else swapper.swap_in
            swap(move.device_ids, move.host_ids).wait()
        assert not placed.fault()
        side = data.draw(st.sampled_from(["device", "host"]))
        extent = placed._extents[side]
        at = data.draw(st.integers(0, extent - 1) | st.sampled_from([0, extent - 1]))
        wrong = arena.found(side, extent)[at : at + 1] ^ np.uint8(1)
        driver.copy_now(arena.memory[side].address + at, wrong.ctypes.data, 1)
        assert f"the {side}'s byte {at:,} differs" in placed.fault()
        placed.restore()
        assert placed.fault(placed.target_sides), "restored: nothing has moved again"
    assert driver.live_allocations() == 0
