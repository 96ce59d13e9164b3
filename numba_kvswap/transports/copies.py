"""Engine copies: one a run and layer, or one 2-D copy a run where evenly spaced layers make that fewer calls.

The ladder's first step. It is FastDeploy's way, whose host cost of about 3 us a copy (cuMemcpyAsync) it pays
once a run instead of once a block.
"""

from __future__ import annotations

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.submit import FAILED_WORDS, copy_runs, copy_runs_briefly
from numba_kvswap.transports import BRIEF_CALLS, Job, Submission, outcome

# CUmemorytype, from cuda.h
_HOST, _DEVICE = 1, 2
_OUT, _IN = np.array([_DEVICE, _HOST], np.uint64), np.array([_HOST, _DEVICE], np.uint64)


def why_not(pair: CachePair) -> str:
    """It moves whatever there is."""
    return ""


def make_ready(pair: CachePair, direction: Direction) -> None:
    """It needs nothing more."""


def submit(job: Job) -> Submission:
    """Put the job's copies on its stream; see the package's docstring."""
    pair, plan, out = job.pair, job.plan, job.direction == "out"
    groups, driver = pair.groups, pair.driver
    failed = np.zeros(FAILED_WORDS, np.int64)
    brief = plan.runs * len(pair.device_cache.layers) <= BRIEF_CALLS
    with driver.uninterrupted():
        status = (copy_runs_briefly if brief else copy_runs)(
            driver.entry_points.words,
            np.uint64(job.stream),
            job.events,
            _OUT if out else _IN,
            np.uint64(driver.pitch_bytes_max),
            *pair.runs(plan, job.direction),
            groups.device if out else groups.host,
            groups.host if out else groups.device,
            groups.block_bytes,
            groups.layers,
            failed,
        )
    return outcome(job, status, failed)
