"""The one way in which this package compiles: without the GIL, cached across processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function`, compiled on its first call by Numba, to run without the GIL."""
    return cast(Function, njit(nogil=True, cache=True)(function))
