"""What a forked child finds: no driver of its parent's that does anything, and no lock that nobody will release.

CUDA does not work in a child of a process that has used it, and a simulated device's copies would be made twice. What
another thread held at the fork stays held in the child, where that thread is not.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABCMeta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

from numba_kvswap.driver.errors import KVSwapDriverError
from numba_kvswap.driver.in_flight import InFlight

if TYPE_CHECKING:
    from numba_kvswap.driver.table import Driver

FORKED_ADVICE = (
    "This is a forked child, and the driver was made before the fork: a forked child cannot use it. Start the process "
    "with multiprocessing's 'spawn', or make the driver after the fork"
)
#: Verbs that ask and change nothing.
_HARMLESS = ("result_name", "uninterrupted")

_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def useless_in_children(driver: Driver) -> None:
    """From a fork on, each verb of this driver raises KVSwapDriverError in the child, before it takes any lock, and its
    `discard_` verbs, which finalizers call, do nothing: what the driver holds is the parent's. Costs nothing before."""
    _drivers.add(driver)


def fresh_locks_in_children(kind: type) -> None:
    """For the cached properties of a class, each of which has one lock for all instances before Python 3.12."""
    held = [found for found in vars(kind).values() if isinstance(found, cached_property) and hasattr(found, "lock")]

    def renew() -> None:
        for found in held:
            found.lock = threading.RLock()

    os.register_at_fork(after_in_child=renew)


def _make_useless() -> None:
    for driver in list(_drivers):
        driver.__class__ = _forked(type(driver))
        # Its lock may be held for ever, and there is nothing to wait for. What it kept alive may go: see `discard_`.
        driver.in_flight = InFlight()


os.register_at_fork(after_in_child=_make_useless)


@cache
def _forked(kind: type[Driver]) -> type[Driver]:
    if kind.__name__.startswith("Forked"):  # the child of a child
        return kind
    verbs = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    members = {name: _nothing if name.startswith("discard_") else _refuse for name in verbs if name not in _HARMLESS}
    return cast("type[Driver]", ABCMeta(f"Forked{kind.__name__}", (kind,), members))


# By the name of a call that is a question: the work itself, in the parent, has not failed.
def _refuse(*_arguments: Any, **_options: Any) -> NoReturn:
    raise KVSwapDriverError("cuCtxSetCurrent", "CUDA_ERROR_NOT_INITIALIZED", advice=FORKED_ADVICE)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """In place of a verb that would give back what is the parent's."""
