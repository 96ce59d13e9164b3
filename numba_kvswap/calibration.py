"""Measures what the transports cost on this machine, in some 2 s, and keeps it on disk for later processes."""

from __future__ import annotations

import os
import platform
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from numba_kvswap import __version__, disk_cache
from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.costs import CURVES, Costs, Curve, h200_costs
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.host_memory import pinned_memory
from numba_kvswap.ids import Ids
from numba_kvswap.layers import Layer
from numba_kvswap.memory import DriverMemory, OwnedMemory
from numba_kvswap.plan import Plan

if TYPE_CHECKING:
    from numba_kvswap.swapper import Swapper

_KIB, _MIB = 1 << 10, 1 << 20
# What one measured swap moves, unless that takes more pieces than these: enough for a steady state, and soon done.
_SWAP_BYTES = 128 * _MIB
_PIECES_MAX = {"copies": 512, "batch": 2048, "kernel": 8192, "ring": 2048, "rows": 2048}
_SIZES = (512, 2 * _KIB, 4 * _KIB, 8 * _KIB, 16 * _KIB, 32 * _KIB, 64 * _KIB, 128 * _KIB, 512 * _KIB, 2 * _MIB)
_ROW_LAYERS = 32
_ROW_SIZES = tuple(size for size in _SIZES if size <= 128 * _KIB)
# The fixed part of a swap is what is left of one of so few pieces: of one block in 64 layers, say.
_FEW_PIECES, _FEW_BYTES = 64, 32 * _KIB
_REPEATS, _SHORT_REPEATS = 3, 41
_WAYS: tuple[Direction, Direction] = ("out", "in")
_BOTH_WAYS_BYTES = 32 * _KIB
_ARENA_BYTES = 2 * _SWAP_BYTES

# What the figures are figures of: where one of these files changes, they are measured anew.
_KERNELS = ("kernels/body.py", "kernels/rows.py", "kernels/words.py")
_MEASURED = ("calibration.py", "costs.py", "submit.py", "driver/table.py", *_KERNELS)

# May be taken again: a finalizer or a signal handler may make a Swapper in the midst of any line, in the same thread.
_lock = threading.RLock()
_measuring = False
_known: MutableMapping[Driver, dict[int, Costs]] = weakref.WeakKeyDictionary()


def _renew_in_child() -> None:
    """The thread that measured or held the lock at the fork is not there."""
    global _lock, _measuring
    _lock, _measuring = threading.RLock(), False


os.register_at_fork(after_in_child=_renew_in_child)


def costs_of(driver: Driver, device: int) -> Costs:
    """The costs of this machine: known already, or read from disk, or else measured, which takes some 2 s.

    The simulated device's are those of an H200; so are a device's that has no memory left to measure with.
    Needs the current context of the device.
    """
    if driver.name != "cuda":
        return h200_costs()
    with _lock:
        if _measuring:  # this very thread, further down
            return h200_costs()
        known = _known.setdefault(driver, {})
        if device not in known:
            known[device] = kept_costs(driver, device) or _measured_or_not(driver, device)
        return known[device]


def calibrate(driver: Driver, device: int) -> Costs:
    """Measure anew, and keep it on disk. Needs the current context. Raises KVSwapDriverError and MemoryError."""
    with _lock:
        costs = _measured_and_kept(driver, device)
        _known.setdefault(driver, {})[device] = costs
    return costs


def fingerprint(driver: Driver, device: int) -> tuple[object, ...]:
    """What the costs of a machine depend on, as far as can be asked."""
    facts = driver.describe()
    own = facts if device == 0 else facts.get(f"device_{device}", {})
    names = ("device_name", "compute_capability", "memory_bytes", "multiprocessors")
    of_device = tuple(own.get(name) for name in names) if isinstance(own, dict) else ()
    return (__version__, platform.node(), platform.machine(), facts.get("driver_version"), device, *of_device)


def costs_file(driver: Driver, device: int) -> str:
    """The name under which disk_cache.py keeps a machine's costs."""
    folder = Path(__file__).parent
    files = [folder / file for file in _MEASURED] + sorted((folder / "transports").glob("*.py"))
    return f"costs-{disk_cache.key_of(*fingerprint(driver, device), *(file.read_bytes() for file in files))}.json"


