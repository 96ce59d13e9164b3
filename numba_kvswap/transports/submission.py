"""What a transport says of its own submission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from numba_kvswap.driver import KVSwapDriverError

#: What tells when everything that was submitted has landed: the end event; the stream, where the event could not be
#: recorded; or nothing needs to, since nothing was put on the stream.
Marker = Literal["event", "stream", "nothing"]


@dataclass(frozen=True)
class Submission:
    """error: what failed, None where nothing did; less than the plan was then put on the stream."""

    marker: Marker
    error: KVSwapDriverError | None = None
