"""The transports by name, from the plainest up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.transports import Job, Submission, batch, copies, kernel, ring, split


class Transport(Protocol):
    """See the package's docstring."""

    def why_not(self, pair: CachePair) -> str: ...

    def make_ready(self, pair: CachePair, direction: Direction) -> None: ...

    def submit(self, job: Job) -> Submission: ...


TRANSPORTS: Mapping[str, Transport] = MappingProxyType(
    {"copies": copies, "batch": batch, "kernel": kernel, "ring": ring, "split": split}
)


def transport_named(name: str) -> Transport:
    """Raises ValueError, naming the known ones."""
    if name not in TRANSPORTS:
        raise ValueError(f"transport is {name!r}; expected 'auto' or one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name]
