"""How a plan's bytes travel: one short file a transport.

A transport is a module with three functions:

    why_not(pair) -> str
        Why it cannot move blocks between these two caches here, "" where it can.
    make_ready(pair, direction) -> None
        Make what it needs once a pair or once a device. Raises KVSwapDriverError where that is not to be had.
    submit(job) -> Submission
        Put the job's copies on its stream, between records of its first and its second event, and return at once.

It may rely on everything having been checked, on each target being named once, and on the device's context being
current. It must leave bytes outside the plan's targets alone and move the same bytes as the reference for any plan
and pair. When a driver call fails it says so in what it returns, naming layer and run where it can; the second event
is recorded all the same, behind what was put on the stream before the failure. What a running copy reads, it passes to
`keep` before it submits anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver import Driver, EntryPoints, KVSwapDriverError
from numba_kvswap.ids import Integers, Words
from numba_kvswap.plan import Plan
from numba_kvswap.submit import BEGUN, END_CALL, END_STATUS, FAILED_CALL, FAILED_LAYER, FAILED_RUN

#: What tells when everything that was submitted has landed: the end event; the stream, where the event could not be
#: recorded; or nothing needs to, since nothing was put on the stream.
Marker = Literal["event", "stream", "nothing"]
#: Submitting no more than so many driver calls, some 100 us of them, holds the GIL.
BRIEF_CALLS = 64


@dataclass(frozen=True)
class Submission:
    """error: what failed, None where nothing did; less than the plan was then put on the stream."""

    marker: Marker
    error: KVSwapDriverError | None = None


@dataclass(slots=True)  # not frozen, which would make making one take twice as long
class Job:
    """One swap to be submitted. events: handles of two, to be recorded before and after. keep: what it is given stays
    alive until the swap has landed. unjoined: whether parts of it may be on streams that its own does not wait for, so
    that nothing recorded there would tell when it has landed."""

    plan: Plan
    pair: CachePair
    direction: Direction
    stream: int
    events: Words
    keep: Callable[[object], None]
    unjoined: bool = False


def outcome(job: Job, status: int, failed: Integers, streams: Iterable[int] = ()) -> Submission:
    """What a loop of submit.py left in `failed`, and the status it returned, in words.

    failed: its run is one of `CachePair.runs`. streams: those besides the job's own that hold parts of it. Where they
    could not be joined to that one they are waited for here: nothing on it would tell of them.
    """
    driver = job.pair.driver
    end_status = int(failed[END_STATUS])
    if not status and not end_status:
        return _DONE
    if end_status:
        job.unjoined = True  # and so it stays where a signal cuts the wait short
        _wait_for(driver, streams)
        job.unjoined = False
    marker: Marker = "stream" if end_status else "event"
    undefined = tuple(job.plan.target_ids.tolist())
    if not status:
        advice = "The copies are on the stream, but no event marks their end; synchronize the stream"
        call = EntryPoints.CALLS[failed[END_CALL]]
        result_name = driver.result_name(end_status)
        return Submission(marker, KVSwapDriverError(call, result_name, advice=advice, undefined_targets=undefined))
    call, name = EntryPoints.CALLS[failed[FAILED_CALL]], driver.result_name(status)
    if not failed[BEGUN]:
        advice = "Nothing was copied; is the stream alive, and of this device?"
        return Submission("nothing", KVSwapDriverError(call, name, advice=advice))
    layer, run = None, None
    if failed[FAILED_LAYER] >= 0:
        layer = job.pair.layers[int(failed[FAILED_LAYER])]
        run = job.pair.plans_run(job.plan, job.direction, int(failed[FAILED_RUN]))
    advice = "The targets of this swap hold undefined bytes; nothing else was touched"
    error = KVSwapDriverError(call, name, layer=layer, run=run, advice=advice, undefined_targets=undefined)
    return Submission(marker, error)


def _wait_for(driver: Driver, streams: Iterable[int]) -> None:
    for stream in streams:
        try:
            driver.stream_synchronize(stream)
        except KVSwapDriverError:  # no answer, or work that failed: then for all there is
            driver.synchronize()


_DONE = Submission("event")
