"""What can happen in a world, as values: drawn by anyone, printed, made again.

Numbers that name a thing there may not be (the 6th of the transfers under way) are taken modulo what there is. Which
streams the numbers of streams stand for, the world's shape says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from numba_kvswap.cache_pair import Direction
from numba_kvswap.testing.cases import Pick, made_ids

#: Of every world: its blocks a cache; its streams, Swappers, and caches of either side.
DEVICE_BLOCKS, HOST_BLOCKS = 8, 9
STREAMS, SWAPPERS, SIDES = 7, 4, 3
PAIRS_MAX = 6
#: Driver functions that a history makes fail: those that submissions call, half of the time, and others.
SUBMITTING = (
    "cuMemcpyAsync",
    "cuMemcpy2DAsync",
    "cuMemcpyBatchAsync",
    "cuLaunchKernel",
    "cuEventRecord",
    "cuStreamWaitEvent",
)
FAILING = (
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventCreate",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuPointerGetAttributes",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemFreeHost",
)
WrongCall = Literal["an id at its bound", "an id below 0", "an id that is no integer", "lists of different length"]


@dataclass(frozen=True)
class Swap:
    """By a ready plan where `by_plan`; else by lists, which are overwritten as soon as the call has returned."""

    swapper: int
    direction: Direction
    device_ids: tuple[int, ...]
    host_ids: tuple[int, ...]
    stream: int
    by_plan: bool = False


@dataclass(frozen=True)
class Write:
    """A kernel on `stream` writes a block of a device cache, in all layers."""

    cache: int
    block: int
    stream: int


@dataclass(frozen=True)
class Read:
    """A kernel on `stream` compares a block of a device cache with what it must hold by then."""

    cache: int
    block: int
    stream: int


@dataclass(frozen=True)
class HostWrite:
    """The host writes a block of a pool, once nothing touches it any more."""

    pool: int
    block: int


@dataclass(frozen=True)
class HostRead:
    """The host compares a block of a pool, once nothing writes it any more."""

    pool: int
    block: int


@dataclass(frozen=True)
class Wait:
    transfer: int


@dataclass(frozen=True)
class Done:
    transfer: int


@dataclass(frozen=True)
class WaitOn:
    transfer: int
    stream: int


@dataclass(frozen=True)
class Forget:
    """The user drops a transfer; an event on its stream stands for it."""

    transfer: int


@dataclass(frozen=True)
class Hold:
    """What is put on `stream` from now on waits for a latch."""

    stream: int


@dataclass(frozen=True)
class Open:
    latch: int


@dataclass(frozen=True)
class Remake:
    """The user drops a Swapper, whatever is under way, and makes another for its caches."""

    swapper: int


@dataclass(frozen=True)
class ClosePool:
    """With whatever is under way; swaps must then be refused. Another pool takes its place."""

    pool: int


@dataclass(frozen=True)
class Fault:
    """The `at`-th use of a driver function from now on fails, once. Of a simulated device alone."""

    call: str
    at: int


@dataclass(frozen=True)
class Mistake:
    """A call that must be refused and leave everything as it is."""

    swapper: int
    direction: Direction
    wrong: WrongCall
    at: int


@dataclass(frozen=True)
class Checkpoint:
    """Everything is synchronized, and every byte compared."""


Action = (
    Swap
    | Write
    | Read
    | HostWrite
    | HostRead
    | Wait
    | Done
    | WaitOn
    | Forget
    | Hold
    | Open
    | Remake
    | ClosePool
    | Fault
    | Mistake
    | Checkpoint
)

#: Some more often than others, so that swaps of one Swapper meet.
_SWAPPER_OF = (0, 0, 0, 1, 1, 2, 3)
_WRONG: tuple[WrongCall, ...] = get_args(WrongCall)


def _direction(pick: Pick) -> Direction:
    return "in" if pick(0, 1) else "out"


def _stream(pick: Pick) -> int:
    return pick(0, STREAMS - 1)


def _swap(pick: Pick) -> Action:
    # Short ones often: those that touch most blocks collide with everything, and hide what does not.
    pairs = pick(1, 2) if pick(0, 1) else pick(1, PAIRS_MAX)
    swapper = _SWAPPER_OF[pick(0, len(_SWAPPER_OF) - 1)]
    if pick(0, 2) == 0:  # runs on both sides at once, which two lists drawn apart hardly make
        device, host = pick(0, DEVICE_BLOCKS - 1), pick(0, HOST_BLOCKS - 1)
        pairs = min(pairs, DEVICE_BLOCKS - device, HOST_BLOCKS - host)
        ids = tuple(range(device, device + pairs)), tuple(range(host, host + pairs))
    else:
        ids = made_ids(pick, pairs, DEVICE_BLOCKS), made_ids(pick, pairs, HOST_BLOCKS)
    return Swap(swapper, _direction(pick), *ids, _stream(pick), pick(0, 3) == 3)


def _fault(pick: Pick) -> Action:
    calls = FAILING if pick(0, 1) else SUBMITTING
    return Fault(calls[pick(0, len(calls) - 1)], pick(0, 5))


def _mistake(pick: Pick) -> Action:
    return Mistake(pick(0, SWAPPERS - 1), _direction(pick), _WRONG[pick(0, len(_WRONG) - 1)], pick(0, PAIRS_MAX - 1))


#: Of each kind how often it comes, and how one is drawn.
ACTIONS: Mapping[str, tuple[int, Callable[[Pick], Action]]] = {
    "swap": (32, _swap),
    "write": (12, lambda pick: Write(pick(0, SIDES - 1), pick(0, DEVICE_BLOCKS - 1), _stream(pick))),
    "read": (14, lambda pick: Read(pick(0, SIDES - 1), pick(0, DEVICE_BLOCKS - 1), _stream(pick))),
    "host write": (3, lambda pick: HostWrite(pick(0, SIDES - 1), pick(0, HOST_BLOCKS - 1))),
    "host read": (5, lambda pick: HostRead(pick(0, SIDES - 1), pick(0, HOST_BLOCKS - 1))),
    "wait": (5, lambda pick: Wait(pick(0, 7))),
    "done": (6, lambda pick: Done(pick(0, 7))),
    "wait on": (4, lambda pick: WaitOn(pick(0, 7), _stream(pick))),
    "forget": (4, lambda pick: Forget(pick(0, 7))),
    "hold": (4, lambda pick: Hold(_stream(pick))),
    "open": (3, lambda pick: Open(pick(0, 3))),
    "remake": (1, lambda pick: Remake(pick(0, SWAPPERS - 1))),
    "close pool": (1, lambda pick: ClosePool(pick(0, SIDES - 1))),
    "fault": (2, _fault),
    "mistake": (2, _mistake),
    "checkpoint": (2, lambda pick: Checkpoint()),
}


def make_action(pick: Pick, kind: str = "") -> Action:
    """An action from integers drawn by `pick`, e.g. ``random.Random(0).randint``; of any kind, or of one of ACTIONS."""
    if not kind:
        at = pick(0, sum(weight for weight, _ in ACTIONS.values()) - 1)
        for kind, (weight, _) in ACTIONS.items():  # noqa: B007, PLR1704
            at -= weight
            if at < 0:
                break
    return ACTIONS[kind][1](pick)
