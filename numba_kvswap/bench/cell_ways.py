"""Ways to make a cell's swap. Each does it once, times it, and waits for the bytes outside of the host's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Protocol

from numba_kvswap.bench.arena import PlacedSwap
from numba_kvswap.bench.c_loop import CLoop, LaunchSwap
from numba_kvswap.bench.copy_list import CopyList, copy_list
from numba_kvswap.bench.launch_ways import A_LAUNCH, LAUNCH_C, LaunchFromC, PreparedLaunch
from numba_kvswap.bench.named_ways import CHOICES, swapper_by
from numba_kvswap.bench.places import Move
from numba_kvswap.bench.ways import C_LOOP, Sample, timed_in_c
from numba_kvswap.cache_pair import CachePair
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.link import DeviceSpan
from numba_kvswap.plan import Plan
from numba_kvswap.transfer import SOON_BYTES, Transfer


@dataclass(frozen=True)
class Taken:
    """One swap. host_us: until the call, or both calls, returned. landed_us: from the call to the last byte, by the
    host's clock. device_us: from when the stream reached the swap to its last byte, by the device's."""

    host_us: float
    landed_us: float
    device_us: float


Wait = Callable[[], object]


class CellWay(Protocol):
    name: str
    #: What a choosing way took in its last run, and what it expected; "" and None for the others.
    chosen: str
    expected_us: float | None

    def run(self) -> Taken:
        """Swap once and wait for it. Needs the current context of device 0."""

    def put(self) -> Wait:
        """Swap once and return before it has landed; what is returned waits for that."""


class SwapWay:
    """``Swapper.swap_out`` and ``swap_in`` with NumPy ids: planned, checked, submitted. `way` names the transport.

    `streams`: one a move. Both ways at once are two calls, one after the other, on two streams.
    """

    def __init__(self, way: str, placed: PlacedSwap, streams: Sequence[int]) -> None:
        self.name = way
        swapper = swapper_by(placed.device_cache, placed.host_cache, way)
        self._calls = [
            (swapper.swap_out if move.direction == "out" else swapper.swap_in, move.device_ids, move.host_ids, stream)
            for move, stream in zip(placed.moves, streams, strict=True)
        ]
        self._span = DeviceSpan(placed.arena.driver, streams) if len(self._calls) > 1 else None
        self.chosen, self._chooses = "", way in CHOICES
        self.expected_us: float | None = None
        if self._chooses:
            choices = [swapper.explain(plan_of(move), move.direction) for move in placed.moves]
            self.expected_us = max(each.expected_s[each.chosen] for each in choices) * 1e6

    def run(self) -> Taken:
        if self._span:
            self._span.begin()
        start = perf_counter_ns()
        transfers = self._submitted()
        returned = perf_counter_ns()
        if self._span:
            self._span.end()
        for transfer in transfers:
            transfer.wait()
        landed = perf_counter_ns()
        if self._chooses:
            self.chosen = " + ".join(dict.fromkeys(transfer.transport for transfer in transfers))
        device_s = self._span.seconds() if self._span else transfers[0].seconds
        return Taken((returned - start) / 1e3, (landed - start) / 1e3, device_s * 1e6)

    def put(self) -> Wait:
        transfers = self._submitted()

        def wait() -> None:
            for transfer in transfers:
                transfer.wait()

        return wait

    def _submitted(self) -> list[Transfer]:
        return [swap(device_ids, host_ids, stream) for swap, device_ids, host_ids, stream in self._calls]


class LoopWay:
    """FastDeploy's loop in C: merged runs, one cuMemcpyAsync a run and layer; no plan, no checks.

    Both ways at once are one loop after the other, on two streams.
    """

    name, chosen = C_LOOP, ""
    expected_us: float | None = None

    def __init__(self, loop: CLoop, placed: PlacedSwap, streams: Sequence[int]) -> None:
        self._loop, self._driver = loop, placed.arena.driver
        self._parts = [(_copies(placed, move), stream) for move, stream in zip(placed.moves, streams, strict=True)]
        self._span = DeviceSpan(self._driver, streams)

    def run(self) -> Taken:
        self._span.begin()
        start = perf_counter_ns()
        status, host_ns = self._submit()
        self._span.end()
        self._span.wait()
        landed = perf_counter_ns()
        self._check(status)
        return Taken(host_ns / 1e3, (landed - start) / 1e3, self._span.seconds() * 1e6)

    def put(self) -> Wait:
        status, _host_ns = self._submit()
        span = DeviceSpan(self._driver, [stream for _copies, stream in self._parts])
        span.end()
        self._check(status)
        return span.wait

    def _submit(self) -> tuple[int, int]:
        """The first status that is not 0, else 0, and the loops' own nanoseconds."""
        memcpy_async, host_ns = self._driver.entry_points.memcpy_async, 0
        for copies, stream in self._parts:
            status, part_ns = self._loop(memcpy_async, copies, stream)
            host_ns += part_ns
            if status:
                return status, host_ns
        return 0, host_ns

    def _check(self, status: int) -> None:
        if status:
            raise KVSwapDriverError("cuMemcpyAsync", self._driver.result_name(status))


class LaunchWay:
    """The driver calls of the kernel transport for the cell's one move, from C and prepared beforehand; waited for as
    a transfer is. No transport: the floor under what a swap costs on this host."""

    name, chosen = LAUNCH_C, ""
    expected_us: float | None = None

    def __init__(self, loop: LaunchSwap, placed: PlacedSwap, streams: Sequence[int]) -> None:
        (move,), (self._stream,) = placed.moves, streams
        self._driver = placed.arena.driver
        pair = CachePair(placed.device_cache, placed.host_cache)
        prepared = PreparedLaunch(pair, plan_of(move), move.direction)
        self._submit, self._events = LaunchFromC(loop, prepared, self._stream).submit, prepared.events
        self._wait = partial(self._events.synchronize, soon=placed.place.bytes <= SOON_BYTES)

    def run(self) -> Taken:
        sample = self._timed(self._wait)
        return Taken(sample.host_us, sample.landed_s * 1e6, self._events.seconds() * 1e6)

    def put(self) -> Wait:
        self._timed(_not_yet)
        return self._wait

    def _timed(self, wait: Wait) -> Sample:
        return timed_in_c(self._driver, self._stream, A_LAUNCH, self._submit, wait)


def _not_yet() -> None:
    """In place of a wait."""


def plan_of(move: Move) -> Plan:
    ids = (move.device_ids, move.host_ids)
    return Plan(*(ids if move.direction == "out" else ids[::-1]))


def _copies(placed: PlacedSwap, move: Move) -> CopyList:
    device, host = placed.device_cache.layers, placed.host_cache.layers
    return copy_list(plan_of(move), *((device, host) if move.direction == "out" else (host, device)))
