"""Engine copies: one a run and layer, or one 2-D copy a run where evenly spaced layers make that fewer calls.

The ladder's first step. It is FastDeploy's way, whose host cost of about 3 us a copy (cuMemcpyAsync) it pays
once a run instead of once a block.
"""

from __future__ import annotations

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.plan import Plan
from numba_kvswap.submit import FAILED_CALL, FAILED_LAYER, FAILED_RUN, copy_runs

NAME = "copies"

_CALLS = ("cuMemcpyAsync", "cuMemcpy2DAsync")
# CUmemorytype, from cuda.h
_HOST, _DEVICE = 1, 2


def submit(plan: Plan, pair: CachePair, direction: Direction, stream: int) -> None:
    """Put the copies of `plan` on `stream`. Raises KVSwapDriverError; copies before the failing one are on it."""
    groups, driver = pair.groups, pair.driver
    out = direction == "out"
    failed = np.zeros(3, np.int64)
    status = copy_runs(
        np.array([driver.entry_points.memcpy_async, driver.entry_points.memcpy_2d_async], np.uint64),
        np.uint64(stream),
        np.array([_DEVICE, _HOST] if out else [_HOST, _DEVICE], np.uint64),
        np.uint64(driver.pitch_bytes_max),
        plan.run_source,
        plan.run_target,
        plan.run_blocks,
        groups.device if out else groups.host,
        groups.host if out else groups.device,
        groups.block_bytes,
        groups.layers,
        failed,
    )
    if status:
        raise KVSwapDriverError(
            _CALLS[failed[FAILED_CALL]],
            driver.result_name(status),
            layer=int(failed[FAILED_LAYER]),
            run=int(failed[FAILED_RUN]),
            advice="The targets of this swap hold undefined bytes; nothing else was touched",
        )
