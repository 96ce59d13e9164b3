"""One bug to plant, and what must find it."""

from __future__ import annotations

from dataclasses import dataclass

#: What `python -m numba_kvswap check` must find.
CHECK = "check"
#: And `check --stateful`, from one seed.
CHECK_STATEFUL = f"{CHECK} --stateful"


@dataclass(frozen=True)
class Bug:
    """`old` stands once in numba_kvswap/`file`, and `new` takes its place; `caught_by` is a CHECK or a test file."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str = CHECK
