"""The main job: what a replay moves is what its placement says, and every block that is wrong is counted."""

from __future__ import annotations

import dataclasses
import gc
from itertools import pairwise

import pytest

from numba_kvswap.driver import cuda_available, why_no_cuda
from numba_kvswap.plan import Plan
from numba_kvswap.replay import run
from numba_kvswap.replay.free_blocks import HOST_SLOTS
from numba_kvswap.replay.models import model_named
from numba_kvswap.replay.run import replay
from numba_kvswap.replay.stages import SimulatedStage, stage_named
from numba_kvswap.replay.tiers import Placement, count_runs
from numba_kvswap.replay.trace import made_trace, read_trace
from numba_kvswap.transports import copies
from numba_kvswap.transports.named import TRANSPORTS

TINY = model_named("tiny").block_shapes(64)
_CUDA = pytest.param(
    "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not cuda_available(), reason=why_no_cuda() or "has CUDA")]
)


@pytest.mark.parametrize("engine", ["simulated", _CUDA])
@pytest.mark.parametrize("blocks_per_id", [1, 8])
@pytest.mark.parametrize("host_slots", HOST_SLOTS)
def test_counts_are_the_placements_and_every_block_is_right(engine, blocks_per_id, host_slots):
    sizes = (300 * blocks_per_id, 500 * blocks_per_id, blocks_per_id, host_slots)
    expected, out, in_, computed, host_runs = Placement(*sizes), 0, 0, 0, [0, 0]
    for request in made_trace(3, 200):
        moves = expected.place(request.hash_ids)
        out, in_ = out + moves.out_device.size, in_ + moves.in_device.size
        computed += moves.computed_device.size
        host_runs = [host_runs[0] + count_runs(moves.out_host), host_runs[1] + count_runs(moves.in_host)]
    report = replay(made_trace(3, 200), TINY, Placement(*sizes), stage_named(engine, 3))
    assert out > 0
    assert in_ > 0
    assert (report.blocks_out, report.blocks_in, report.blocks_computed) == (out, in_, computed)
    assert [report.host_runs_out, report.host_runs_in] == host_runs
    residents = expected.device_blocks_by_id()[1].size + expected.host_blocks_by_id()[1].size
    assert (report.blocks_verified, report.mismatches) == (in_ + residents, 0)
    assert report.bytes_out == out * sum(shape.block_bytes for shape in TINY)
    assert report.swap_seconds_out > 0
    assert report.host_slots == host_slots


@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_makes_it_wrong(seed):
    report = replay(made_trace(1, 120), TINY, Placement(200, 300), SimulatedStage(seed))
    assert report.mismatches == 0


@pytest.mark.parametrize("engine", ["simulated", _CUDA])
@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
@pytest.mark.parametrize("favor", ["swap", "compute"])
def test_every_transport_moves_the_right_blocks_and_is_counted(engine, transport, favor):
    placement = Placement(300, 400, host_slots="contiguous", host_headroom_percent=5)
    report = replay(made_trace(3, 120), TINY, placement, stage_named(engine, 3), transport, favor)
    assert report.blocks_out > 0 and report.mismatches == 0
    assert (report.transport, report.favor, report.host_headroom_percent) == (transport, favor, 5)
    used = set(report.transfers_by_transport)
    assert used == {transport} if transport != "auto" else used <= set(TRANSPORTS)
    assert favor == "swap" or transport != "auto" or "kernel" not in used
    calls = expected_calls(made_trace(3, 120), Placement(300, 400, 1, "contiguous", 5))
    assert sum(report.transfers_by_transport.values()) == calls


def expected_calls(requests, placement) -> int:
    moves = [placement.place(request.hash_ids) for request in requests]
    return sum((move.out_host.size > 0) + (move.in_host.size > 0) for move in moves)


def test_the_host_pool_lets_the_ring_copy_whole_blocks_of_neighbouring_slots(monkeypatch):
    """That the pool is block-major is what the ring, and so auto, needs on the link."""
    found = []

    class Looks(run.Swapper):
        def __init__(self, device_cache, host_cache, **how):
            super().__init__(device_cache, host_cache, **how)
            found.append((host_cache.layers, device_cache.allocations, self.pair.block_bytes))

    monkeypatch.setattr(run, "Swapper", Looks)
    replay(made_trace(1, 30), TINY, Placement(200, 300), SimulatedStage())
    ((host_layers, device_starts, block_bytes),) = found
    assert all(after.address - layer.address == layer.block_bytes for layer, after in pairwise(host_layers))
    assert {layer.block_stride_bytes for layer in host_layers} == {block_bytes}
    assert len(set(device_starts)) == len(TINY), "and the device's layers are allocations of their own"


def test_a_transport_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="transport is 'pigeon'; expected 'auto' or one of copies"):
        replay(made_trace(1, 5), TINY, Placement(200, 300), SimulatedStage(), "pigeon")


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_swap_that_moves_nothing_is_found(monkeypatch, direction):
    submit = copies.submit

    def skip_one_direction(job):
        empty = Plan([], []) if job.direction == direction else job.plan
        return submit(dataclasses.replace(job, plan=empty))

    monkeypatch.setattr(copies, "submit", skip_one_direction)
    assert replay(made_trace(1, 150), TINY, Placement(200, 300), SimulatedStage(), "copies").mismatches > 0


def test_a_swap_on_the_wrong_stream_is_found(monkeypatch):
    """The default stream is not ordered with the replay's own: some schedule shows it."""
    submit, mismatches = copies.submit, 0
    monkeypatch.setattr(copies, "submit", lambda job: submit(dataclasses.replace(job, stream=0)))
    for seed in range(5):
        mismatches += replay(made_trace(1, 150), TINY, Placement(200, 300), SimulatedStage(seed), "copies").mismatches
    assert mismatches > 0


@pytest.mark.parametrize("transport", ["copies", "auto"])
def test_nothing_is_left_behind(transport):
    stage = SimulatedStage()
    driver = stage.driver
    replay(made_trace(1, 50), TINY, Placement(200, 300), stage, transport)
    del stage  # holds views of the device cache
    driver.tools.clear()  # what the transports keep of a device
    gc.collect()
    assert (driver.live_allocations(), driver.live_events(), len(driver.in_flight)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("host_slots", "runs", "host_runs"),
    [("lifo", (196_447, 34_908), (117_157, 21_725)), ("contiguous", (89_597, 17_192), (79_166, 14_832))],
)
def test_the_mooncake_conversation_trace(mooncake_trace, host_slots, runs, host_runs):
    layers = model_named("tiny").block_shapes(512)
    placement = Placement(1000, 8000, host_slots=host_slots)
    report = replay(read_trace(mooncake_trace), layers, placement, SimulatedStage())
    assert (report.requests, report.blocks_out, report.blocks_in) == (12_031, 233_005, 41_860)
    assert (report.runs_out, report.runs_in) == runs
    assert (report.host_runs_out, report.host_runs_in) == host_runs
    assert (report.blocks_verified, report.mismatches) == (41_860 + 9_000, 0)
