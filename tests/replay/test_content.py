"""What blocks hold: the compiled loops against the plain definition, and no wrong bit passing unseen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kvswap.replay.content import block_bytes_of, count_mismatched_blocks, fill_blocks

GUARD = 0xA5


def layer_of(blocks: int, block_bytes: int, gap_bytes: int = 0, offset_bytes: int = 0):
    """A layer's view inside guard bytes: `gap_bytes` between blocks, starting `offset_bytes` off alignment."""
    stride = block_bytes + gap_bytes
    memory = np.full(offset_bytes + blocks * stride + 16, GUARD, dtype=np.uint8)
    view = np.lib.stride_tricks.as_strided(memory[offset_bytes:], (blocks, block_bytes), (stride, 1))
    return memory, view


def test_the_words_of_a_block_are_splitmix64s():
    # The generator once more, in plain Python integers, itself held to splitmix64.c's first output for seed 1234567.
    def mix(state):
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        return state ^ (state >> 31)

    gamma = 0x9E3779B97F4A7C15
    assert mix(1234567 + gamma) == 6457827717110365317
    start = 0
    for value in (2**62 + 3, 5, 7):
        start = mix((start + value + gamma) % 2**64)
    words = [mix((start + (w + 1) * gamma) % 2**64) for w in range(4)]
    expected = b"".join(word.to_bytes(8, "little") for word in words)
    for block_bytes in (0, 1, 7, 8, 9, 27, 32):
        assert block_bytes_of(2**62 + 3, 5, 7, block_bytes).tobytes() == expected[:block_bytes]


@settings(max_examples=200, deadline=None)
@given(
    block_bytes=st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 63, 999, 1024]),
    gap_bytes=st.sampled_from([0, 1, 3, 8, 24]),
    offset_bytes=st.integers(0, 8),
    layer=st.integers(0, 2**40),
    wanted=st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 127))),
)
def test_filled_blocks_are_the_plain_definitions_and_nothing_else_changes(
    block_bytes, gap_bytes, offset_bytes, layer, wanted
):
    memory, view = layer_of(7, block_bytes, gap_bytes, offset_bytes)
    expected_memory, expected = layer_of(7, block_bytes, gap_bytes, offset_bytes)
    for block, (hash_id, position) in wanted.items():
        expected[block] = block_bytes_of(hash_id, layer, position, block_bytes)
    lists = (list(wanted), [i for i, _ in wanted.values()], [p for _, p in wanted.values()])
    fill_blocks(view, *lists, layer)
    assert memory.tobytes() == expected_memory.tobytes()
    view.flags.writeable = False
    assert count_mismatched_blocks(view, *lists, layer) == 0


