"""What the kernels do, as plain Python that compiles for the GPU and, for the simulated device, for the host.

The ladder: `thread_a_block`, the plainest, moves bytes; `warp_a_chunk` shares each chunk of a block among a warp's
lanes and moves the widest words that both addresses allow. They move the same bytes.

Tables are words of 8 bytes. `layers_at` has a row a layer: source address, source block stride, target address, target
block stride, block bytes, and how many chunks of `chunk_bytes` a block has in the layers before it.
`source_ids_at` and `target_ids_at` have an id a pair; 0 in place of an address means that pair i names block
`source_first` + i or `target_first` + i: one run needs no table.

Every number is uint64: uint64 + int64 would be float64, which holds no address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ROW_WORDS = 6
#: Of a warp.
LANES = 32
#: What `copy` and `copy_4` exist for, bytes.
WIDTHS = (16, 8, 4, 2, 1)

_ROW_BYTES = np.uint64(8 * ROW_WORDS)
# Within a row, bytes; _STRIDE from either side's address.
_STRIDE, _TARGET, _BLOCK_BYTES, _FIRST_CHUNK = (np.uint64(8 * word) for word in (1, 2, 4, 5))
_0, _1, _2, _3, _4, _8, _16 = (np.uint64(n) for n in (0, 1, 2, 3, 4, 8, 16))

Kernel = Callable[..., None]


@dataclass(frozen=True)
class Primitives:
    """What a target of compilation brings. Addresses are multiples of the width.

    load_word(address): the word there.
    copy[width](target, source): one word of `width` bytes.
    copy_4[width](target, source, step): four of them, `step` bytes apart, all loaded before the first is stored: so
        many are under way at once, on a link whose answers take microseconds.
    """

    load_word: Any
    copy: Mapping[int, Any]
    copy_4: Mapping[int, Any]


#: What a launch passes, in this order; worker to lanes follow from the grid.
PARAMETERS = (
    "layers_at",
    "layers",
    "chunks",
    "chunk_bytes",
    "source_ids_at",
    "target_ids_at",
    "pairs",
    "source_shift",
    "target_shift",
    "source_first",
    "target_first",
)


def kernels(decorate: Callable[[Any], Any], primitives: Primitives) -> dict[str, Kernel]:
    """The ladder, compiled by `decorate`. All have one signature: PARAMETERS, then worker, workers, lane, lanes.

    Each of `workers` takes its share of the pairs, each of `lanes` its share of what a worker has in hand. No lane
    waits for another, so they may run in any order.
    """
    load_word = primitives.load_word
    share_1 = decorate(_share(1, primitives))
    copy_span, layer_of = _span_copier(decorate, primitives), _layer_finder(decorate, load_word)

    @decorate
    def block_at(place: Any, ids_at: Any, first: Any, pair: Any) -> Any:
        """Address of the pair's block on the side whose address and stride are at `place`."""
        block = first + pair if ids_at == _0 else load_word(ids_at + pair * _8)
        return load_word(place) + block * load_word(place + _STRIDE)

    @decorate
    def warp_a_chunk(
        layers_at: Any,
        layers: Any,
        chunks: Any,
        chunk_bytes: Any,
        source_ids_at: Any,
        target_ids_at: Any,
        pairs: Any,
        source_shift: Any,
        target_shift: Any,
        source_first: Any,
        target_first: Any,
        worker: Any,
        workers: Any,
        lane: Any,
        lanes: Any,
    ) -> None:
        unit = worker
        while unit < pairs * chunks:
            pair = unit // chunks
            chunk = unit - pair * chunks
            row = layer_of(layers_at, layers, chunk)
            offset = (chunk - load_word(row + _FIRST_CHUNK)) * chunk_bytes
            size = min(chunk_bytes, load_word(row + _BLOCK_BYTES) - offset)
            source = block_at(row, source_ids_at, source_first, pair) + source_shift + offset
            target = block_at(row + _TARGET, target_ids_at, target_first, pair) + target_shift + offset
            copy_span(target, source, size, lane, lanes)
            unit += workers

    @decorate
    def thread_a_block(
        layers_at: Any,
        layers: Any,
        chunks: Any,
        chunk_bytes: Any,
        source_ids_at: Any,
        target_ids_at: Any,
        pairs: Any,
        source_shift: Any,
        target_shift: Any,
        source_first: Any,
        target_first: Any,
        worker: Any,
        workers: Any,
        lane: Any,
        lanes: Any,
    ) -> None:
        unit = worker * lanes + lane
        while unit < pairs * layers:
            pair = unit // layers
            row = layers_at + (unit - pair * layers) * _ROW_BYTES
            source = block_at(row, source_ids_at, source_first, pair) + source_shift
            target = block_at(row + _TARGET, target_ids_at, target_first, pair) + target_shift
            share_1(target, source, load_word(row + _BLOCK_BYTES), _0, _1)
            unit += workers * lanes

    return {"thread_a_block": thread_a_block, "warp_a_chunk": warp_a_chunk}


def _layer_finder(decorate: Callable[[Any], Any], load_word: Any) -> Any:
    @decorate
    def layer_of(layers_at: Any, layers: Any, chunk: Any) -> Any:
        """Address of the row of the last layer whose first chunk is not beyond `chunk`."""
        low, high = _0, layers
        while high - low > _1:
            middle = (low + high) // _2
            if load_word(layers_at + middle * _ROW_BYTES + _FIRST_CHUNK) <= chunk:
                low = middle
            else:
                high = middle
        return layers_at + low * _ROW_BYTES

    return layer_of


def _span_copier(decorate: Callable[[Any], Any], primitives: Primitives) -> Any:
    share_16, share_8, share_4, share_2, share_1 = (decorate(_share(width, primitives)) for width in WIDTHS)

    @decorate
    def widest(target: Any, source: Any) -> Any:
        """The widest word for which both addresses are equally far from being aligned, bytes."""
        differing = (target ^ source) | _16
        return differing & (~differing + _1)

    @decorate
    def copy_span(target: Any, source: Any, size: Any, lane: Any, lanes: Any) -> None:
        """This lane's share of `size` bytes: single bytes up to where both addresses are aligned, words, the tail."""
        width = widest(target, source)
        head = min(size, (_0 - target) & (width - _1))
        words = (size - head) // width
        done = head + words * width
        share_1(target, source, head, lane, lanes)
        if width == _16:
            share_16(target + head, source + head, words, lane, lanes)
        elif width == _8:
            share_8(target + head, source + head, words, lane, lanes)
        elif width == _4:
            share_4(target + head, source + head, words, lane, lanes)
        elif width == _2:
            share_2(target + head, source + head, words, lane, lanes)
        else:
            share_1(target + head, source + head, words, lane, lanes)
        share_1(target + done, source + done, size - done, lane, lanes)

    return copy_span


def _share(width: int, primitives: Primitives) -> Any:
    """This lane's share of `words` words of `width` bytes."""
    copy, copy_4, bytes_a_word = primitives.copy[width], primitives.copy_4[width], np.uint64(width)

    def share(target: Any, source: Any, words: Any, lane: Any, lanes: Any) -> None:
        i = lane
        while i + _3 * lanes < words:
            copy_4(target + i * bytes_a_word, source + i * bytes_a_word, lanes * bytes_a_word)
            i += _4 * lanes
        while i < words:
            copy(target + i * bytes_a_word, source + i * bytes_a_word)
            i += lanes

    return share
