"""A kernel between the blocks and a ring in device memory, engine copies between the ring and the host.

The engines need long copies, and get them where a block's layers, and the blocks of neighbouring slots, lie side by
side on the host: in block-major pools. The kernel needs tens of microseconds for what the link needs hundreds, so work
beside it hardly notices. Where others hold all multiprocessors a swap out waits for them with its first kernel, a swap
in with its last; while the others wait, the link has more slots' bytes to carry. It takes 128 MiB of device memory a
way, once a process.

A swap waits for those put on the ring before it, whatever their streams: where one stands behind a long kernel, so do
they.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.device_tools import Ring, device_tools
from numba_kvswap.ids import Ids, Words
from numba_kvswap.kernels.rows import CHUNK_BYTES, layer_rows
from numba_kvswap.layers import Layer, StartsAndStrides, starts_and_strides
from numba_kvswap.memory import DriverMemory
from numba_kvswap.plan_loops import order_of, order_of_briefly
from numba_kvswap.submit import (
    BATCH_COPIES,
    FAILED_WORDS,
    PIECE_BYTES,
    PIECE_HOST,
    PIECE_OFFSET,
    PIECE_STRIDE,
    RING_COPIES,
    RING_KERNELS,
    RING_ROWS,
    ring_over_runs,
    ring_over_runs_briefly,
)
from numba_kvswap.transports import Job, Submission, outcome

# Four CUDA blocks for each of an H200's 132 multiprocessors: the kernel must be over soon once it runs beside others.
_CUDA_BLOCKS, _THREADS = 528, 256
_BRIEF_RUNS_MAX = 4096
# Submitted with the GIL held: some 8 calls a slot.
_BRIEF_SLOTS = 8


@dataclass(frozen=True)
class Pieces:
    """Layers that lie side by side in every host block, and so in the ring, and travel as one.

    words: uint64 [pieces, 4], see PIECE_HOST in submit.py.
    rows: blocks that fit one slot. offsets: where each layer's block 0 lies in a slot, and how far apart blocks are.
    """

    words: Words
    rows: int
    offsets: StartsAndStrides


@dataclass(frozen=True)
class _Prepared:
    """What is launched for a pair of caches, one way. layer_rows: keeps what `launch` points to."""

    launch: Words
    pieces: Pieces
    layer_rows: DriverMemory


def why_not(pair: CachePair) -> str:
    """Why the ring cannot take these caches' blocks."""
    if pair.why_ordered:
        return pair.why_ordered
    slot_bytes = pair.driver.ring_slot_bytes
    if pair.block_bytes > slot_bytes:
        return f"a block has {pair.block_bytes} bytes over all layers; a slot of the ring holds {slot_bytes}"
    return device_tools(pair.driver, pair.device_cache.device).why_no_kernels


def make_ready(pair: CachePair, direction: Direction) -> None:
    """The pair's table of layers on the device, and the ring of that way."""
    _prepared(pair, direction)
    device_tools(pair.driver, pair.device_cache.device).ring(direction)


def submit(job: Job) -> Submission:
    """Put the job on the ring, joined to its stream; see the package's docstring."""
    plan, driver = job.plan, job.pair.driver
    ring, arguments = ready_for(job, plan.run_source, plan.run_target, plan.run_blocks)
    failed = np.zeros(FAILED_WORDS, np.int64)
    with ring.lock, driver.uninterrupted():
        loop = ring_over_runs_briefly if is_brief(job.pair, job.direction, plan.blocks) else ring_over_runs
        status = loop(*(*arguments, failed))
    return outcome(job, status, failed, streams=ring.words[[RING_KERNELS, RING_COPIES]].tolist())


