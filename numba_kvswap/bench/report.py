"""What the benchmark found, as JSON for comparison and as a table for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numba_kvswap.bench.launch_ways import LAUNCH_C, LAUNCH_SUBMIT
from numba_kvswap.bench.named_ways import AUTO
from numba_kvswap.bench.scattered_swap import Geometry
from numba_kvswap.bench.spread import Spread
from numba_kvswap.bench.ways import BINDINGS_LOOP, C_LOOP, PYTHON_COPIES, python_name
from numba_kvswap.link import Link
from numba_kvswap.text_table import aligned, number

ALONE, BUSY = "alone", "busy thread"
#: Where in its turn with the GIL a call begins. After a wait the turn is fresh: nobody cuts it short for a whole switch
#: interval.
ANYWHERE, AFTER_A_WAIT, AFTER_A_SLEEP = "anywhere", "right after a wait", "right after a sleep"
BEGINNINGS = (ANYWHERE, AFTER_A_WAIT, AFTER_A_SLEEP)

#: The most that the hundredth worst call beside a busy thread may take of the median alone.
BUSY_P99_TO_P50_MAX = 3.0
#: The most microseconds that a launch from Python may take beyond the same launch from C.
OVER_C_US_MAX = 10.0
_AUTO_CALLS = (python_name(AUTO, "out"), python_name(AUTO, "in"))

# Name of a ratio: of which row, to which. Each is of medians.
_RATIOS = {
    "python_to_c_alone": ((PYTHON_COPIES, ALONE), (C_LOOP, ALONE)),
    "python_busy_to_c_alone": ((PYTHON_COPIES, BUSY), (C_LOOP, ALONE)),
    "python_busy_to_python_alone": ((PYTHON_COPIES, BUSY), (PYTHON_COPIES, ALONE)),
    "bindings_to_c_alone": ((BINDINGS_LOOP, ALONE), (C_LOOP, ALONE)),
    "bindings_busy_to_c_alone": ((BINDINGS_LOOP, BUSY), (C_LOOP, ALONE)),
}


@dataclass(frozen=True)
class PlanRow:
    """Host time of one `Plan`. target_us_max: what its median is meant to stay below, None where nothing is."""

    name: str
    pairs: int
    time: Spread
    target_us_max: float | None


@dataclass(frozen=True)
class SubmitRow:
    """Host time of submitting the swap one way. landed_s: median from call to last byte, None on a simulated device."""

    way: str
    beside: str
    time: Spread
    landed_s: float | None


@dataclass(frozen=True)
class CallRow:
    """Microseconds of the whole Python call, over `calls` calls. begins: where in its turn with the GIL each began."""

    way: str
    beside: str
    begins: str
    p50_us: float
    p99_us: float
    calls: int


@dataclass(frozen=True)
class Bar:
    """One figure that must be shown: what it is, and the most it may be."""

    name: str
    found: float
    most: float

    @property
    def met(self) -> bool:
        return self.found <= self.most


@dataclass(frozen=True)
class HostTimeReport:
    """All figures of one run. A way without rows has its reason in `why_missing`, or was not asked for.

    launch: the swap by one kernel, submitted in C, by the compiled loop alone, and by the whole Python call.
    """

    engine: str
    repeats: int
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    geometry: Geometry
    plan: Sequence[PlanRow]
    submit: Sequence[SubmitRow]
    launch: Sequence[SubmitRow] = ()
    calls: Sequence[CallRow] = ()
    link: Link | None = None
    why_missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float | None]:
        """Of medians; None where one of the two was not measured."""
        return {name: self._ratio(self._median_us(*of), self._median_us(*to)) for name, (of, to) in _RATIOS.items()}

    def to_c_alone(self, row: SubmitRow) -> float | None:
        """The row's median to that of the C loop alone, None where the latter was not measured."""
        return self._ratio(row.time.median_us, self._median_us(C_LOOP, ALONE))

    def landed_gb_per_s(self, row: SubmitRow) -> float | None:
        """GB/s (10^9 bytes) from call to last byte."""
        return None if row.landed_s is None else self.geometry.bytes / row.landed_s / 1e9

    def over_c_us(self, row: SubmitRow) -> float | None:
        """Microseconds that a launch's median is above that from C, None where the latter was not measured."""
        in_c = next((one.time.median_us for one in self.launch if one.way == LAUNCH_C), None)
        return None if in_c is None else row.time.median_us - in_c

    def bars(self) -> Iterator[Bar]:
        """Beside a busy thread, auto's call each way, and a launch beside the same from C.

        The whole call, which also plans and checks, has a bar of its own in the matrix.
        """
        medians = {(row.way, row.begins): row.p50_us for row in self.calls if row.beside == ALONE}
        for row in self.calls:
            if row.beside == BUSY and row.way in _AUTO_CALLS and (row.way, row.begins) in medians:
                name = f"{row.way}, {row.begins}: p99 beside a busy thread to p50 alone"
                yield Bar(name, row.p99_us / medians[row.way, row.begins], BUSY_P99_TO_P50_MAX)
        for launch in self.launch:
            over = self.over_c_us(launch)
            if launch.way == LAUNCH_SUBMIT and over is not None:
                yield Bar(f"{launch.way}: us more than from C", over, OVER_C_US_MAX)

    def _median_us(self, way: str, beside: str) -> float | None:
        return next((row.time.median_us for row in self.submit if (row.way, row.beside) == (way, beside)), None)

    @staticmethod
    def _ratio(of: float | None, to: float | None) -> float | None:
        return None if of is None or to is None else of / to

    def to_json(self) -> str:
        """`to_plain` as text."""
        return json.dumps(self.to_plain(), indent=2)

    def to_plain(self) -> dict[str, object]:
        """As JSON has it. Names end in their unit; a figure that was not measured is None."""
        link = self.link
        return {
            "engine": self.engine,
            "repeats": self.repeats,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "swap": vars(self.geometry) | {"copies": self.geometry.copies, "bytes": self.geometry.bytes},
            "plan": [
                {"name": row.name, "pairs": row.pairs, **vars(row.time), "target_us_max": row.target_us_max}
                for row in self.plan
            ],
            "submit": [self._submit_json(row) for row in self.submit],
            "launch": [
                {"way": row.way, **vars(row.time), "over_c_us": self.over_c_us(row), "landed_s": row.landed_s}
                for row in self.launch
            ],
            "calls": [vars(row) for row in self.calls],
            "bars": [vars(bar) | {"met": bar.met} for bar in self.bars()],
            "ratios": self.ratios,
            "link": link and vars(link) | {"out_gb_per_s": link.out_gb_per_s, "in_gb_per_s": link.in_gb_per_s},
            "why_missing": dict(self.why_missing),
        }

    def _submit_json(self, row: SubmitRow) -> dict[str, object]:
        return {
            "way": row.way,
            "beside": row.beside,
            **vars(row.time),
            "to_c_loop_alone_ratio": self.to_c_alone(row),
            "landed_s": row.landed_s,
            "landed_gb_per_s": self.landed_gb_per_s(row),
        }

    def table(self) -> str:
        """The report as plain aligned text."""
        parts = [
            self._heading(),
            self._plan_lines(),
            self._submit_lines(),
            self._ratio_lines(),
            self._launch_lines(),
            self._call_lines(),
            self._bar_lines(),
            self._link_lines(),
        ]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _heading(self) -> list[str]:
        facts, geometry = self.machine, self.geometry
        return [
            f"engine    {self.engine} ({facts.get('device_name', '?')}, driver {facts.get('driver_version', '?')})",
            f"host      {facts.get('cpus', '?')} CPUs, "
            + ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            f"swap      {geometry.blocks_moved} scattered blocks x {geometry.layers} layers x "
            f"{geometry.block_bytes:,} bytes, device to host, or back where a way says in",
        ]

    def _plan_lines(self) -> list[str]:
        if not self.plan:
            return []
        rows = [("plan", "pairs", "median us", "min us", "max us", "times", "target us")]
        for row in self.plan:
            target = "-" if row.target_us_max is None else f"< {row.target_us_max:.0f}"
            rows.append((row.name, f"{row.pairs:,}", *_spread_cells(row.time), target))
        return aligned(rows, left_columns=1)

    def _submit_lines(self) -> list[str]:
        width = max(map(len, self.why_missing), default=0)
        missing = [f"{name:<{width}}  not measured: {why}" for name, why in self.why_missing.items()]
        if not self.submit:
            return missing
        title = f"submit    the swap as {self.geometry.copies:,} copies"
        landed = any(row.landed_s is not None for row in self.submit)
        heading = ["way", "beside", "median us", "min us", "max us", "times", "to the C loop alone"]
        rows = [(*heading, *(("landed s", "GB/s") if landed else ()))]
        for row in self.submit:
            cells = [row.way, row.beside, *_spread_cells(row.time), number(self.to_c_alone(row), 2)]
            if landed:
                cells += [number(row.landed_s, 4), number(self.landed_gb_per_s(row), 2)]
            rows.append(tuple(cells))
        return [title, *aligned(rows, left_columns=2), *missing]

    def _ratio_lines(self) -> list[str]:
        found = {name.replace("_", " "): ratio for name, ratio in self.ratios.items() if ratio is not None}
        return aligned([(name, f"{ratio:.2f}") for name, ratio in found.items()], left_columns=1) if found else []

    def _launch_lines(self) -> list[str]:
        if not self.launch:
            return []
        rows = [("the swap by one launch", "median us", "min us", "max us", "times", "us more than from C")]
        rows += [(row.way, *_spread_cells(row.time), number(self.over_c_us(row), 1)) for row in self.launch]
        return aligned(rows, left_columns=1)

    def _bar_lines(self) -> list[str]:
        rows = [
            (bar.name, f"{bar.found:.2f}", f"<= {bar.most:.0f}", "ok" if bar.met else "MISS") for bar in self.bars()
        ]
        return aligned([("must show", "found", "bar", ""), *rows], left_columns=1) if rows else []

    def _call_lines(self) -> list[str]:
        if not self.calls:
            return []
        rows = [("whole call", "beside", "begins", "p50 us", "p99 us", "calls")]
        for row in self.calls:
            figures = (number(row.p50_us, 1), number(row.p99_us, 1), str(row.calls))
            rows.append((row.way, row.beside, row.begins, *figures))
        return aligned(rows, left_columns=3)

    def _link_lines(self) -> list[str]:
        link = self.link
        if link is None:
            return []
        return [
            f"link      one pinned copy of {link.bytes:,} bytes: "
            f"{link.out_gb_per_s:.2f} GB/s out, {link.in_gb_per_s:.2f} GB/s in"
        ]


def _spread_cells(time: Spread) -> tuple[str, str, str, str]:
    return f"{time.median_us:,.1f}", f"{time.min_us:,.1f}", f"{time.max_us:,.1f}", str(time.repeats)
