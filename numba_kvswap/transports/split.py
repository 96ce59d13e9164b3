"""The ring for most of a swap, and batches for as much as would else wait with it for other kernels to end.

Where others hold all multiprocessors, the ring's first kernel out, and its last one in, waits for them, and the link
with it: up to 1.65 ms a swap beside a bf16 8192^3 GEMM on an H200. Engine copies need no multiprocessor: they fill that
gap. With nothing beside it a split swap of 256 MiB takes as long as the ring's at blocks of 16 KiB up, 1.13 and 1.26
times as long at 4 KiB, and short ones, which go all by batches, longer than these alone. The memory is the ring's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.ids import Ids
from numba_kvswap.submit import (
    FAILED_LAYER,
    FAILED_RUN,
    FAILED_WORDS,
    RING_BATCHES,
    RING_COPIES,
    RING_KERNELS,
    split_over_runs,
    split_over_runs_briefly,
)
from numba_kvswap.transports import Job, Submission, batch, outcome, ring

_RING_STREAMS = [RING_KERNELS, RING_COPIES, RING_BATCHES]


def why_not(pair: CachePair) -> str:
    """What keeps the ring from these caches."""
    return ring.why_not(pair)


def make_ready(pair: CachePair, direction: Direction) -> None:
    """What the ring needs."""
    ring.make_ready(pair, direction)


def submit(job: Job) -> Submission:
    """Put the job on the ring and beside it, joined to its stream; see the package's docstring."""
    pair, driver, out = job.pair, job.pair.driver, job.direction == "out"
    by_ring, by_batches = _parts(job)
    of_ring, arguments = ring.ready_for(job, by_ring.source, by_ring.target, by_ring.blocks)
    sides, failed = batch.sides_of(pair), np.zeros(FAILED_WORDS, np.int64)
    brief = batch.is_brief(pair, by_batches.all_blocks) and ring.is_brief(pair, job.direction, by_ring.all_blocks)
    loop = split_over_runs_briefly if brief else split_over_runs
    beside = (
        by_batches.source,
        by_batches.target,
        by_batches.blocks,
        sides.device if out else sides.host,
        sides.host if out else sides.device,
        sides.block_bytes,
        sides.blocks_first,
    )
    with of_ring.lock, driver.uninterrupted():
        status = loop(*(*arguments, *beside, failed))
    if failed[FAILED_LAYER] >= 0:  # of a batch: the ring names no run
        failed[FAILED_RUN] = by_batches.runs[failed[FAILED_RUN]]
    return outcome(job, status, failed, streams=of_ring.words[_RING_STREAMS].tolist())


@dataclass(frozen=True)
class _Part:
    """Some of the runs of `CachePair.runs`. runs: which ones; of the last or the first one perhaps a part."""

    runs: Ids
    source: Ids
    target: Ids
    blocks: Ids

    @property
    def all_blocks(self) -> int:
        return int(self.blocks.sum())


def _parts(job: Job) -> tuple[_Part, _Part]:
    """The ring's part and the batches', which has the last host blocks: as many bytes as the driver says, or all."""
    pair = job.pair
    source, target, blocks = pair.runs(job.plan, job.direction)
    order = ring.host_order(target if job.direction == "out" else source)
    ends = np.cumsum(blocks[order])
    ring_blocks = max(0, job.plan.blocks - pair.driver.split_batch_bytes // pair.block_bytes)
    whole = int(np.searchsorted(ends, ring_blocks, "right"))  # runs that the ring has whole
    head = ring_blocks - int(ends[whole - 1]) if whole else ring_blocks  # and its blocks of the run that is cut
    first, last = order[: whole + (head > 0)], order[whole:]
    first_blocks, last_blocks, skipped = blocks[first], blocks[last], np.zeros(last.size, np.int64)
    if head:
        first_blocks[-1], last_blocks[0], skipped[0] = head, last_blocks[0] - head, head
    return (
        _Part(first, source[first], target[first], first_blocks),
        _Part(last, source[last] + skipped, target[last] + skipped, last_blocks),
    )
