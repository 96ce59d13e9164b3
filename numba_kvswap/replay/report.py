"""What a replay found: the counts, as JSON for comparison and as a table for reading."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from numba_kvswap.text_table import aligned

_BYTES_A_GB = 1e9


@dataclass(slots=True)
class ReplayReport:
    """Counts of a replay, added up while it runs. Bytes are over all layers; a run is one merged piece of id pairs.

    A host run is a maximal run of consecutive host blocks in one call, wherever its device blocks lie: what counts for
    a transport that gathers on the device and copies what is contiguous on the host.

    `host_slots` and `host_headroom_percent` are the placement's, `transport` and `favor` the Swapper's;
    `transfers_by_transport` counts calls by the transport that each went by. `blocks_verified` counts comparisons, each
    over all layers of a block: every block swapped in, and at the end every resident block of both sides. `mismatches`
    counts blocks times layers that differed. `seconds` is the whole replay, `swap_seconds_*` the swaps alone;
    `link_gb_per_s_*` is one large pinned copy in the same run, 0 where there is no link to measure.
    """

    engine: str
    device: str
    host_slots: str
    host_headroom_percent: float = 0.0
    transport: str = "auto"
    favor: str = "swap"
    transfers_by_transport: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    blocks_out: int = 0
    blocks_in: int = 0
    blocks_computed: int = 0
    runs_out: int = 0
    runs_in: int = 0
    host_runs_out: int = 0
    host_runs_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    blocks_verified: int = 0
    mismatches: int = 0
    seconds: float = 0.0
    swap_seconds_out: float = 0.0
    swap_seconds_in: float = 0.0
    link_gb_per_s_out: float = 0.0
    link_gb_per_s_in: float = 0.0

    @property
    def link_seconds(self) -> float:
        """Seconds that the link's single large copies would take for the same bytes; 0 where it was not measured."""
        if not (self.link_gb_per_s_out and self.link_gb_per_s_in):
            return 0.0
        return (self.bytes_out / self.link_gb_per_s_out + self.bytes_in / self.link_gb_per_s_in) / _BYTES_A_GB

    @property
    def gb_per_s_out(self) -> float:
        """GB/s (10^9 bytes) of the swap outs alone; 0 where there were none."""
        return _gb_per_s(self.bytes_out, self.swap_seconds_out)

    @property
    def gb_per_s_in(self) -> float:
        """GB/s (10^9 bytes) of the swap ins alone; 0 where there were none."""
        return _gb_per_s(self.bytes_in, self.swap_seconds_in)

    @property
    def gb_per_s(self) -> float:
        """GB/s (10^9 bytes) of all swaps together, over the time spent in swaps; 0 where there were none."""
        return _gb_per_s(self.bytes_out + self.bytes_in, self.swap_seconds_out + self.swap_seconds_in)

    @property
    def link_gb_per_s(self) -> float:
        """GB/s (10^9 bytes) of the link's single large copies over the same bytes; 0 where it was not measured."""
        return _gb_per_s(self.bytes_out + self.bytes_in, self.link_seconds)

    def to_plain(self) -> dict[str, object]:
        """Every field by its name, and gb_per_s, gb_per_s_out, gb_per_s_in and link_seconds."""
        rates = {name: getattr(self, name) for name in ("gb_per_s", "gb_per_s_out", "gb_per_s_in", "link_seconds")}
        return dataclasses.asdict(self) | rates

    def to_json(self) -> str:
        """`to_plain` as one JSON object."""
        return json.dumps(self.to_plain(), indent=2)

    def table(self) -> str:
        """The report as plain aligned text: a column each way, then the totals."""
        blocks_total = self.blocks_out + self.blocks_in
        rows: list[tuple[str, ...]] = [
            ("", "out", "in", "both"),
            ("blocks", _count(self.blocks_out), _count(self.blocks_in), _count(blocks_total)),
            ("bytes", _count(self.bytes_out), _count(self.bytes_in), _count(self.bytes_out + self.bytes_in)),
            *self._run_rows("runs", "blocks a run", self.runs_out, self.runs_in),
            *self._run_rows("host runs", "blocks a host run", self.host_runs_out, self.host_runs_in),
            (
                "swap seconds",
                f"{self.swap_seconds_out:.3f}",
                f"{self.swap_seconds_in:.3f}",
                f"{self.swap_seconds_out + self.swap_seconds_in:.3f}",
            ),
            ("GB/s", f"{self.gb_per_s_out:.2f}", f"{self.gb_per_s_in:.2f}", f"{self.gb_per_s:.2f}"),
        ]
        if self.link_seconds:
            rates = (self.link_gb_per_s_out, self.link_gb_per_s_in, self.link_gb_per_s)
            rows.append(("the link's GB/s", *(f"{rate:.2f}" for rate in rates)))
        facts = [
            ("engine", f"{self.engine} ({self.device})"),
            ("host slots", self._slots_in_words()),
            ("transport", self._transport_in_words()),
            ("requests", _count(self.requests)),
            ("blocks computed", _count(self.blocks_computed)),
            ("blocks verified", _count(self.blocks_verified)),
            ("mismatches", _count(self.mismatches)),
            ("seconds", f"{self.seconds:.3f}"),
            *(("note", words) for words in self._notes()),
        ]
        name_width = max(len(name) for name, *_ in [*rows, *facts])
        lines = [f"{name:<{name_width}}  {value}" for name, value in facts]
        padded = [(name.ljust(name_width), *cells) for name, *cells in rows]
        return "\n".join([*lines, "", *aligned(padded, left_columns=1)])

    def _notes(self) -> Iterator[str]:
        if not self.bytes_out + self.bytes_in:
            yield "nothing was swapped: the device held all of it; lower --device-blocks, or take more requests"
        if self.engine == "simulated":
            yield "seconds on the simulated device mean nothing; compiling what runs on it is among them"

    def _slots_in_words(self) -> str:
        headroom = self.host_headroom_percent
        return f"{self.host_slots}, {headroom:g} % of them kept free" if headroom else self.host_slots

    def _transport_in_words(self) -> str:
        asked = self.transport if self.favor == "swap" else f"{self.transport}, favor {self.favor}"
        counts = ", ".join(f"{_count(calls)} by {name}" for name, calls in self.transfers_by_transport.items())
        return f"{asked}: calls {counts}" if counts else asked

    def _run_rows(self, name: str, length_name: str, runs_out: int, runs_in: int) -> list[tuple[str, ...]]:
        """How many runs, and how long."""
        blocks = (self.blocks_out, self.blocks_in, self.blocks_out + self.blocks_in)
        runs = (runs_out, runs_in, runs_out + runs_in)
        lengths = [_run_length(*each) for each in zip(blocks, runs, strict=True)]
        return [(name, *map(_count, runs)), (length_name, *lengths)]


