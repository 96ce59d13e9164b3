"""The soak: made traces replayed one after the other while each driver call fails with some probability.

What fails is handled as a careful user would: look at what the error says is undefined, see that all else is as it was,
ask again. In the end every block is right, and nothing is left of anything.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache, Layout
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver
from numba_kvswap.ids import Ids
from numba_kvswap.layers import LayerBytes
from numba_kvswap.replay.content import count_mismatched_blocks
from numba_kvswap.replay.free_blocks import HOST_SLOTS
from numba_kvswap.replay.models import model_named
from numba_kvswap.replay.soak_report import ResidentMemory, SoakReport
from numba_kvswap.replay.stages import SimulatedStage
from numba_kvswap.replay.tiers import Placement, each_block
from numba_kvswap.replay.trace import ID_TOKENS, Request, made_trace
from numba_kvswap.swapper import Swapper
from numba_kvswap.transfer import Transfer
from numba_kvswap.transports.named import TRANSPORTS

_T = TypeVar("_T")

REQUESTS = 80
_DEVICE_BLOCKS, _HOST_BLOCKS, _BLOCK_TOKENS = 240, 500, 256
_WAYS = (*TRANSPORTS, "auto")
_LAYOUTS: tuple[Layout, ...] = ("block_major", "layer_major")
# At one failure in a hundred a call that fails so often in turn does not fail by chance.
_TRIES_MAX = 200
_SHOWN_EVERY_S = 30.0


def soak(minutes: float, fault_rate: float, seed: int, shown: Callable[[str], object] = print) -> SoakReport:
    """Replay until the time is up, each replay with a seed of its own, one after the other from `seed` on.

    fault_rate: the probability with which each driver call fails, while it is the library that calls. A round that ends
    otherwise than it should is the last. Only the memory of one replay is held at a time.
    """
    report = SoakReport(fault_rate, seed, ResidentMemory(minutes * 60))
    started, shown_s = perf_counter(), 0.0
    gc.collect()
    gc.freeze()  # or each of the collections to come would go through all that was compiled
    try:
        while report.well and (perf_counter() - started < minutes * 60 or not report.rounds):
            until = started + minutes * 60
            _round(seed + report.rounds, fault_rate, until, report)
            report.rounds += 1
            report.seconds = perf_counter() - started
            report.memory.sample(_resident_bytes(), report.seconds)
            if report.seconds >= shown_s:
                shown(report.line())
                shown_s = report.seconds + _SHOWN_EVERY_S
    finally:
        gc.unfreeze()
    return report


def _round(seed: int, fault_rate: float, until: float, report: SoakReport) -> None:
    """One replay; all of it is told by its seed."""
    transport, layout = _WAYS[seed % len(_WAYS)], _LAYOUTS[seed // len(_WAYS) % len(_LAYOUTS)]
    where = f"seed {seed}, {transport}, {layout}"
    stage = SimulatedStage(seed)
    driver = stage.driver
    assert isinstance(driver, SimulatedDriver)
    try:
        _Replay(stage, driver, fault_rate, transport, layout, seed, report).run(until)
    except Exception as error:
        report.failures.append(f"{where}: {type(error).__name__}: {error}")
    driver.fault_rate = 0.0
    del stage
    if report.mismatches and not report.failures:
        report.failures.append(f"{where}: {report.mismatches} blocks and layers differ")
    for call, times in driver.faults.items():
        report.faults_by_call[call] = report.faults_by_call.get(call, 0) + times
    if not report.failures:
        report.failures += [f"{where}: {what}" for what in _left(driver)]


def _left(driver: SimulatedDriver) -> list[str]:
    """What is still there after all is closed and dropped, in words."""
    driver.tools.clear()
    gc.collect()
    counts = {
        "swaps in flight": len(driver.in_flight),
        "refused to be freed": len(driver.not_freed()),
        "live allocations": driver.live_allocations(),
        "live events": driver.live_events(),
        "live streams": driver.live_streams(),
    }
    return [f"{count} {what} left behind" for what, count in counts.items() if count]


class _Side:
    """What each block of one cache must hold: an id and a position, -1 where nobody knows."""

    def __init__(self, cache: DeviceCache | HostCache) -> None:
        self.layers = [np.asarray(LayerBytes(layer)) for layer in cache.layers]
        self.ids = np.full(cache.blocks, -1, np.int64)
        self.positions = np.zeros(cache.blocks, np.int64)

    def mismatches(self) -> tuple[int, int]:
        """Blocks times layers that differ from what they must hold, and how many blocks were compared."""
        blocks = np.flatnonzero(self.ids >= 0)
        named = (blocks, self.ids[blocks], self.positions[blocks])
        return sum(
            count_mismatched_blocks(layer, *named, index) for index, layer in enumerate(self.layers)
        ), blocks.size


class _Replay:
    """One replay under way. Swaps in go on a stream of their own, so that order is the events' matter too."""

    def __init__(
        self,
        stage: SimulatedStage,
        driver: SimulatedDriver,
        fault_rate: float,
        transport: str,
        layout: Layout,
        seed: int,
        report: SoakReport,
    ) -> None:
        self._stage, self._driver, self._fault_rate, self._report = stage, driver, fault_rate, report
        self._seed, self._transport, self._layout = seed, transport, layout
        blocks_per_id = ID_TOKENS // _BLOCK_TOKENS
        slots = tuple(HOST_SLOTS)[seed % len(HOST_SLOTS)]
        self._placement = Placement(_DEVICE_BLOCKS, _HOST_BLOCKS, blocks_per_id, slots)
        self._judged = 0
        self._shapes = model_named("tiny").block_shapes(_BLOCK_TOKENS)
        with driver.activate(0):
            self._beside, self._joined = driver.stream_create(), driver.event_create()

    def run(self, until: float) -> None:
        self._driver.fault_rate = self._fault_rate
        device_cache = self._until_it_works(self._device_cache)
        host_cache = self._until_it_works(
            lambda: HostCache.allocate(device_cache, blocks=_HOST_BLOCKS, layout=self._layout)
        )
        self._swapper = self._until_it_works(lambda: Swapper(device_cache, host_cache, transport=self._transport))
        self._sides = {"out": _Side(host_cache), "in": _Side(device_cache)}
        with self._no_faults():
            self._stage.prepare(device_cache)
        for request in made_trace(self._seed, REQUESTS):
            if perf_counter() > until and self._report.rounds:  # the first one is whole, so that a seed repeats it
                break
            self._carry_out(request)
        self._judge_all()
        self._until_it_works(host_cache.close)
        with self._no_faults(), self._driver.activate(0):
            self._driver.stream_destroy(self._beside)
            self._driver.event_destroy(self._joined)

    def _device_cache(self) -> DeviceCache:
        sizes = [shape.block_bytes for shape in self._shapes]
        return DeviceCache.allocate(self._driver, blocks=_DEVICE_BLOCKS, block_bytes=sizes)

    def _carry_out(self, request: Request) -> None:
        moves = self._placement.place(request.hash_ids)
        per_id = self._placement.blocks_per_id
        if moves.out_device.size:
            self._swap("out", moves.out_device, moves.out_host, self._stage.stream)
        if moves.in_device.size:
            with self._no_faults():
                self._driver.event_record(self._joined, self._stage.stream)
                self._driver.stream_wait_event(self._beside, self._joined)
            transfer = self._swap("in", moves.in_device, moves.in_host, self._beside)
            self._until_it_works(lambda: transfer.wait_on(self._stage.stream))
            with self._no_faults():
                self._stage.judge(moves.in_device, *each_block(moves.in_ids, per_id))
            self._report.blocks_verified += moves.in_device.size
        if moves.computed_ids.size:
            computed = each_block(moves.computed_ids, per_id)
            with self._no_faults():
                self._stage.fill(moves.computed_device.ravel(), *computed)
            side = self._sides["in"]
            side.ids[moves.computed_device.ravel()], side.positions[moves.computed_device.ravel()] = computed
        self._report.requests += 1

    def _swap(self, direction: Direction, device_ids: Ids, host_ids: Ids, stream: int) -> Transfer:
        """Until it is on its stream; every fourth is also waited for."""
        target = self._sides[direction]
        source = self._sides["in" if direction == "out" else "out"]
        sources, targets = (device_ids, host_ids) if direction == "out" else (host_ids, device_ids)
        swap = self._swapper.swap_out if direction == "out" else self._swapper.swap_in

        def harmed(error: KVSwapDriverError) -> None:
            undefined = np.array(error.undefined_targets, np.int64)
            if not np.isin(undefined, targets).all():
                raise AssertionError(f"undefined_targets {error.undefined_targets} of a swap to {targets.tolist()}")
            target.ids[undefined] = -1
            self._report.blocks_undefined += undefined.size
            self._judge_all()

        transfer = self._until_it_works(lambda: swap(device_ids, host_ids, stream), harmed)
        self._report.swaps += 1
        counts = self._report.transfers_by_transport
        counts[transfer.transport] = counts.get(transfer.transport, 0) + 1
        for each, block in zip(sources.tolist(), targets.tolist(), strict=True):  # in their order: the last one wins
            target.ids[block], target.positions[block] = source.ids[each], source.positions[each]
        if self._report.swaps % 4 == 0:
            self._until_it_works(transfer.wait)
            if not self._until_it_works(transfer.done) or transfer.undefined_targets:
                raise AssertionError(f"{transfer} was waited for, and is not done")
        return transfer

    def _judge_all(self) -> None:
        """Every block whose content is known, once all that was queued is done."""
        with self._no_faults():
            self._driver.synchronize()
            judged = self._stage.mismatches()
            self._report.mismatches += judged - self._judged
            self._judged = judged
            for side in self._sides.values():
                mismatches, blocks = side.mismatches()
                self._report.mismatches += mismatches
                self._report.blocks_verified += blocks
        if self._report.mismatches:
            raise AssertionError(f"{self._report.mismatches} blocks and layers differ from what they must hold")

    def _until_it_works(self, ask: Callable[[], _T], harmed: Callable[[KVSwapDriverError], None] | None = None) -> _T:
        """What `ask` returns, once it does; each failure is first counted, and looked at by `harmed`."""
        for _ in range(_TRIES_MAX):
            try:
                return ask()
            except KVSwapDriverError as error:
                if harmed is not None:
                    harmed(error)
                counts = self._report.errors_by_call
                counts[error.call] = counts.get(error.call, 0) + 1
        raise AssertionError(f"failed {_TRIES_MAX} times in turn")

    @contextlib.contextmanager
    def _no_faults(self) -> Iterator[None]:
        """Around calls that are the replay's own, and not the library's."""
        self._driver.fault_rate = 0.0
        try:
            yield
        finally:
            self._driver.fault_rate = self._fault_rate


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
