"""One kernel that reads and writes mapped pinned memory by itself, 16 bytes a thread at a time.

Near the link whatever the blocks' size, their place or their number, for next to no host time. But it takes
multiprocessors from the work beside it, and both ways at once it has two thirds of what the engines have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.device_tools import device_tools
from numba_kvswap.ids import Words
from numba_kvswap.kernels.rows import CHUNK_BYTES, layer_rows
from numba_kvswap.layers import starts_and_strides
from numba_kvswap.memory import DriverMemory
from numba_kvswap.submit import FAILED_WORDS, launch_over_runs, launch_over_runs_briefly
from numba_kvswap.transports import Job, Submission, outcome

# The smallest grid that is as fast as any out of 8 x 512 to 132 x 512 threads, at blocks of 4 KiB up, on an H200.
_CUDA_BLOCKS, _THREADS = 64, 256
# Of one run, whose first ids travel as parameters.
_NO_TABLE, _NOWHERE = np.empty(0, np.uint64), (np.uint64(0), False)
# Up to here the table is written and the kernel launched with the GIL held: some 10 us.
_BRIEF_PAIRS_MAX = 8192


@dataclass(frozen=True)
class Prepared:
    """What is launched for a pair of caches, one way. rows: keeps what `launch` points to."""

    launch: Words
    rows: DriverMemory


def why_not(pair: CachePair) -> str:
    """Why no kernel reaches these caches."""
    if pair.why_ordered:
        return pair.why_ordered
    if 0 in pair.mapped_addresses:
        layer = pair.host_cache.layers[pair.mapped_addresses.index(0)].name
        return f"{layer} is pinned but not mapped, so no kernel reaches it; register it with the DEVICEMAP flag"
    return device_tools(pair.driver, pair.device_cache.device).why_no_kernels


def make_ready(pair: CachePair, direction: Direction) -> None:
    """The pair's table of layers, on the device."""
    prepared_launch(pair, direction)


def submit(job: Job) -> Submission:
    """Put the job's kernel on its stream; see the package's docstring."""
    pair, plan, driver = job.pair, job.plan, job.pair.driver
    prepared = prepared_launch(pair, job.direction)
    job.keep(prepared)
    table, read_at = _NO_TABLE, _NOWHERE
    if plan.runs > 1:
        lent = device_tools(driver, pair.device_cache.device).tables.lend(2 * plan.pairs)
        job.keep(lent)
        table, read_at = lent.words, lent.read_at(plan.pairs)
    failed = np.zeros(FAILED_WORDS, np.int64)
    with driver.uninterrupted():
        status = (launch_over_runs_briefly if plan.pairs <= _BRIEF_PAIRS_MAX else launch_over_runs)(
            driver.entry_points.words,
            np.uint64(job.stream),
            job.events,
            prepared.launch,
            plan.run_source,
            plan.run_target,
            plan.run_blocks,
            table,
            *read_at,
            failed,
        )
    return outcome(job, status, failed)


def prepared_launch(pair: CachePair, direction: Direction) -> Prepared:
    """Worked out when first asked for. Needs the current context."""
    return pair.prepared(("kernel", direction), lambda: _prepare(pair, direction))


def _prepare(pair: CachePair, direction: Direction) -> Prepared:
    tools = device_tools(pair.driver, pair.device_cache.device)
    device = starts_and_strides(pair.device_cache.layers)
    host = starts_and_strides(pair.host_cache.layers, pair.mapped_addresses)
    sizes = [layer.block_bytes for layer in pair.device_cache.layers]
    rows, chunks = layer_rows(*((device, host) if direction == "out" else (host, device)), sizes)
    memory = tools.on_device(rows)
    launch = (tools.kernel, _CUDA_BLOCKS, _THREADS, memory.address, len(sizes), chunks, CHUNK_BYTES)
    return Prepared(np.array(launch, np.uint64), memory)
