"""All that one ``bench`` found: the file that ``--json`` writes and ``plot`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from numba_kvswap.bench.beside_report import BesideReport
from numba_kvswap.bench.json_fields import from_plain
from numba_kvswap.bench.matrix_report import MatrixReport
from numba_kvswap.bench.pool_time import PoolReport
from numba_kvswap.strict_json import load_json

#: Of the file: a hundred times what the longest run writes.
REPORT_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class BenchReport:
    """Parts that were not asked for are None. host_time: `HostTimeReport.to_plain`."""

    engine: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    host_time: Mapping[str, Any] | None = None
    matrix: MatrixReport | None = None
    beside: BesideReport | None = None
    pool: PoolReport | None = None

    def to_json(self) -> str:
        """One JSON object, field by field; names end in their unit."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """ValueError, which names the place, where `text` is not what `to_json` writes."""
        try:
            return from_plain(cls, load_json(text))
        except OverflowError as error:  # an integer beyond any float
            raise ValueError(f"the report cannot be read: {error}") from error
