"""Numbers from outside: single ones, and lists of block ids, checked for being integers at all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
#: What compiled loops take beside ids: counts and flags, and addresses and sizes.
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

#: No cache has that many blocks, and int64 holds every id below it.
NO_BOUND = 1 << 63


def check_integer(value: object, name: str) -> int:
    """`value` as a Python integer; TypeError for bool, float, None and the rest."""
    if isinstance(value, (bool, np.bool_, np.timedelta64)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; expected an integer")
    return int(value)


def checked_timeout_s(timeout_s: object) -> float | None:
    """`timeout_s`, None for no limit; TypeError for what is no number, ValueError for one below 0 and for NaN."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, (bool, np.bool_)) or not isinstance(timeout_s, (int, float, np.integer, np.floating)):
        raise TypeError(f"timeout_s is {timeout_s!r}; expected seconds, or None for no limit")
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; expected 0 or more, or None for no limit")
    # Some 292 years are for ever, and the longest that Python's waits take.
    return None if timeout_s > threading.TIMEOUT_MAX else float(timeout_s)


def as_ids(ids: Iterable[Any], side: str) -> npt.NDArray[Any]:
    """A fresh int64 array of the ids; of dtype object where one is beyond 63 bits, for a check of bounds to name.

    Raises TypeError for anything but a one-dimensional sequence of integers in host memory.
    """
    if type(ids) is not np.ndarray:
        ids = _tensor_as_array(ids, side)
    if type(ids) is np.ndarray and ids.ndim == 1 and (kind := ids.dtype.kind) in "iu":
        too_large = kind == "u" and ids.itemsize == 8 and ids.size and ids.max() >= NO_BOUND
        return ids.astype(object if too_large else np.int64)
    listed = _listed(ids)
    if listed is None:
        raise TypeError(f"{side} ids are {ids!r}; expected a one-dimensional sequence of integers{_advice(ids)}")
    if set(map(type, listed)) - {int}:
        listed = [check_integer(value, f"{side} id at position {i}") for i, value in enumerate(listed)]
    try:
        return np.fromiter(listed, np.int64, len(listed))
    except OverflowError:
        return np.array(listed, object)


def _tensor_as_array(ids: Any, side: str) -> Any:
    """A torch tensor of integers as an array; anything else as it is. Raises TypeError for one on a device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(ids, torch.Tensor):
        return ids
    if ids.device.type != "cpu":
        raise TypeError(f"{side} ids lie on {ids.device}; expected them in host memory; pass ids.cpu()")
    return ids if ids.is_floating_point() or ids.is_complex() else ids.detach().numpy()


def _listed(ids: Any) -> list[Any] | None:
    """The ids as a list, None where they are nothing of the kind."""
    if isinstance(ids, np.ndarray) and (ids.ndim != 1 or (ids.size and ids.dtype.kind in "bmM")):
        return None  # of dates, tolist would make integers
    if not hasattr(ids, "tolist") and not isinstance(ids, Iterable):
        return None
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return listed if isinstance(listed, list) else None


def _advice(ids: Any) -> str:
    is_mask = isinstance(ids, np.ndarray) and ids.dtype.kind == "b"
    return "; of a mask take numpy.flatnonzero" if is_mask else ""