def ready_for(job: Job, source: Ids, target: Ids, blocks: Ids) -> tuple[Ring, tuple[Any, ...]]:
    """The ring for some of a job's runs, and what ring_over_runs takes for them, all but `failed`."""
    pair, out = job.pair, job.direction == "out"
    tools = device_tools(pair.driver, pair.device_cache.device)
    prepared, pairs = _prepared(pair, job.direction), int(blocks.sum())
    ring, table = tools.ring(job.direction), tools.tables.lend(pairs)
    job.keep(table)
    job.keep(prepared)
    words = ring.words.copy()
    words[RING_ROWS] = prepared.pieces.rows
    device, host = (source, target) if out else (target, source)
    return ring, (
        pair.driver.entry_points.words,
        np.uint64(job.stream),
        job.events,
        out,
        words,
        ring.slots,
        ring.chunks_before,
        prepared.launch,
        prepared.pieces.words,
        pair.host_cuts,
        host_order(host),
        device,
        host,
        blocks,
        table.words,
        *table.read_at(pairs),
    )


def host_order(host: Ids) -> Ids:
    """The runs by ascending host block."""
    return (order_of_briefly if host.size <= _BRIEF_RUNS_MAX else order_of)(host)


def is_brief(pair: CachePair, direction: Direction, blocks: int) -> bool:
    """Whether so many blocks are put on the ring so soon that the GIL need not be given up."""
    pieces = _prepared(pair, direction).pieces
    return blocks * len(pieces.words) <= BATCH_COPIES and blocks <= _BRIEF_SLOTS * pieces.rows


def pieces_of(layers: tuple[Layer, ...], slot_bytes: int) -> Pieces:
    """How host layers merge into pieces, and where these lie in a slot: piece after piece, each with all its rows."""
    first_layers = [
        index for index in range(len(layers)) if index == 0 or not _side_by_side(layers[index - 1], layers[index])
    ]
    ends = [*first_layers[1:], len(layers)]
    sizes = [sum(layer.block_bytes for layer in layers[a:b]) for a, b in zip(first_layers, ends, strict=True)]
    rows = slot_bytes // sum(sizes)
    words = np.zeros((len(sizes), 4), np.uint64)
    words[:, PIECE_HOST] = [layers[index].address for index in first_layers]
    words[:, PIECE_STRIDE] = [layers[index].block_stride_bytes for index in first_layers]
    words[:, PIECE_BYTES] = sizes
    starts = [rows * before for before in accumulate([0, *sizes[:-1]])]
    words[:, PIECE_OFFSET] = starts
    offsets = []
    for start, size, a, b in zip(starts, sizes, first_layers, ends, strict=True):
        within = accumulate([0, *(layer.block_bytes for layer in layers[a : b - 1])])
        offsets += [(start + offset, size) for offset in within]
    return Pieces(words, rows, offsets)


def _side_by_side(one: Layer, other: Layer) -> bool:
    """And within one block's stride: beyond it another allocation may begin, which a copy must not reach into."""
    side_by_side = other.address == one.address + one.block_bytes < one.address + one.block_stride_bytes
    return side_by_side and other.block_stride_bytes == one.block_stride_bytes


def _prepared(pair: CachePair, direction: Direction) -> _Prepared:
    return pair.prepared(("ring", direction), lambda: _prepare(pair, direction))


def _prepare(pair: CachePair, direction: Direction) -> _Prepared:
    tools = device_tools(pair.driver, pair.device_cache.device)
    pieces = pieces_of(pair.host_cache.layers, pair.driver.ring_slot_bytes)
    device = starts_and_strides(pair.device_cache.layers)
    sizes = [layer.block_bytes for layer in pair.device_cache.layers]
    sides = (device, pieces.offsets) if direction == "out" else (pieces.offsets, device)
    rows, chunks = layer_rows(*sides, sizes)
    memory = tools.on_device(rows)
    launch = (tools.kernel, _CUDA_BLOCKS, _THREADS, memory.address, len(sizes), chunks, CHUNK_BYTES)
    return _Prepared(np.array(launch, np.uint64), pieces, memory)
