"""Which transport takes a plan: the one expected to be soonest done, of those that may be used; or the kernel, where it
is expected next to as soon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.calibration import costs_of
from numba_kvswap.costs import MODELLED, CostModel, Costs
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.plan import Plan
from numba_kvswap.transports.named import transport_named

#: "swap": the swap's own time is all that counts. "compute": other kernels beside it count too.
Favor = Literal["swap", "compute"]
# A kernel that reaches host memory holds multiprocessors for as long as the link takes; beside a GEMM that needs all of
# them it made that 1.1 to 3.8 times as slow (docs/notes.md).
_AGAINST: Mapping[Favor, tuple[str, str]] = {
    "compute": ("kernel", "it keeps multiprocessors busy"),
    "swap": ("split", "it gains only beside other kernels"),
}
# Beside kernels that fill the device, which is when favor="compute" is asked for, one kernel of the ring waits for one
# of those to end while no copies go on, the first one out, the last one in: a bf16 8192^3 GEMM takes an H200 1.65 ms.
# And who launches them keeps the driver from who submits copies: 1 GiB in 32,768 copies took 25 ms instead of 19.6.
_WAIT_BESIDE_KERNELS_S, _COPY_BESIDE_KERNELS_S = 1.65e-3, 0.17e-6
_KNOWN_MAX = 4096


@dataclass(frozen=True)
class Explanation:
    """Why a transport was chosen for a plan.

    chosen: its name. expected_s: of every transport, seconds from the call to the last byte as the model sees it.
    why_not: of those that may not be used, why. machine: whose costs they are. bytes: what moves.
    """

    chosen: str
    favor: Favor
    direction: Direction
    bytes: int
    expected_s: Mapping[str, float]
    why_not: Mapping[str, str]
    machine: str
    both_ways: bool = False

    def __repr__(self) -> str:
        beside = " while swaps go the other way" if self.both_ways else ""
        lines = [
            f"{self.chosen}: swap {self.direction} of {self.bytes:,} bytes{beside}, favor={self.favor!r}, by costs of "
            f"{self.machine}"
        ]
        for name, seconds in sorted(self.expected_s.items(), key=lambda each: each[1]):
            note = self.why_not.get(name) or (self._how_chosen() if name == self.chosen else "")
            rate = self.bytes / seconds / 1e9
            lines.append(f"  {name:<7} {seconds * 1e6:>12,.1f} us {rate:>7.1f} GB/s  {note}".rstrip())
        return "\n".join(lines)

    def _how_chosen(self) -> str:
        usable = (name for name in self.expected_s if name not in self.why_not)
        return "chosen" if self.chosen == min(usable, key=self.expected_s.__getitem__) else "chosen: next to as soon"


class Chooser:
    """Chooses for one pair of caches. All that does not depend on the plan is worked out when first needed."""

    def __init__(self, pair: CachePair, favor: Favor, costs: Costs | None = None, parts: int = 1) -> None:
        """costs: the machine's, where they are not to be looked up or measured. parts: how many such pairs share a
        swap. Needs the current context."""
        self._pair, self._favor, self._parts = pair, favor, parts
        self._costs = costs or costs_of(pair.driver, pair.device_cache.device)
        self._models: dict[tuple[Direction, bool], tuple[CostModel, dict[tuple[int, int, int], str]]] = {}
        self._why_not = {name: _why_not(name, pair) for name in MODELLED}
        # Each new pair asking again would cost each an allocation that fails; one told to use the ring does ask again.
        why_no_ring = device_tools(pair.driver, pair.device_cache.device).why_no_ring
        for name in ("ring", "split"):
            self._why_not[name] = self._why_not[name] or why_no_ring
        name, why = _AGAINST[favor]
        self._why_not[name] = self._why_not[name] or f"{why}, and favor is {favor!r}"
        self._set_usable()

    def choose(self, plan: Plan, direction: Direction, *, both_ways: bool = False) -> str:
        """The name of the transport. both_ways: whether swaps go the other way at the same time."""
        model, known = self._model(direction, both_ways)
        sizes = model.sizes_of(plan)
        found = known.get(sizes)
        if found is None:
            if len(known) >= _KNOWN_MAX:
                known.clear()
            found = known[sizes] = MODELLED[model.soonest(plan, self._usable_mask)]
        return found

    def _model(self, direction: Direction, both_ways: bool) -> tuple[CostModel, dict[tuple[int, int, int], str]]:
        """And what it has chosen so far, by what matters of a plan: in short swaps most of the time is the host's."""
        found = self._models.get((direction, both_ways))
        if found is None:
            times = self._costs.both_ways if both_ways else None
            waits_s = (_WAIT_BESIDE_KERNELS_S, _COPY_BESIDE_KERNELS_S) if self._favor == "compute" else (0.0, 0.0)
            model = CostModel(self._costs, self._pair, direction, times, *waits_s, parts=self._parts)
            found = self._models[direction, both_ways] = model, {}
        return found

    def exclude(self, name: str, why: str) -> bool:
        """No longer use a transport that turned out not to work here; False where it is the last one."""
        if self._usable == [name]:
            return False
        self._why_not[name] = why
        self._set_usable()
        return True

    def _set_usable(self) -> None:
        self._usable = [name for name in MODELLED if not self._why_not[name]]
        self._usable_mask = np.array([not self._why_not[name] for name in MODELLED])
        # New ones: who is just choosing, in another thread, may still remember what is no longer usable.
        self._models = {each: (model, {}) for each, (model, _known) in list(self._models.items())}

    def explain(self, plan: Plan, direction: Direction, *, both_ways: bool = False) -> Explanation:
        expected = self._model(direction, both_ways)[0].expected(plan).tolist()
        return Explanation(
            chosen=self.choose(plan, direction, both_ways=both_ways),
            favor=self._favor,
            direction=direction,
            bytes=plan.blocks * self._pair.block_bytes,
            expected_s=dict(zip(MODELLED, expected, strict=True)),
            why_not={name: why for name, why in self._why_not.items() if why},
            machine=self._costs.machine,
            both_ways=both_ways,
        )


def _why_not(name: str, pair: CachePair) -> str:
    """Also where the driver fails to load what it would take: the choice goes on among the others."""
    try:
        return transport_named(name).why_not(pair)
    except KVSwapDriverError as error:
        return str(error)
