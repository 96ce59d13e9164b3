"""Swaps whose copies and kernels are under way: seen in part, and beside work that is itself done in steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, Rig, assert_same, swap

DIRECTIONS = ("out", "in")
TAPES = st.binary(max_size=200)
SEEDS = tuple(range(16))
FEWER = settings(max_examples=max(20, settings().max_examples // 4))
IDS = ([5, 3, 4, 15, 14, 0, 1, 2, 9, 7], [1, 2, 3, 4, 9, 8, 7, 6, 5, 0])


def writing(layers, value):
    """A kernel that writes `value` to all layers, a layer a step."""

    def kernel():
        for layer in layers:
            layer.fill(value)
            yield

    return kernel


def reading(layers, found):
    """A kernel that copies all layers to `found`, a layer a step."""

    def kernel():
        for layer in layers:
            found.append(layer.copy())
            yield

    return kernel


def sides(rig, direction):
    device, host = rig.device_layers(), rig.host_layers()
    return (device, host) if direction == "out" else (host, device)


@FEWER
@given(tape=TAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_swap_that_is_done_has_landed_whole(transport_or_auto, direction, tape):
    rig = Rig(transport_or_auto, schedule=tape)
    before = rig.images()
    expected = rig.expected(direction, *IDS, before)
    transfer = swap(rig.swapper(), direction, *IDS, rig.simulated.stream())
    for _ in range(20):
        if transfer.done():
            assert_same(rig.images(), expected)
    transfer.wait()
    assert_same(rig.images(), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_swap_is_seen_in_part(transport, direction):
    """Else these tests test nothing."""

    def blocks_seen(tape):
        rig = Rig(transport, schedule=tape)
        before = rig.images()
        expected = rig.expected(direction, *IDS, before)
        swap(rig.swapper(), direction, *IDS, rig.simulated.stream())
        now = rig.images()
        return {
            "old" if (b == n).all() else "new" if (n == e).all() else "torn"
            for layer, done, fresh in zip(before, now, expected, strict=True)
            for b, n, e in zip(layer, done, fresh, strict=True)
            if not np.array_equal(b, e)
        }

    generator = np.random.default_rng(1)
    seen = [blocks_seen(generator.integers(0, 256, 300, np.uint8).tobytes()) for _ in range(60)]
    assert any({"old", "new"} <= each for each in seen)
    assert any("torn" in each for each in seen)


@FEWER
@given(tape=TAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("other_stream", [False, True], ids=["its stream", "another that waits"])
def test_between_work_in_steps_before_it_and_after_it(transport_or_auto, direction, other_stream, tape):
    """It moves what its stream's work wrote, all of it, and what comes after it finds it landed, all of it."""
    rig = Rig(transport_or_auto, schedule=tape)
    source, target = sides(rig, direction)
    stream, found = rig.simulated.stream(), []
    stream.launch(writing(source, 7))
    transfer = swap(rig.swapper(), direction, *IDS, stream)
    later = rig.simulated.stream() if other_stream else stream
    transfer.wait_on(later)
    later.launch(reading(target, found))
    later.launch(writing(source, 8))
    later.synchronize()
    ids = IDS[1] if direction == "out" else IDS[0]
    assert all((layer[ids] == 7).all() for layer in found)
    assert transfer.done()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", SEEDS)
def test_swaps_there_and_back_on_two_streams_with_seeded_pieces(transport_or_auto, direction, seed):
    rig = Rig(transport_or_auto, schedule=None, seed=seed, ring_blocks=1)
    swapper, expected = rig.swapper(), rig.images()
    streams, transfers = [rig.simulated.stream() for _ in range(2)], []
    half = BLOCKS // 2
    for turn in range(6):
        way = DIRECTIONS[(turn // 2 + DIRECTIONS.index(direction)) % 2]
        first = half * (turn % 2)
        ids = [first + i for i in range(half)], [first + (3 * i + turn) % half for i in range(half)]
        transfers.append(swap(swapper, way, *ids, streams[turn % 2]))
        expected = rig.expected(way, *ids, expected)
    for transfer in reversed(transfers):
        transfer.wait()
    assert_same(rig.images(), expected)
