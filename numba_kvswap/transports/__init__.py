"""How a plan's bytes travel: one short file a transport.

A transport is a module with a function

    submit(plan: Plan, pair: CachePair, direction: Direction, stream: int, start: Event, end: Event) -> Submission

which puts the plan's copies on `stream`, after a record of `start` and before one of `end`, and returns at once.

It may rely on everything having been checked, on each target being named once, and on the device's context being
current. It must leave bytes outside the plan's targets alone and move the same bytes as the reference for any plan
and pair. When a driver call fails it says so in what it returns, naming layer and run where it can; `end` is recorded
all the same, behind what was put on the stream before the failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from numba_kvswap.driver import KVSwapDriverError

#: What tells when everything that was submitted has landed: the end event; the stream, where the event could not be
#: recorded; or nothing needs to, since nothing was put on the stream.
Marker = Literal["event", "stream", "nothing"]


@dataclass(frozen=True)
class Submission:
    """error: what failed, None where nothing did; less than the plan was then put on the stream."""

    marker: Marker
    error: KVSwapDriverError | None = None
