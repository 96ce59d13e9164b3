"""What a block must hold, from its id, layer and position alone: made, filled in, and counted where it differs.

Word w of the block at position p of id i in layer l is output w of the generator SplitMix64 started from a mix of
(i, l, p). Words are 64 bits, little-endian; where block bytes are no multiple of 8, the tail holds the low bytes
of one word more. So every byte depends on where it belongs, and a block that lies in the wrong place, layer, or
half of an id cannot pass for the right one.

SplitMix64: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, section 5;
its three multipliers and shifts are those of David Stafford's mix 13, as in S. Vigna's public domain splitmix64.c.

The compiled loops keep every operand uint64: under Numba, as under NumPy, uint64 with int64 is float64.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numba_kvswap.jit import compiled

_WORD_BYTES = 8
_WORD_MASK = 2**64 - 1

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB

GAMMA_U64 = np.uint64(_GAMMA)
_MULTIPLIER_1_U64 = np.uint64(_MULTIPLIER_1)
_MULTIPLIER_2_U64 = np.uint64(_MULTIPLIER_2)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_SHIFT_BYTE = np.uint64(8)
_LOW_BYTE = np.uint64(0xFF)


def block_bytes_of(hash_id: int, layer: int, position: int, block_bytes: int) -> NDArray[np.uint8]:
    """The bytes that one block must hold, as uint8 [block_bytes]: the plain definition of this file.

    `layer` counts over all lists of a cache (K, V, ...), so that lists differ too. Raises ValueError where one of
    the four is negative.
    """
    for name, value in (("hash_id", hash_id), ("layer", layer), ("position", position)):
        if value < 0:
            raise ValueError(f"{name}: came {value}, expected 0 or more")
    if block_bytes < 0:
        raise ValueError(f"block_bytes: came {block_bytes}, expected 0 or more")
    words = -(-block_bytes // _WORD_BYTES)
    start = 0
    for value in (hash_id, layer, position):
        # Python integers, since a NumPy scalar warns where it overflows; an array, below, wraps in silence.
        start = int(_mix(np.array([(start + value + _GAMMA) & _WORD_MASK], dtype=np.uint64))[0])
    steps = np.arange(1, words + 1, dtype=np.uint64)
    stream = _mix(np.uint64(start) + steps * np.uint64(_GAMMA))
    return stream.astype("<u8").view(np.uint8)[:block_bytes]


def fill_blocks(
    layer_view: NDArray[np.uint8], block_ids: ArrayLike, ids: ArrayLike, positions: ArrayLike, layer: int
) -> None:
    """Write into block `block_ids[k]` of one layer what position `positions[k]` of id `ids[k]` must hold there.

    `layer_view` is uint8 [blocks, block_bytes] and may be strided from block to block; bytes between blocks stay as
    they are. The three lists are one entry a block, equally long. Holds no GIL while it writes.

    Raises TypeError for a view that is not uint8 or a list that is not integers; ValueError for a wrong shape, a
    block whose bytes are not contiguous, lists of different length, or a negative id, position or layer;
    IndexError for a block id that the view does not have. Nothing is written then.
    """
    words, tail = _words_and_tail(layer_view)
    blocks, hash_ids, own_positions = _checked_lists(layer_view, block_ids, ids, positions, layer)
    _fill(words, tail, blocks, hash_ids, own_positions, np.uint64(layer))


def count_mismatched_blocks(
    layer_view: NDArray[np.uint8], block_ids: ArrayLike, ids: ArrayLike, positions: ArrayLike, layer: int
) -> int:
    """How many of the named blocks of one layer differ, in any bit, from what they must hold.

    Arguments and errors are those of `fill_blocks`; the view may be read-only. A block named twice is judged twice.
    """
    words, tail = _words_and_tail(layer_view)
    blocks, hash_ids, own_positions = _checked_lists(layer_view, block_ids, ids, positions, layer)
    return int(_count_mismatched(words, tail, blocks, hash_ids, own_positions, np.uint64(layer)))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
    return state ^ (state >> np.uint64(31))


def _words_and_tail(layer_view: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """The same memory as whole little-endian words [blocks, words] and the bytes after them [blocks, 0 to 7]."""
    if layer_view.dtype != np.uint8:
        raise TypeError(f"layer_view: came dtype {layer_view.dtype}, expected uint8; pass array.view(numpy.uint8)")
    if layer_view.ndim != 2:
        raise ValueError(f"layer_view: came shape {layer_view.shape}, expected [blocks, block_bytes]")
    if layer_view.shape[1] > 1 and layer_view.strides[1] != 1:
        raise ValueError(
            f"layer_view: came strides {layer_view.strides}, expected the bytes of a block one after another; "
            "only the stride from block to block may be larger"
        )
    word_end = layer_view.shape[1] // _WORD_BYTES * _WORD_BYTES
    # Words may start at any address: NumPy marks such a view as unaligned, and Numba loads it byte-safe.
    return layer_view[:, :word_end].view("<u8"), layer_view[:, word_end:]


def _checked_lists(
    layer_view: NDArray[np.uint8], block_ids: ArrayLike, ids: ArrayLike, positions: ArrayLike, layer: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    blocks = _integers(block_ids, "block_ids")
    id_list = _integers(ids, "ids")
    position_list = _integers(positions, "positions")
    if not blocks.size == id_list.size == position_list.size:
        raise ValueError(
            f"came {blocks.size} block ids, {id_list.size} ids and {position_list.size} positions, expected as many "
            "of each: one entry a block"
        )
    if layer < 0:
        raise ValueError(f"layer: came {layer}, expected 0 or more")
    for name, values in (("ids", id_list), ("positions", position_list)):
        # A negative one would wrap into some huge uint64.
        if values.size and int(values.min()) < 0:
            raise ValueError(f"{name}: came {int(values.min())}, expected 0 or more")
    # Checked here since the compiled loops check no bounds.
    outside = np.flatnonzero((blocks < 0) | (blocks >= layer_view.shape[0]))
    if outside.size:
        first = int(outside[0])
        raise IndexError(
            f"block_ids[{first}]: came {int(blocks[first])}, expected 0 to {layer_view.shape[0] - 1}, "
            f"the layer's {layer_view.shape[0]} blocks"
        )
    return blocks.astype(np.int64), id_list.astype(np.uint64), position_list.astype(np.uint64)


def _integers(values: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: came shape {array.shape}, expected one entry a block")
    # An empty list has no dtype of its own: NumPy makes it float64.
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name}: came dtype {array.dtype}, expected integers")
    return array


@compiled
def mixed(state: np.uint64) -> np.uint64:
    state = (state ^ (state >> _SHIFT_30)) * _MULTIPLIER_1_U64
    state = (state ^ (state >> _SHIFT_27)) * _MULTIPLIER_2_U64
    return state ^ (state >> _SHIFT_31)


@compiled
def block_start(hash_id: np.uint64, layer: np.uint64, position: np.uint64) -> np.uint64:
    start = mixed(hash_id + GAMMA_U64)
    start = mixed(start + layer + GAMMA_U64)
    return mixed(start + position + GAMMA_U64)


@compiled
def _fill(
    words: NDArray[np.uint64],
    tail: NDArray[np.uint8],
    blocks: NDArray[np.int64],
    ids: NDArray[np.uint64],
    positions: NDArray[np.uint64],
    layer: np.uint64,
) -> None:
    for k in range(blocks.size):
        block = blocks[k]
        state = block_start(ids[k], layer, positions[k])
        for w in range(words.shape[1]):
            state += GAMMA_U64
            words[block, w] = mixed(state)
        last = mixed(state + GAMMA_U64)
        for b in range(tail.shape[1]):
            tail[block, b] = np.uint8(last & _LOW_BYTE)
            last >>= _SHIFT_BYTE


@compiled
def _count_mismatched(
    words: NDArray[np.uint64],
    tail: NDArray[np.uint8],
    blocks: NDArray[np.int64],
    ids: NDArray[np.uint64],
    positions: NDArray[np.uint64],
    layer: np.uint64,
) -> int:
    mismatched = 0
    for k in range(blocks.size):
        block = blocks[k]
        state = block_start(ids[k], layer, positions[k])
        # Differing bits are gathered rather than left at the first: almost every block is right, and is read whole.
        difference = np.uint64(0)
        for w in range(words.shape[1]):
            state += GAMMA_U64
            difference |= words[block, w] ^ mixed(state)
        last = mixed(state + GAMMA_U64)
        for b in range(tail.shape[1]):
            difference |= np.uint64(tail[block, b]) ^ (last & _LOW_BYTE)
            last >>= _SHIFT_BYTE
        if difference != np.uint64(0):
            mismatched += 1
    return mismatched
