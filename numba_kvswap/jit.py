"""The two ways in which this package compiles, both cached across processes: without the GIL, and holding it."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function`, compiled on its first call by Numba, to run without the GIL."""
    return cast(Function, _compiled(function, nogil=True))


def holding_the_gil(without: Function) -> Function:
    """What `compiled` made, compiled again to keep the GIL, for calls that take microseconds.

    Who gives the GIL up beside a busy thread gets it back a switch interval later, after 5 ms.
    """
    plain = cast(Any, without).py_func
    again = FunctionType(plain.__code__, plain.__globals__, f"{plain.__name__}_holding_the_gil")
    again.__qualname__ = f"{plain.__qualname__}_holding_the_gil"  # by which the two are told apart on disk
    again.__module__ = plain.__module__
    return cast(Function, _compiled(again, nogil=False))


def _compiled(function: Callable[..., object], *, nogil: bool) -> object:
    try:
        return njit(nogil=nogil, cache=True)(function)
    except RuntimeError:  # there is no folder to cache in, neither beside the file nor in the user's home
        return njit(nogil=nogil)(function)
