"""What each transport costs on a machine, and from that what a plan is expected to take.

The model: a transport takes a fixed time a swap, and a time a piece that depends on the piece's bytes alone. A piece
is, of `copies`, a copy, or a row where it makes 2-D copies; of `batch`, a copy; of `kernel`, a block in one layer; of
`ring`, an engine copy between ring and host. `split` is some blocks by the one and the rest by the other, one after the
other but for what the ring waits. Costs between the measured sizes are read off a straight
line in the logarithms of both; below the smallest a piece costs as much as that, beyond the largest as much a byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.driver.forked import fresh_locks_in_children
from numba_kvswap.ids import Integers, check_integer
from numba_kvswap.jit import compiled, holding_the_gil
from numba_kvswap.plan import Plan
from numba_kvswap.strict_json import load_json
from numba_kvswap.submit import PIECE_BYTES, PIECE_STRIDE
from numba_kvswap.transports.ring import pieces_of

Seconds = npt.NDArray[np.float64]

#: The curves a machine has, in the order in which the model holds them. "rows" are those of 2-D copies.
CURVES = ("copies", "batch", "kernel", "ring", "rows")
COPIES, BATCH, KERNEL, RING, ROWS = range(5)
#: The transports that the model knows, in its order: up to the ring that of the curves.
MODELLED = (*CURVES[:4], "split")
SPLIT = 4
# Where a kernel is expected to be later than another by no more than this, and than this part, it is taken: the fixed
# costs that decide short swaps were found to vary by up to twice (docs/notes.md), and it makes the fewest driver calls.
_TIE_S, _TIE_PART = 20e-6, 0.1
# Points of a curve that is resampled for the compiled model: one a power of two, from 1 byte to 2 GiB.
_POWERS = 32
# Beyond them costs are no measurement. The fastest links carry half of that a second, the longest piece takes ms.
_BYTES_A_SECOND_MAX, _SECONDS_MAX, _TIMES_MAX = 1e12, 10.0, 100.0


@dataclass(frozen=True)
class Curve:
    """fixed_s: of a whole swap. bytes, piece_s: what one piece of so many bytes costs, ascending."""

    fixed_s: float
    bytes: Sequence[int]
    piece_s: Sequence[float]

    def at(self, size_bytes: float) -> float:
        """Seconds a piece."""
        if size_bytes <= self.bytes[0]:
            return self.piece_s[0]
        if size_bytes >= self.bytes[-1]:
            return self.piece_s[-1] * size_bytes / self.bytes[-1]
        costs = np.interp(math.log(size_bytes), np.log(self.bytes), np.log(self.piece_s))
        return float(np.exp(costs))


@dataclass(frozen=True)
class Costs:
    """machine: what the figures were measured on, or whose they are. out, in_: a curve each of CURVES. both_ways: of
    each, how many times as long a swap takes while another one goes the other way."""

    machine: str
    out: Mapping[str, Curve]
    in_: Mapping[str, Curve]
    both_ways: Mapping[str, float]

    @cached_property
    def tables(self) -> Mapping[Direction, tuple[Seconds, Seconds]]:
        """Each way the curves as the compiled model reads them: [curves], what is fixed; [curves, powers of two]."""
        return {"out": _table(self.out), "in": _table(self.in_)}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Costs:
        """Raises ValueError where the text is not what `to_json` makes."""
        try:
            found = load_json(text)
            out, in_ = ({name: _curve(found[way][name]) for name in CURVES} for way in ("out", "in_"))
            both_ways = {name: _positive(found["both_ways"][name]) for name in CURVES}
            if not isinstance(found["machine"], str):
                raise TypeError(f"machine is {found['machine']!r:.60}; expected a string")
            return cls(found["machine"], out, in_, both_ways)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"these are no costs of transports: {type(error).__name__}: {error}") from error

    @property
    def absurdity(self) -> str:
        """What no machine measures, "" where there is nothing of the kind."""
        for way, curves in (("out", self.out), ("in", self.in_)):
            for name, curve in curves.items():
                seconds = max(curve.fixed_s, *curve.piece_s)
                rate = max(size / piece_s for size, piece_s in zip(curve.bytes, curve.piece_s, strict=True))
                if seconds > _SECONDS_MAX or rate > _BYTES_A_SECOND_MAX:
                    return f"{name} {way}: {seconds:g} s, or {rate:g} bytes a second"
        factor = max(self.both_ways.values(), key=lambda times: abs(math.log(times)))
        return f"{factor:g} times as long both ways" if abs(math.log(factor)) > math.log(_TIMES_MAX) else ""


fresh_locks_in_children(Costs)


def _table(curves: Mapping[str, Curve]) -> tuple[Seconds, Seconds]:
    fixed = np.array([curves[name].fixed_s for name in CURVES])
    return fixed, np.array([[curves[name].at(1 << power) for power in range(_POWERS)] for name in CURVES])


def _curve(found: Any) -> Curve:
    sizes, costs = [check_integer(n, "a size") for n in found["bytes"]], [_positive(s) for s in found["piece_s"]]
    rising = all(a < b for a, b in pairwise(sizes))
    if not sizes or len(sizes) != len(costs) or sizes[0] < 1 or not rising:
        raise ValueError(f"sizes {sizes} for {len(costs)} costs; expected as many, ascending from 1 up")
    return Curve(_positive(found["fixed_s"]), sizes, costs)


def _positive(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"{found!r:.60} came; expected a positive number")
    value = float(found)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value} came; expected a positive number")
    return value


@lru_cache(maxsize=1)
def h200_costs() -> Costs:
    """Of one NVIDIA H200 on PCIe 5 x16: for the simulated device, and where nothing can be measured."""
    return Costs.from_json(Path(__file__).with_name("h200_costs.json").read_text(encoding="utf-8"))


class CostModel:
    """What the transports are expected to take between two caches, one way, by a machine's costs."""

    def __init__(
        self,
        costs: Costs,
        pair: CachePair,
        direction: Direction,
        times: Mapping[str, float] | None = None,
        wait_s: float = 0.0,
        copy_s: float = 0.0,
    ) -> None:
        """times: of each of CURVES, how many times as long its pieces take as they do with nothing beside them.
        wait_s: how long a kernel waits for others to end. copy_s: how much longer to submit each engine copy takes."""
        self._fixed, self._pieces = costs.tables[direction]
        if times is not None:
            self._pieces = self._pieces * np.array([[times[name]] for name in CURVES])
        self._waits_s = wait_s, copy_s
        groups = pair.groups
        dense = (groups.device[:, 1] == groups.block_bytes) & (groups.host[:, 1] == groups.block_bytes)
        pitches = np.maximum(groups.device[:, 1], groups.host[:, 1])
        self._groups = _counted([groups.layers, groups.block_bytes, dense, pitches <= pair.driver.pitch_bytes_max])
        slot_bytes = pair.driver.ring_slot_bytes
        ring = pieces_of(pair.host_cache.layers, slot_bytes)
        self._ring = _counted([ring.words[:, PIECE_STRIDE], ring.words[:, PIECE_BYTES]])
        self._slot_rows, self._batched_blocks = ring.rows, pair.driver.split_batch_bytes // pair.block_bytes
        self._host = 1 if direction == "out" else 0

    def expected(self, plan: Plan) -> Seconds:
        """Seconds from the call to the last byte, of each of MODELLED, whether it can move these caches or not."""
        return _expected(*self._arguments(plan))

    def soonest(self, plan: Plan, usable: npt.NDArray[np.bool_]) -> int:
        """The index, among those that are usable, of the transport that is expected to be done first; where the kernel
        is expected next to as soon, its."""
        return _soonest(usable, *self._arguments(plan))

    def sizes_of(self, plan: Plan) -> tuple[int, int, int]:
        """All that matters of a plan: its runs, its blocks, and stretches of neighbours on the host (see Plan)."""
        return plan.runs, plan.blocks, plan.stretches[self._host]

    def _arguments(self, plan: Plan) -> tuple[Any, ...]:
        scalars = self._slot_rows, self._batched_blocks, *self._waits_s
        return *self.sizes_of(plan), self._groups, self._ring, *scalars, self._fixed, self._pieces


