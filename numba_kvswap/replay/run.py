"""The main job: a trace carried out by the engine, every block's content verified."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence

from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.choice import Favor
from numba_kvswap.ids import Ids
from numba_kvswap.replay.models import BlockShape
from numba_kvswap.replay.report import ReplayReport
from numba_kvswap.replay.stages import Stage, host_mismatches
from numba_kvswap.replay.tiers import Moves, Placement, count_runs, each_block
from numba_kvswap.replay.trace import Request
from numba_kvswap.swapper import Swapper
from numba_kvswap.transfer import Transfer

# Transfers whose times are not taken yet: enough that the host never waits for the last one, few enough that
# memory does not grow with the trace.
_UNTIMED_MAX = 4


def replay(
    requests: Iterable[Request],
    layers: Sequence[BlockShape],
    placement: Placement,
    stage: Stage,
    transport: str = "auto",
    favor: Favor = "swap",
) -> ReplayReport:
    """Carry out every request: its swap outs as one call, then its swap ins as one, then what it computes.

    Each block swapped in is compared, behind its swap on the stream, with what its id must hold; at the end so is
    every resident block of both sides. `placement` is a fresh one. `transport` and `favor` are the Swapper's, between
    device layers of their own and a block-major host pool. Memory beside the two pools does not grow with the trace.

    Raises ValueError for a transport that is not known or cannot move these blocks, KVSwapDriverError, MemoryError.
    """
    report = ReplayReport(
        engine=stage.engine,
        device=stage.device_name,
        host_slots=placement.host_slots,
        host_headroom_percent=placement.host_headroom_percent,
        transport=transport,
        favor=favor,
    )
    link = stage.link()
    if link is not None:
        report.link_gb_per_s_out, report.link_gb_per_s_in = link.out_gb_per_s, link.in_gb_per_s
    started = time.perf_counter()
    device_cache = DeviceCache.allocate(
        stage.driver,
        blocks=placement.device_blocks,
        block_bytes=[layer.block_bytes for layer in layers],
        dtype=layers[0].dtype,
    )
    with HostCache.allocate(device_cache, blocks=placement.host_blocks, layout="block_major") as host_cache:
        stage.prepare(device_cache)
        swapper = Swapper(device_cache, host_cache, transport=transport, favor=favor)
        _Replay(swapper, placement, stage, report).run(requests)
    report.seconds = time.perf_counter() - started
    return report


class _Replay:
    """One replay under way."""

    def __init__(self, swapper: Swapper, placement: Placement, stage: Stage, report: ReplayReport) -> None:
        self._swapper, self._stage, self._report = swapper, stage, report
        self._placement = placement
        self._untimed: deque[Transfer] = deque()

    def run(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._carry_out(self._placement.place(request.hash_ids))
            self._report.requests += 1
            self._take_times(_UNTIMED_MAX)
        self._take_times(0)
        self._judge_residents()

    def _carry_out(self, moves: Moves) -> None:
        if moves.out_device.size:
            self._note(self._swapper.swap_out(moves.out_device, moves.out_host, self._stage.stream))
            self._report.host_runs_out += count_runs(moves.out_host)
        if moves.in_device.size:
            self._note(self._swapper.swap_in(moves.in_device, moves.in_host, self._stage.stream))
            self._report.host_runs_in += count_runs(moves.in_host)
            self._judge(moves.in_device, moves.in_ids)
        if moves.computed_ids.size:
            self._stage.fill(
                moves.computed_device.ravel(), *each_block(moves.computed_ids, self._placement.blocks_per_id)
            )
            self._report.blocks_computed += moves.computed_device.size

    def _note(self, transfer: Transfer) -> None:
        report = self._report
        counts = report.transfers_by_transport
        counts[transfer.transport] = counts.get(transfer.transport, 0) + 1
        if transfer.direction == "out":
            report.blocks_out += transfer.blocks
            report.runs_out += transfer.runs
            report.bytes_out += transfer.bytes
        else:
            report.blocks_in += transfer.blocks
            report.runs_in += transfer.runs
            report.bytes_in += transfer.bytes
        self._untimed.append(transfer)

    def _take_times(self, leave: int) -> None:
        while len(self._untimed) > leave:
            transfer = self._untimed.popleft()
            transfer.wait()
            if transfer.direction == "out":
                self._report.swap_seconds_out += transfer.seconds
            else:
                self._report.swap_seconds_in += transfer.seconds

    def _judge(self, device_blocks: Ids, ids: Ids) -> None:
        self._stage.judge(device_blocks, *each_block(ids, self._placement.blocks_per_id))
        self._report.blocks_verified += device_blocks.size

    def _judge_residents(self) -> None:
        ids, blocks = self._placement.device_blocks_by_id()
        self._judge(blocks.ravel(), ids)
        self._report.mismatches = self._stage.mismatches()
        ids, blocks = self._placement.host_blocks_by_id()
        layers = self._swapper.host_cache.layers
        self._report.mismatches += host_mismatches(
            layers, blocks.ravel(), *each_block(ids, self._placement.blocks_per_id)
        )
        self._report.blocks_verified += blocks.size
