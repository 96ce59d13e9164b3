"""Histories from a seed: ``python -m numba_kvswap check --stateful``. A new world every few hundred actions."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

from numba_kvswap.testing.history.actions import Action, make_action
from numba_kvswap.testing.history.machines import machine_named
from numba_kvswap.testing.history.world import HistoryMismatch, Shape, World, make_shape

_WORLD_STEPS = 250


@dataclass
class HistoryReport:
    """steps: actions, and how many of each kind. faults: failures of the driver that struck. mismatches: 1 or 0, since
    the walk ends with the first."""

    engine: str
    seed: int
    transport: str
    steps: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    worlds: int = 0
    checkpoints: int = 0
    faults: int = 0
    blocks_compared: int = 0
    mismatches: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{name} {count}" for name, count in Counter(self.by_kind).most_common())
        return [
            f"{self.steps} steps in {self.worlds} worlds on {self.engine}, transports {self.transport}: {kinds}",
            f"{self.checkpoints} checkpoints, {self.faults} faults, {self.blocks_compared} blocks compared: "
            f"{self.mismatches} mismatches, {self.seconds:.1f} s, {self.steps / max(self.seconds, 1e-9):.0f} steps/s",
        ]


def walk(engine: str, steps: int, seed: int, transport: str | None = None) -> tuple[HistoryReport, str]:
    """Take so many steps; returns the counts, and how to repeat the first mismatch, or "".

    engine: "simulated" or "cuda". transport: of every Swapper, None for one each drawn. The same seed makes the same
    steps, on the simulated device down to its schedule. Raises as `machine_named` does.
    """
    report = HistoryReport(engine, seed, transport or "drawn")
    started = time.perf_counter()
    mismatch = ""
    with tqdm(total=steps, unit=" steps", disable=None) as bar, _no_collections():
        while report.steps < steps and not mismatch:
            world_seed = seed if report.worlds == 0 else random.Random(f"{seed} {report.worlds}").getrandbits(48)
            before = report.steps
            mismatch = _one_world(report, world_seed, min(_WORLD_STEPS, steps - report.steps), transport)
            gc.collect()
            bar.update(report.steps - before)
    report.seconds = time.perf_counter() - started
    return report, mismatch


def replay(shape: Shape, actions: Sequence[Action], engine: str = "simulated") -> World:
    """A world of that shape after these actions and a last checkpoint. Raises what a failing history raises."""
    world = _world_of(engine, shape)
    for action in actions:
        world.apply(action)
    world.finish()
    return world


def _world_of(engine: str, shape: Shape) -> World:
    return World(shape, machine_named(engine, shape.seed, shape.schedule, block_bytes=shape.block_bytes_max))


def _one_world(report: HistoryReport, seed: int, steps: int, transport: str | None) -> str:
    pick = random.Random(seed).randint
    shape, actions, world = make_shape(pick, transport), list[Action](), None
    report.worlds += 1
    try:
        world = _world_of(report.engine, shape)
        for _ in range(steps):
            actions.append(make_action(pick))
            report.steps += 1
            world.apply(actions[-1])
        world.finish()
    except Exception as error:  # whatever a library raises that it must not is a finding too
        if world is None and not isinstance(error, HistoryMismatch):
            raise
        report.mismatches += 1
        return _how_to_repeat(report, seed, shape, actions, error, transport)
    finally:
        if world is not None:
            report.by_kind = dict(Counter(report.by_kind) + world.counted)
            report.checkpoints += world.checkpoints
            report.faults += world.faults
            report.blocks_compared += world.blocks_compared
    return ""


def _how_to_repeat(
    report: HistoryReport, seed: int, shape: Shape, actions: Sequence[Action], error: Exception, transport: str | None
) -> str:
    by_transport = f" --transport {transport}" if transport else ""
    names = ", ".join(sorted({type(action).__name__ for action in actions}))
    return "\n".join(
        [
            f"# step {len(actions)} of the world of seed {seed}: {type(error).__name__}: {error}",
            f"# python -m numba_kvswap check --stateful --engine {report.engine} --seed {seed} "
            f"--steps {len(actions)}{by_transport}",
            "from numba_kvswap.testing.history import Shape, replay",
            f"from numba_kvswap.testing.history.actions import {names}",
            "",
            f"shape = {shape!r}",
            "actions = [",
            *(f"    {action!r}," for action in actions),
            "]",
            f"replay(shape, actions, {report.engine!r})",
        ]
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """When the garbage collector starts depends on all that ran before, and what it frees calls the driver."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # what there is already need not be looked through between worlds
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
