"""The kernels' body, compiled for the host with words that must be aligned, over every alignment, size and grid."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from numba_kvswap.kernels import rows as rows_module
from numba_kvswap.kernels.body import LANES, PARAMETERS, ROW_WORDS, WIDTHS, Primitives, kernels
from numba_kvswap.kernels.rows import layer_rows
from numba_kvswap.kernels.simulated import UNALIGNED

LADDER = ("thread_a_block", "warp_a_chunk")
GUARD = 32
SIZES = (*range(71), 127, 128, 511, 513, 2049)


def _aligned(width, count):
    """The simulated device's words, and an error where a device would fault."""
    plain, mask = (UNALIGNED.copy if count == 1 else UNALIGNED.copy_4)[width], np.uint64(width - 1)
    if count == 1:

        @njit
        def copy(target, source):
            if (target | source) & mask:
                raise ValueError("a word that is not aligned")
            plain(target, source)

        return copy

    @njit
    def copy_several(target, source, step):
        if (target | source | step) & mask:
            raise ValueError("a word that is not aligned")
        plain(target, source, step)

    return copy_several


@lru_cache
def compiled():
    primitives = Primitives(
        UNALIGNED.load_word,
        {width: _aligned(width, 1) for width in WIDTHS},
        {width: _aligned(width, 4) for width in WIDTHS},
    )

    def over_a_grid(move):
        @njit
        def run(p, workers, lanes):
            for lane in range(lanes):  # the lanes before the workers: nothing may wait for another
                for worker in range(workers):
                    where = (np.uint64(worker), workers, lanes - np.uint64(1) - np.uint64(lane), lanes)
                    move(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], *where)

        return run

    return {name: over_a_grid(move) for name, move in kernels(njit, primitives).items()}


def launch(
    name,
    table,
    chunks,
    ids,
    *,
    pairs,
    shifts=(0, 0),
    firsts=(0, 0),
    workers=3,
    lanes=LANES,
    chunk_bytes=rows_module.CHUNK_BYTES,
):
    at = [0 if side is None else side.ctypes.data for side in ids]
    values = [table.ctypes.data, len(table), chunks, chunk_bytes, *at, pairs, *shifts, *firsts]
    assert len(values) == len(PARAMETERS)
    compiled()[name](np.array(values, np.uint64), np.uint64(workers), np.uint64(lanes))


class Image:
    """Source and target images at multiples of 16, filled with different bytes."""

    def __init__(self, size, seed=0):
        generator = np.random.default_rng(seed)
        self.source, self.target = (self._aligned(generator.integers(0, 256, size, np.uint8)) for _ in range(2))
        self.expected = self.target.copy()

    @staticmethod
    def _aligned(values):
        room = np.empty(values.size + 16, np.uint8)
        image = room[-room.ctypes.data % 16 :][: values.size]
        image[:] = values
        return image

    def move(self, source_at, target_at, size):
        self.expected[target_at : target_at + size] = self.source[source_at : source_at + size]


@pytest.mark.parametrize("name", LADDER)
def test_blocks_that_fill_their_chunks(monkeypatch, name):
    """Comes first: a chunk taken for one of the layer before has no bytes here, but in what follows it has some of
    memory that is not the image's."""
    monkeypatch.setattr(rows_module, "CHUNK_BYTES", 16)
    sizes, pairs = (16, 48, 16, 32, 64), 2
    starts = np.cumsum([0, *(pairs * size for size in sizes)]).tolist()
    image = Image(starts.pop())
    source, target = (
        [(side.ctypes.data + at, size) for at, size in zip(starts, sizes, strict=True)]
        for side in (image.source, image.target)
    )
    table, chunks = layer_rows(source, target, sizes)
    launch(name, table, chunks, (None, None), pairs=pairs, chunk_bytes=16)
    np.testing.assert_array_equal(image.target, image.source)


