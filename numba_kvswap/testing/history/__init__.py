"""Whole histories of swaps, compute and waits on several streams, each held to what they leave one after the other.

A `World` is some caches, Swappers and streams; actions are values that it is told to `apply`. Who draws them does not
matter: Hypothesis, a seed (`walk`), or a list that failed before (`replay`).
"""

from numba_kvswap.testing.history.actions import ACTIONS, Action, make_action
from numba_kvswap.testing.history.machines import Machine, SimulatedMachine, machine_named
from numba_kvswap.testing.history.sides import Content, Side
from numba_kvswap.testing.history.walk import HistoryReport, replay, walk
from numba_kvswap.testing.history.world import HistoryMismatch, Shape, World, make_shape

__all__ = [
    "ACTIONS",
    "Action",
    "Content",
    "HistoryMismatch",
    "HistoryReport",
    "Machine",
    "Shape",
    "Side",
    "SimulatedMachine",
    "World",
    "machine_named",
    "make_action",
    "make_shape",
    "replay",
    "walk",
]
