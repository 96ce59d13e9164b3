"""Engine copies: one a run and layer, or one 2-D copy a run where evenly spaced layers make that fewer calls.

The ladder's first step. It is FastDeploy's way, whose host cost of about 3 us a copy (cuMemcpyAsync) it pays
once a run instead of once a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.plan import Plan
from numba_kvswap.submit import END_STATUS, FAILED_CALL, FAILED_LAYER, FAILED_RUN, copy_runs

NAME = "copies"

_CALLS = ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuEventRecord")
# CUmemorytype, from cuda.h
_HOST, _DEVICE = 1, 2


def submit(plan: Plan, pair: CachePair, direction: Direction, stream: int, start: Event, end: Event) -> None:
    """Put the copies of `plan` on `stream`, between records of `start` and `end`; see the package's docstring."""
    groups, driver = pair.groups, pair.driver
    entry_points = driver.entry_points
    out = direction == "out"
    failed = np.zeros(4, np.int64)
    status = copy_runs(
        np.array([entry_points.memcpy_async, entry_points.memcpy_2d_async, entry_points.event_record], np.uint64),
        np.uint64(stream),
        np.array([start.handle, end.handle], np.uint64),
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
    if failed[END_STATUS]:
        driver.stream_synchronize(stream)  # without its end nobody could tell when the memory is free again
    if status:
        raise _error(driver, status, failed)
    if failed[END_STATUS]:
        raise KVSwapDriverError(
            "cuEventRecord", driver.result_name(int(failed[END_STATUS])), advice="All bytes of this swap have landed"
        )


def _error(driver: Driver, status: int, failed: npt.NDArray[np.int64]) -> KVSwapDriverError:
    layer, run = int(failed[FAILED_LAYER]), int(failed[FAILED_RUN])
    call, name = _CALLS[failed[FAILED_CALL]], driver.result_name(status)
    if layer < 0:
        return KVSwapDriverError(call, name, advice="Nothing was copied")
    advice = "The targets of this swap hold undefined bytes; nothing else was touched"
    return KVSwapDriverError(call, name, layer=layer, run=run, advice=advice)
