"""Engine copies: one a run and layer, or one 2-D copy a run where evenly spaced layers make that fewer calls.

The ladder's first step. It is FastDeploy's way, whose host cost of about 3 us a copy (cuMemcpyAsync) it pays
once a run instead of once a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver import Driver, EntryPoints, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.plan import Plan
from numba_kvswap.submit import END_STATUS, FAILED_CALL, FAILED_LAYER, FAILED_RUN, copy_runs
from numba_kvswap.transports import Marker, Submission

# CUmemorytype, from cuda.h
_HOST, _DEVICE = 1, 2


def submit(plan: Plan, pair: CachePair, direction: Direction, stream: int, start: Event, end: Event) -> Submission:
    """Put the copies of `plan` on `stream`, between records of `start` and `end`; see the package's docstring."""
    groups, driver = pair.groups, pair.driver
    out = direction == "out"
    failed = np.zeros(4, np.int64)
    with driver.uninterrupted():
        status = copy_runs(
            driver.entry_points.words,
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
    return _submission(driver, status, failed)


def _submission(driver: Driver, status: int, failed: npt.NDArray[np.int64]) -> Submission:
    layer, run, end_status = int(failed[FAILED_LAYER]), int(failed[FAILED_RUN]), int(failed[END_STATUS])
    call, name = EntryPoints.CALLS[failed[FAILED_CALL]], driver.result_name(status)
    marker: Marker = "stream" if end_status else "event"
    if status and layer < 0:
        return Submission(
            "nothing",
            KVSwapDriverError(call, name, advice="Nothing was copied; is the stream alive, and of this device?"),
        )
    if status:
        advice = "The targets of this swap hold undefined bytes; nothing else was touched"
        return Submission(marker, KVSwapDriverError(call, name, layer=layer, run=run, advice=advice))
    if end_status:
        advice = "The copies are on the stream, but no event marks their end; synchronize the stream"
        return Submission(marker, KVSwapDriverError("cuEventRecord", driver.result_name(end_status), advice=advice))
    return Submission(marker)