@pytest.mark.parametrize("block_bytes", [1, 7, 8, 19, 32])
def test_one_wrong_bit_anywhere_is_counted(block_bytes):
    _, view = layer_of(3, block_bytes, gap_bytes=2)
    lists = ([0, 1, 2], [2**62, 11, 12], [0, 1, 2])
    fill_blocks(view, *lists, 4)
    for block in range(3):
        for bit in range(8 * block_bytes):
            view[block, bit // 8] ^= 1 << bit % 8
            assert count_mismatched_blocks(view, *lists, 4) == 1
            view[block, bit // 8] ^= 1 << bit % 8
    assert count_mismatched_blocks(view, *lists, 4) == 0


def test_every_wrong_block_is_counted_and_no_unnamed_one():
    _, view = layer_of(5, 24)
    lists = ([4, 0, 2, 1], [1, 2, 3, 4], [0, 0, 0, 0])
    fill_blocks(view, *lists, 0)
    view[0] ^= 0xFF
    view[2, 23] ^= 1
    view[3] = 0
    assert count_mismatched_blocks(view, *lists, 0) == 2
    assert count_mismatched_blocks(view, [0, 0, 4], [2, 2, 1], [0, 0, 0], 0) == 2


@pytest.mark.parametrize("other", [(9, 1, 2), (8, 2, 2), (8, 1, 3), (1, 8, 2), (2, 1, 8), (8, 2, 1)])
@pytest.mark.parametrize("block_bytes", [8, 7])
def test_a_block_of_another_id_layer_or_position_does_not_pass(other, block_bytes):
    _, view = layer_of(1, block_bytes)
    hash_id, layer, position = other
    fill_blocks(view, [0], [hash_id], [position], layer)
    assert count_mismatched_blocks(view, [0], [8], [2], 1) == 1


def test_ids_that_float64_would_confuse_are_told_apart():
    _, view = layer_of(1, 64)
    for ids in ([2**62], np.array([2**62]), np.array([2**62], dtype=np.uint64)):
        fill_blocks(view, [0], ids, [0], 0)
        assert (view[0] == block_bytes_of(2**62, 0, 0, 64)).all()
        assert count_mismatched_blocks(view, [0], [2**62 + 1], [0], 0) == 1


def test_many_blocks_share_no_word():
    words = [block_bytes_of(i, layer, p, 16).view(np.uint64) for i in range(30) for layer in range(8) for p in range(8)]
    assert len(np.unique(np.concatenate(words))) == 2 * 30 * 8 * 8


def test_an_unordered_layer_of_int32_ids():
    _, view = layer_of(4, 16)
    fill_blocks(view, np.array([3, 1], dtype=np.int32), np.array([5, 6], dtype=np.int32), np.zeros(2, np.int8), 0)
    assert (view[3] == block_bytes_of(5, 0, 0, 16)).all()
    assert (view[1] == block_bytes_of(6, 0, 0, 16)).all()


@pytest.mark.parametrize("call", [fill_blocks, count_mismatched_blocks])
@pytest.mark.parametrize(
    ("lists", "layer", "error", "says"),
    [
        (([4], [0], [0]), 0, IndexError, r"block_ids\[0\]: came 4, expected 0 to 3"),
        (([0, -1], [0, 0], [0, 0]), 0, IndexError, r"block_ids\[1\]: came -1"),
        (([0, 1], [0], [0, 0]), 0, ValueError, "came 2 block ids, 1 ids and 2 positions"),
        (([0], [-1], [0]), 0, ValueError, "ids: came -1"),
        (([0], [0], [-3]), 0, ValueError, "positions: came -3"),
        (([0], [0], [0]), -1, ValueError, "layer: came -1"),
        (([0.0], [0], [0]), 0, TypeError, "block_ids: came dtype float64"),
        (([0], [True], [0]), 0, TypeError, "ids: came dtype bool"),
        (([[0]], [0], [0]), 0, ValueError, r"block_ids: came shape \(1, 1\)"),
    ],
)
def test_bad_lists_are_refused_and_nothing_is_written(call, lists, layer, error, says):
    memory, view = layer_of(4, 16)
    with pytest.raises(error, match=says):
        call(view, *lists, layer)
    assert (memory == GUARD).all()


@pytest.mark.parametrize(
    ("view", "error", "says"),
    [
        (np.zeros((4, 16), np.int8), TypeError, "came dtype int8"),
        (np.zeros(16, np.uint8), ValueError, r"came shape \(16,\)"),
        (np.zeros((4, 16), np.uint8)[:, ::2], ValueError, "one after another"),
    ],
)
def test_a_view_that_is_not_a_layers_bytes_is_refused(view, error, says):
    with pytest.raises(error, match=says):
        fill_blocks(view, [0], [0], [0], 0)


def test_the_plain_definition_refuses_negatives():
    for arguments in ((-1, 0, 0, 8), (0, -1, 0, 8), (0, 0, -1, 8), (0, 0, 0, -8)):
        with pytest.raises(ValueError, match="expected 0 or more"):
            block_bytes_of(*arguments)