def runs_json(reports: Sequence[ReplayReport]) -> str:
    """One report's JSON as it is; several as ``{"runs": [...]}``."""
    if len(reports) == 1:
        return reports[0].to_json()
    return json.dumps({"runs": [report.to_plain() for report in reports]}, indent=2)


def comparison(reports: Sequence[ReplayReport]) -> str:
    """What the swaps of one trace took by each transport, a row a report, as plain aligned text; the link's last.

    Each row has its GB/s to the link's over the same bytes of its own run, where there is a link.
    """
    rows: list[tuple[str, ...]] = [("swap seconds and GB/s", "out s", "in s", "both s", "out", "in", "both", "to link")]
    for report in reports:
        seconds = (report.swap_seconds_out, report.swap_seconds_in, report.swap_seconds_out + report.swap_seconds_in)
        rates = (report.gb_per_s_out, report.gb_per_s_in, report.gb_per_s)
        to_link = f"{report.gb_per_s / report.link_gb_per_s:.3f}" if report.link_gb_per_s else "-"
        rows.append((report.transport, *(f"{s:.3f}" for s in seconds), *(f"{rate:.2f}" for rate in rates), to_link))
    last = reports[-1]
    if last.link_seconds:
        link_out, link_in = (
            last.bytes_out / last.link_gb_per_s_out / _BYTES_A_GB,
            last.bytes_in / last.link_gb_per_s_in / _BYTES_A_GB,
        )
        rates = (last.link_gb_per_s_out, last.link_gb_per_s_in, last.link_gb_per_s)
        seconds = (link_out, link_in, last.link_seconds)
        rows.append(("the link", *(f"{s:.3f}" for s in seconds), *(f"{rate:.2f}" for rate in rates), "1.000"))
    return "\n".join(aligned(rows, left_columns=1))


def _count(value: int) -> str:
    return f"{value:,}"


def _run_length(blocks: int, runs: int) -> str:
    return f"{blocks / runs:.2f}" if runs else "-"


def _gb_per_s(byte_count: int, seconds: float) -> float:
    return byte_count / seconds / _BYTES_A_GB if seconds > 0 else 0.0