@pytest.mark.parametrize("lanes", [1, 3, LANES])
@pytest.mark.parametrize("name", LADDER)
def test_every_alignment_of_both_sides_and_every_size_in_one_launch(name, lanes):
    """A layer each, 19,000 of them, of one block; and guard bytes around every one."""
    places = [(a, b, size) for size in SIZES for a in range(16) for b in range(16)]
    room = [-(-(GUARD + 32 + size) // 16) * 16 for _, _, size in places]
    starts = np.cumsum([0, *room[:-1]]).tolist()
    image = Image(sum(room) + GUARD)
    source = [(image.source.ctypes.data + at + a, 1 << 40) for at, (a, _, _) in zip(starts, places, strict=True)]
    target = [(image.target.ctypes.data + at + b, 1 << 40) for at, (_, b, _) in zip(starts, places, strict=True)]
    table, chunks = layer_rows(source, target, [size for _, _, size in places])
    launch(name, table, chunks, (None, None), pairs=1, lanes=lanes)
    for at, (a, b, size) in zip(starts, places, strict=True):
        image.move(at + a, at + b, size)
    np.testing.assert_array_equal(image.target, image.expected)


@st.composite
def launches(draw):
    """Layers of several sizes at strides of their own; pairs; a grid; chunks that blocks do and do not fill."""
    blocks = draw(st.integers(1, 6))
    layers = []
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.one_of(st.integers(1, 80), st.integers(1, 3000)))
        layers.append(
            (size, [size + draw(st.integers(0, 20)) for _ in range(2)], [draw(st.integers(0, 15)) for _ in "st"])
        )
    pairs = draw(st.integers(0, blocks))
    ids = [draw(st.permutations(range(blocks)))[:pairs] for _ in range(2)]
    return {
        "layers": layers,
        "blocks": blocks,
        "ids": [None if draw(st.integers(0, 3)) == 0 else side for side in ids],
        "pairs": pairs,
        "shifts": [draw(st.integers(0, 40)) for _ in range(2)],
        "firsts": [draw(st.integers(0, blocks - pairs)) for _ in range(2)],
        "grid": (draw(st.integers(1, 9)), draw(st.sampled_from((1, 2, 5, LANES)))),
        "chunk_bytes": draw(st.sampled_from((1, 16, 24, 100, 1024, 8192))),
    }


@settings(max_examples=2 * settings().max_examples)
@given(case=launches())
@pytest.mark.parametrize("name", LADDER)
def test_any_launch_moves_its_pairs_and_nothing_else(name, case):
    both, rooms = [[], []], [GUARD, GUARD]
    for _, strides, offsets in case["layers"]:
        for side in range(2):
            both[side].append((rooms[side] + offsets[side], strides[side]))
            rooms[side] += 16 + case["blocks"] * strides[side] + GUARD
    image = Image(max(rooms) + max(case["shifts"]) + GUARD)
    bases = [side.ctypes.data for side in (image.source, image.target)]
    # A launch on a slot gives its layers from 0 and the slot's address as the shift.
    places = [
        [(base + at - shift, stride) for at, stride in side]
        for base, side, shift in zip(bases, both, case["shifts"], strict=True)
    ]
    sizes = [size for size, _, _ in case["layers"]]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows_module, "CHUNK_BYTES", case["chunk_bytes"])
        table, chunks = layer_rows(*places, sizes)
    ids = [None if side is None else np.array(side, np.uint64) for side in case["ids"]]
    workers, lanes = case["grid"]
    launch(
        name,
        table,
        chunks,
        ids,
        pairs=case["pairs"],
        shifts=case["shifts"],
        firsts=case["firsts"],
        workers=workers,
        lanes=lanes,
        chunk_bytes=case["chunk_bytes"],
    )
    for pair in range(case["pairs"]):
        source_id, target_id = (
            first + pair if side is None else side[pair]
            for side, first in zip(case["ids"], case["firsts"], strict=True)
        )
        for (from_, from_stride), (to, to_stride), size in zip(*both, sizes, strict=True):
            image.move(from_ + source_id * from_stride, to + target_id * to_stride, size)
    np.testing.assert_array_equal(image.target, image.expected)


def test_addresses_and_ids_beyond_32_bits_are_not_cut():
    """Of a block whose offset takes 33 bits: the base is so far below that the block lies in the image."""
    image, far = Image(256), np.array([1 << 20], np.uint64)
    stride = 8192
    back = (1 << 20) * stride
    for name in LADDER:
        table, chunks = layer_rows(
            [((image.source.ctypes.data - back) % 2**64, stride)],
            [((image.target.ctypes.data + 64 - back) % 2**64, stride)],
            [77],
        )
        image.target[:] = 0
        image.expected[:] = 0
        image.move(0, 64, 77)
        launch(name, table, chunks, (far, far), pairs=1)
        np.testing.assert_array_equal(image.target, image.expected)


@given(sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=9))
def test_rows_count_the_chunks_before_each_layer(sizes):
    places = [(1000 * i, 8) for i in range(len(sizes))]
    table, chunks = layer_rows(places, places[::-1], sizes)
    assert (table.dtype, table.shape) == (np.uint64, (len(sizes), ROW_WORDS))
    each = [-(-size // rows_module.CHUNK_BYTES) for size in sizes]
    assert table[:, 5].tolist() == [sum(each[:i]) for i in range(len(sizes))]
    assert chunks == sum(each)
    assert table[:, [0, 1]].tolist() == [list(place) for place in places]
    assert table[:, [2, 3]].tolist() == [list(place) for place in places[::-1]]
    assert table[:, 4].tolist() == sizes
