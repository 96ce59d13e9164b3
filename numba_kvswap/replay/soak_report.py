"""What a soak found: counts, memory, and whether all was well."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

_MIB = 1 << 20
# Until then code is compiled and pools of the allocator fill: no growth to be measured yet.
_WARM_S_MAX, _WARM_SHARE = 120.0, 0.2


class ResidentMemory:
    """The process's resident memory over a soak of `seconds_max`: a few samples of those taken, in bytes."""

    def __init__(self, seconds_max: float) -> None:
        self._warm_s = min(_WARM_S_MAX, _WARM_SHARE * seconds_max)
        self.first = self.last = self.largest = 0
        self._warm: tuple[float, int] | None = None
        self._last_s = 0.0

    def sample(self, resident_bytes: int, seconds: float) -> None:
        self.first = self.first or resident_bytes
        if self._warm is None and seconds >= self._warm_s:
            self._warm = seconds, resident_bytes
        self.last, self._last_s, self.largest = resident_bytes, seconds, max(self.largest, resident_bytes)

    @property
    def growth_an_hour(self) -> float | None:
        """Bytes an hour from the warm-up's end to the last sample, None where there were not two."""
        if self._warm is None or self._last_s <= self._warm[0]:
            return None
        return (self.last - self._warm[1]) / (self._last_s - self._warm[0]) * 3600

    def to_plain(self) -> dict[str, object]:
        """In MiB."""
        growth = self.growth_an_hour
        return {
            "first_mib": round(self.first / _MIB, 1),
            "last_mib": round(self.last / _MIB, 1),
            "largest_mib": round(self.largest / _MIB, 1),
            "growth_mib_an_hour": None if growth is None else round(growth / _MIB, 1),
        }


@dataclass
class SoakReport:
    """Counts over all rounds, each one replay.

    swaps: those that were put on a stream, of them by transport. errors_by_call: what was raised to the user, each of
    which was asked again; faults_by_call: what was made to fail, also where the library did without. blocks_undefined:
    target blocks that errors named. blocks_verified: comparisons, each over all layers of a block; mismatches: blocks
    times layers that differed. failures: why the last round ended otherwise than it should; its seed makes it again.
    """

    fault_rate: float
    seed: int
    memory: ResidentMemory
    rounds: int = 0
    seconds: float = 0.0
    requests: int = 0
    swaps: int = 0
    transfers_by_transport: dict[str, int] = field(default_factory=dict)
    faults_by_call: dict[str, int] = field(default_factory=dict)
    errors_by_call: dict[str, int] = field(default_factory=dict)
    blocks_undefined: int = 0
    blocks_verified: int = 0
    mismatches: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not self.failures and not self.mismatches

    @property
    def retries(self) -> int:
        return sum(self.errors_by_call.values())

    def line(self) -> str:
        """What has come to pass so far."""
        return (
            f"{self.seconds:8.1f} s  {self.rounds} replays, {self.swaps:,} swaps, "
            f"{sum(self.faults_by_call.values()):,} faults, {self.retries:,} retries, "
            f"{self.blocks_verified:,} blocks verified, {self.mismatches} mismatches"
        )

    def lines(self) -> list[str]:
        return [
            self.line(),
            f"faults     {_by_name(self.faults_by_call)}",
            f"errors     {_by_name(self.errors_by_call)}",
            f"transports {_by_name(self.transfers_by_transport)}",
            "memory     " + ", ".join(f"{name} {value}" for name, value in self.memory.to_plain().items()),
            *(f"failed: {failure}" for failure in self.failures),
        ]

    def to_json(self) -> str:
        facts = {name: value for name, value in vars(self).items() if name != "memory"}
        return json.dumps({**facts, "retries": self.retries, "memory": self.memory.to_plain()}, indent=1)


def _by_name(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