def kept_costs(driver: Driver, device: int) -> Costs | None:
    """What an earlier process measured on this machine, None where there is nothing, or nothing to go by: then it is
    measured anew, and written anew."""
    kept = disk_cache.load(costs_file(driver, device))
    try:
        costs = None if kept is None else Costs.from_json(kept.decode())
    except ValueError:  # of another version of this file
        return None
    return costs if costs is not None and not costs.absurdity else None


def _measured_or_not(driver: Driver, device: int) -> Costs:
    try:
        return _measured_and_kept(driver, device)
    except (KVSwapDriverError, MemoryError):  # most of all beside an engine that has taken all of the memory
        return h200_costs()


def _measured_and_kept(driver: Driver, device: int) -> Costs:
    """Kept where all of it was measured: what is missing here now, a compiler or memory, may be there another time."""
    global _measuring  # noqa: PLW0603
    _measuring = True
    try:
        costs = measured(driver, device)
    finally:
        _measuring = False
    tools = device_tools(driver, device)
    if not (tools.why_no_kernels or tools.why_no_ring):
        disk_cache.store(costs_file(driver, device), costs.to_json().encode())
    return costs


def measured(driver: Driver, device: int) -> Costs:
    """Measure every curve both ways. Needs the current context. Raises KVSwapDriverError and MemoryError."""
    facts = driver.describe()
    with _arena(driver, device) as arena:
        out, in_ = ({name: arena.curve(name, way) for name in CURVES} for way in _WAYS)
        both_ways = {name: arena.both_ways(name) for name in CURVES if name != "rows"}
    both_ways["rows"] = both_ways["copies"]
    return Costs(f"{facts.get('device_name')}, measured", out, in_, both_ways)


@contextmanager
def _arena(driver: Driver, device: int) -> Iterator[_Arena]:
    with ExitStack() as stack:
        memory = DriverMemory(driver, device, _ARENA_BYTES, "device")
        stack.callback(memory.close)
        pinned = pinned_memory(driver, device, _ARENA_BYTES, unit_bytes=1)
        stack.callback(pinned.close)
        streams = []
        for _ in range(2):
            streams.append(driver.stream_create())
            stack.callback(driver.stream_destroy, streams[-1])
            stack.callback(driver.stream_synchronize, streams[-1])
        yield _Arena(driver, device, memory, pinned, (streams[0], streams[1]))


