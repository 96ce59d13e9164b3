"""Puts plans between two caches on streams: by which transport, and what must be known of a swap before it runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.choice import Chooser, Favor
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.overlaps import Overlaps
from numba_kvswap.plan import Plan
from numba_kvswap.transfer import Transfer
from numba_kvswap.transports import Job
from numba_kvswap.transports.named import TRANSPORTS, Transport, transport_named


class Submitter:
    """What moves plans between the caches of `pair`, which hold the layers `model_layers` of the model.

    All of it needs the current context of the pair's device. Raises ValueError for a transport that is not known, or
    cannot move these caches.
    """

    def __init__(self, pair: CachePair, model_layers: range, transport: str, favor: Favor) -> None:
        self.pair, self.model_layers, self._transport = pair, model_layers, transport
        self.traffic = device_tools(pair.driver, pair.device_cache.device).traffic
        self.chooser: Chooser | None = None
        if transport == "auto":
            self.chooser = Chooser(pair, favor)
        elif why_not := transport_named(transport).why_not(pair):
            raise ValueError(f"transport is {transport!r}, which cannot move these caches: {why_not}")

    def ready_transport(self, plan: Plan, direction: Direction, stream: int) -> tuple[str, Transport]:
        """The transport for a plan, with all it needs made. "auto" does without one whose memory is not to be had."""
        while True:
            name = self._transport
            if self.chooser is not None:
                name = self.chooser.choose(plan, direction, both_ways=self.traffic.both_ways(direction, stream))
            transport = TRANSPORTS[name]
            try:
                transport.make_ready(self.pair, direction)
            except KVSwapDriverError as error:
                if self.chooser is None or not self.chooser.exclude(name, str(error)):
                    raise
            else:
                return name, transport


def submit(
    submitters: Sequence[Submitter], plan: Plan, direction: Direction, stream: int, overlaps: Overlaps
) -> Transfer:
    """Put a plan on `stream`, by each of the submitters in turn; the transfer of the last, which stands for all.

    Needs the current context. Raises ValueError where the host cache is closed, and KVSwapDriverError.
    """
    ways = [each.ready_transport(plan, direction, stream) for each in submitters]
    parts: list[Transfer] = []
    submitting = threading.Lock()
    for each, (name, _transport) in zip(submitters, ways, strict=True):
        earlier = tuple(parts) if each is submitters[-1] else ()
        parts.append(Transfer(plan, each.pair, direction, stream, name, each.model_layers, submitting, earlier))
    jobs = [
        Job(plan, each.pair, direction, stream, part.events.words, part.keep)
        for each, part in zip(submitters, parts, strict=True)
    ]
    pair, error = submitters[0].pair, None
    try:
        with overlaps.lock, submitting:
            # Known before they are submitted, so that a close in another thread waits for them, or is seen here.
            for part in parts:
                pair.driver.in_flight.add(part, part.queue)
            submitters[0].traffic.add(parts[-1])  # within, or whoever looks would take it for landed
            pair.host_cache.check_open()
            overlaps.order(parts[0], plan)
            for part, job, (_name, transport) in zip(parts, jobs, ways, strict=True):
                overlaps.add(part, plan)
                part.marker = "stream"  # should the next line be interrupted, who knows what it has put there
                submission = transport.submit(job)
                part.marker, error = submission.marker, submission.error
                if error is not None:
                    break
    finally:
        for part, job in zip(parts, jobs, strict=True):
            if part.marker == "stream" and not job.unjoined:
                part.mark_again()
    if error is not None:
        try:
            raise error
        finally:
            del error, submission, part, parts, earlier, job, jobs, pair  # the error's traceback would hold them
    return parts[-1]