def _counted(columns: Sequence[npt.NDArray[Any]]) -> Integers:
    """The rows that these columns make, each once, and in a last column how often. Layers mostly are all alike."""
    rows, counts = np.unique(np.stack(columns, axis=1).astype(np.int64), axis=0, return_counts=True)
    return np.column_stack([rows, counts]).astype(np.int64)


@compiled
def _soonest_nogil(
    usable: npt.NDArray[np.bool_],
    runs: int,
    blocks: int,
    stretches: int,
    groups: Integers,
    ring: Integers,
    slot_rows: int,
    batched_blocks: int,
    wait_s: float,
    copy_s: float,
    fixed: Seconds,
    pieces: Seconds,
) -> int:
    expected = _expected_nogil(
        runs, blocks, stretches, groups, ring, slot_rows, batched_blocks, wait_s, copy_s, fixed, pieces
    )
    soonest = -1
    for index in range(expected.size):
        if usable[index] and (soonest < 0 or expected[index] < expected[soonest]):
            soonest = index
    if usable[KERNEL] and expected[KERNEL] <= expected[soonest] + min(_TIE_S, _TIE_PART * expected[soonest]):
        return KERNEL
    return soonest


@compiled
def _expected_nogil(
    runs: int,
    blocks: int,
    stretches: int,
    groups: Integers,
    ring: Integers,
    slot_rows: int,
    batched_blocks: int,
    wait_s: float,
    copy_s: float,
    fixed: Seconds,
    pieces: Seconds,
) -> Seconds:
    """stretches: of neighbouring host blocks. groups: [kinds, 5], layers, block
    bytes, whether blocks are dense on both sides, whether their distances fit a 2-D copy, how many such groups there
    are. ring: [kinds, 3], distance and bytes of a piece's rows on the host, how many such pieces there are.
    batched_blocks: how many a split swap leaves to batches. wait_s, copy_s: see CostModel."""
    expected = np.empty(SPLIT + 1)
    expected[: RING + 1], expected[SPLIT] = fixed[: RING + 1], fixed[RING]
    if blocks == 0:
        return expected
    run_length = blocks / runs
    for group in range(groups.shape[0]):
        layers, size, dense, fits, count = groups[group]
        pieces_a_run = 1.0 if dense else run_length
        piece_bytes = run_length / pieces_a_run * size
        as_rows = not dense and fits and run_length > 1
        if pieces_a_run < layers * (1.0 if as_rows else pieces_a_run):
            copies = pieces_a_run * (layers * _cost(pieces[ROWS], piece_bytes) + fixed[ROWS] + copy_s)
        elif as_rows:
            copies = layers * (run_length * _cost(pieces[ROWS], size) + fixed[ROWS] + copy_s)
        else:
            copies = layers * pieces_a_run * (_cost(pieces[COPIES], piece_bytes) + copy_s)
        expected[COPIES] += count * runs * copies
        expected[BATCH] += count * runs * layers * pieces_a_run * (_cost(pieces[BATCH], piece_bytes) + copy_s)
        expected[KERNEL] += count * blocks * layers * _cost(pieces[KERNEL], size)
    for piece in range(ring.shape[0]):
        stride, size, count = ring[piece]
        # Slots cut stretches too.
        copies = min(float(blocks), stretches + blocks / max(1, slot_rows)) if stride == size else float(blocks)
        expected[RING] += count * copies * (_cost(pieces[RING], blocks / copies * size) + copy_s)
    part = min(1.0, batched_blocks / blocks)
    by_batches, by_ring = part * (expected[BATCH] - fixed[BATCH]), (1.0 - part) * (expected[RING] - fixed[RING])
    expected[SPLIT] += max(wait_s, by_batches) + by_ring if by_ring else by_batches
    expected[RING] += wait_s
    return expected


@compiled
def _cost(curve: Seconds, size_bytes: float) -> float:
    """Between the two powers of two, on a straight line in the logarithm of the size."""
    power = math.log2(max(1.0, size_bytes))
    below = min(int(power), curve.size - 2)
    part = power - below
    if part > 1:
        return curve[-1] * size_bytes / 2.0 ** (curve.size - 1)  # type: ignore[no-any-return]
    return curve[below] * (curve[below + 1] / curve[below]) ** part  # type: ignore[no-any-return]


_expected, _soonest = holding_the_gil(_expected_nogil), holding_the_gil(_soonest_nogil)