@dataclass
class _Arena:
    """Where the measured swaps take place."""

    driver: Driver
    device: int
    memory: OwnedMemory
    pinned: OwnedMemory
    streams: tuple[int, int]

    def has(self, name: str) -> bool:
        """Whether this transport is to be had here."""
        tools = device_tools(self.driver, self.device)
        if name in ("kernel", "ring") and tools.why_no_kernels:
            return False
        try:
            return name != "ring" or all(tools.ring(way) for way in _WAYS)
        except KVSwapDriverError:
            return False

    def both_ways(self, name: str) -> float:
        """How many times as long a swap of 32 KiB blocks takes while another goes the other way."""
        if not self.has(name):
            return h200_costs().both_ways[name]
        count = min(_PIECES_MAX[name], _SWAP_BYTES // _BOTH_WAYS_BYTES) // 2
        ids = np.random.default_rng(1).permutation(count)
        host_ids = np.arange(count) if name == "ring" else np.random.default_rng(2).permutation(count)
        swapper = self._swapper(name, [_BOTH_WAYS_BYTES], 2 * count)
        jobs: list[tuple[Direction, Plan]] = [
            ("out", Plan(ids, host_ids)),
            ("in", Plan(host_ids + count, ids + count)),
        ]
        together_s = _taken(swapper, jobs, self.streams, _REPEATS).call_s
        return together_s / max(_taken(swapper, [job], self.streams, _REPEATS).call_s for job in jobs)

    def curve(self, name: str, way: Direction) -> Curve:
        if not self.has(name):  # an H200's: nobody will use it
            known = h200_costs()
            return (known.out if way == "out" else known.in_)[name]
        if name == "rows":
            return self._rows_curve(way)
        costs = {size: self._piece_s(name, way, size) for size in _SIZES}
        if name == "ring":
            costs[self.driver.ring_slot_bytes] = self._slot_s(way)
        return Curve(self._fixed_s(name, way), list(costs), list(costs.values()))

    def _fixed_s(self, name: str, way: Direction) -> float:
        """Of a swap of few small pieces, without these; by the host's clock, so with what the host does."""
        few = _FEW_PIECES
        # A kernel takes a swap of few pairs at once, in however many layers; what else there is has no use for layers.
        count, layers = (1, few) if name == "kernel" else (few, 1)
        few_s = self._scattered(name, way, _FEW_BYTES, count, layers).call_s
        return max(few_s - few * self._piece_s(name, way, _FEW_BYTES), few_s / few)

    def _piece_s(self, name: str, way: Direction, size: int) -> float:
        """A piece among many."""
        count = min(_PIECES_MAX[name], _SWAP_BYTES // size)
        return self._scattered(name, way, size, count).device_s / count

    def _scattered(self, name: str, way: Direction, size: int, count: int, layers: int = 1) -> _Taken:
        """A swap of `count` blocks in each layer, scattered on both sides."""
        ids = [2 * np.random.default_rng(seed).permutation(count) for seed in (1, 2)]
        return self._swap(name, way, [size] * layers, 2 * count, *ids)

    def _slot_s(self, way: Direction) -> float:
        """A slot of the ring whole, among others: neighbouring host blocks, scattered device blocks."""
        slot_bytes = self.driver.ring_slot_bytes
        size = min(32 * _KIB, slot_bytes // 4)
        taken = []
        for moved in (_SWAP_BYTES // 2, _SWAP_BYTES):
            ids = np.random.default_rng(1).permutation(moved // size)
            taken.append(self._swap("ring", way, [size], ids.size, ids, np.arange(ids.size)).device_s)
        # By the longer one alone it would be more, by what filling the first slot and emptying the last take.
        return max(taken[1] - taken[0], taken[1] / 2) / (_SWAP_BYTES // 2 / slot_bytes)

    def _rows_curve(self, way: Direction) -> Curve:
        """fixed_s: of a 2-D copy, found from copies of few and of many rows."""
        costs, calls = [], []
        for size in _ROW_SIZES:
            few, many = (self._rows_call_s(way, size, layers) for layers in (2, _ROW_LAYERS))
            row = max((many - few) / (_ROW_LAYERS - 2), many / _ROW_LAYERS / 2)
            costs.append(row)
            calls.append(max(few - 2 * row, few / 2))
        return Curve(median(calls), list(_ROW_SIZES), costs)

    def _rows_call_s(self, way: Direction, size: int, layers: int) -> float:
        count = min(_PIECES_MAX["rows"], _SWAP_BYTES // size) // layers
        return self._scattered("copies", way, size, count, layers).device_s / count

    def _swap(
        self, name: str, way: Direction, block_bytes: list[int], blocks: int, device_ids: Ids, host_ids: Ids
    ) -> _Taken:
        plan = Plan(*((device_ids, host_ids) if way == "out" else (host_ids, device_ids)))
        repeats = _SHORT_REPEATS if plan.pairs <= _FEW_PIECES else _REPEATS
        return _taken(self._swapper(name, block_bytes, blocks), [(way, plan)], self.streams, repeats)

    def _swapper(self, name: str, block_bytes: list[int], blocks: int) -> Swapper:
        from numba_kvswap.swapper import Swapper  # which imports this file

        device, host = (self._layers(memory, block_bytes, blocks) for memory in (self.memory, self.pinned))
        caches = (DeviceCache.of_layers(device, self.device, self.driver), HostCache.of_layers(host))
        return Swapper(*caches, transport=name)

    @staticmethod
    def _layers(memory: OwnedMemory, block_bytes: list[int], blocks: int) -> list[Layer]:
        """One after the other, evenly spaced."""
        return [
            Layer(memory.address + index * blocks * size, blocks, size, size, None, owner=memory)
            for index, size in enumerate(block_bytes)
        ]


@dataclass(frozen=True)
class _Taken:
    """Medians. call_s: from the first call to the last byte. device_s: of the first swap, from when its stream reached
    it to its last byte; free of what waking the host takes, which is a few per cent of such short swaps."""

    call_s: float
    device_s: float


def _taken(swapper: Swapper, jobs: list[tuple[Direction, Plan]], streams: tuple[int, int], repeats: int) -> _Taken:
    """The first round prepares, and is not counted."""
    calls, devices = [], []
    for _ in range(1 + repeats):
        started = perf_counter()
        transfers = [swapper.submit(way, plan, stream) for (way, plan), stream in zip(jobs, streams, strict=False)]
        for transfer in transfers:
            transfer.wait()
        calls.append(perf_counter() - started)
        devices.append(transfers[0].seconds)
    return _Taken(median(calls[1:]), median(devices[1:]))
