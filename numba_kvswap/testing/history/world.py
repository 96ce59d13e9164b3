"""A world: caches, Swappers, streams, and a careful user who orders what the library is not told to order.

The user makes one stream wait for another where two operations touch the same block, one of them writes it, and
nothing that is promised orders them: two swaps of one Swapper are the library's to order, and no fence of the user's
may hide one of its that is missing. So all must come out as if the actions had happened one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import KVSwapDriverError, SimulatedHang
from numba_kvswap.events import Event
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper
from numba_kvswap.testing.cases import Pick
from numba_kvswap.testing.history.actions import (
    DEVICE_BLOCKS,
    HOST_BLOCKS,
    SIDES,
    STREAMS,
    SWAPPERS,
    Action,
    Checkpoint,
    ClosePool,
    Done,
    Fault,
    Forget,
    Hold,
    HostRead,
    HostWrite,
    Mistake,
    Open,
    Read,
    Remake,
    Swap,
    Wait,
    WaitOn,
    Write,
)
from numba_kvswap.testing.history.machines import Latch, Machine
from numba_kvswap.testing.history.order import Clock, Clocks, Fence, Operation, later
from numba_kvswap.testing.history.sides import Content, Side, SideLayout
from numba_kvswap.transfer import Transfer
from numba_kvswap.transports.named import TRANSPORTS

_T = TypeVar("_T")
# What may be left under way, or put behind a latch: a real device's queues are not endless.
_TRANSFERS_MAX, _BEHIND_LATCHES_MAX = 16, 24
_SIZES_MAX, _LAYERS_MAX, _PAD_BYTES_MAX = 64, 4, 9
_DEVICE_LAYOUTS: tuple[SideLayout, ...] = ("apart", "layer_major", "block_major")
_HOST_LAYOUTS: tuple[SideLayout, ...] = ("block_major", "layer_major")
#: Whose swaps may also wait for others of their way, whatever their streams; see Swapper.
_OF_THE_RING = ("ring", "split")
_OVERWRITTEN = -(2**40)
#: What `SimulatedDriver.fail` makes calls fail with.
_INJECTED = "CUDA_ERROR_UNKNOWN"
# The function that was told to fail, and at which of its uses.
_NOTHING_FAILS = ("", 0)


class HistoryMismatch(AssertionError):
    """What the actions of a history left, or raised, is not what they must."""


@dataclass(frozen=True)
class Shape:
    """What a world is made of.

    sizes: block bytes a layer, of the caches 0 and 1 of either side, and of the caches 2. shared: what Swappers 0 and
    1 have in common, "both" for both caches; Swapper 2 has the caches 2, Swapper 3 the caches 1. layouts, pad_bytes:
    of each cache. transports: of each Swapper. streams: which of a machine's streams those of the actions are; where
    they are few, more happens on each. seed, schedule: of a simulated device, see SimulatedDriver.
    """

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    shared: Literal["device", "host", "both"]
    device_layouts: tuple[SideLayout, ...]
    host_layouts: tuple[SideLayout, ...]
    pad_bytes: tuple[int, ...]
    transports: tuple[str, ...]
    streams: tuple[int, ...] = tuple(range(STREAMS))
    seed: int = 0
    schedule: bytes | None = None

    @property
    def block_bytes_max(self) -> int:
        return max(sum(sizes) for sizes in self.sizes)


def make_shape(pick: Pick, transport: str | None = None, schedule: bytes | None = None) -> Shape:
    """A shape from integers drawn by `pick`. transport: of every Swapper, None for one each drawn."""
    names = ("auto", *TRANSPORTS)
    shared: tuple[Literal["device", "host", "both"], ...] = ("host", "device", "both")
    return Shape(
        sizes=(_made_sizes(pick), _made_sizes(pick)),
        shared=shared[pick(0, 2)],
        device_layouts=tuple(_DEVICE_LAYOUTS[pick(0, 2)] for _ in range(SIDES)),
        host_layouts=tuple(_HOST_LAYOUTS[pick(0, 1)] for _ in range(SIDES)),
        pad_bytes=tuple(pick(1, _PAD_BYTES_MAX) if pick(0, 2) == 2 else 0 for _ in range(2 * SIDES)),
        transports=tuple(transport or names[pick(0, len(names) - 1)] for _ in range(SWAPPERS)),
        streams=_made_streams(pick),
        seed=pick(0, 2**31),
        schedule=schedule,
    )


def _made_streams(pick: Pick) -> tuple[int, ...]:
    few = [pick(0, STREAMS - 1) for _ in range(pick(2, STREAMS))]
    return tuple(few[i % len(few)] for i in range(STREAMS))


def _made_sizes(pick: Pick) -> tuple[int, ...]:
    layers, same = pick(2, _LAYERS_MAX), pick(0, 1)
    sizes = [pick(1, _SIZES_MAX) for _ in range(1 if same else layers)]
    return tuple(sizes * layers if same else sizes)


@dataclass
class _User:
    """A Swapper, and which of the world's sides it moves between. number: never that of another one before."""

    swapper: Swapper
    device: int
    host: int
    number: int


@dataclass(eq=False)
class _UnderWay:
    """A transfer that the user holds."""

    transfer: Transfer
    operation: Operation
    targets: tuple[Side, tuple[int, ...]]


@dataclass(eq=False)
class _Held:
    latch: Latch
    timeline: int
    number: int
    behind: int = 0


class _TransferFence:
    """The library's own way to order others after a transfer."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def make_wait(self, stream: int) -> None:
        self._transfer.wait_on(stream)

    def synchronize(self) -> None:
        self._transfer.wait()


class World:
    """A world of that shape on a machine. Raises HistoryMismatch, or whatever the library raised that it must not.

    Attributes: counted, actions by kind; checkpoints, faults (that struck), blocks_compared.
    """

    def __init__(self, shape: Shape, machine: Machine) -> None:
        self.shape, self.machine, self._driver = shape, machine, machine.driver
        self._handles = [machine.streams[index] for index in shape.streams]
        self._timelines = [machine.timelines[index] for index in shape.streams]
        self.counted: Counter[str] = Counter()
        self.checkpoints = self.faults = self.blocks_compared = 0
        self._sure, self._perhaps = (Clocks(machine.kinds, promised=promised) for promised in (True, False))
        nothing: Clock = (0,) * len(machine.kinds)
        self._on_ring: dict[Direction, Clock] = {"out": nothing, "in": nothing}
        self._versions = self._numbers = 0
        self._transfers: list[_UnderWay] = []
        self._latches: list[_Held] = []
        self._told_to_fail = _NOTHING_FAILS
        self._contents = [Content(sizes) for sizes in shape.sizes]
        self._device_sides = [self._new_side("device", index) for index in range(SIDES)]
        self._host_sides = [self._new_side("host", index) for index in range(SIDES)]
        self._device_caches = [side.device_cache() for side in self._device_sides]
        self._pools = [side.host_cache() for side in self._host_sides]
        second = {"device": (0, 1), "host": (1, 0), "both": (0, 0)}[shape.shared]
        pairs = ((0, 0), second, (2, 2), (1, 1))
        self._users = [self._new_user(index, *pair) for index, pair in enumerate(pairs)]

    def apply(self, action: Action) -> None:
        self.counted[type(action).__name__] += 1
        self._DOERS[type(action)](self, action)
        if self._has_struck():  # and was not heard of: whoever met it could do without
            self._fail_no_more()
        self._raise_what_was_read()

    def check(self) -> None:
        """Open every latch, synchronize everything, and compare every byte."""
        self._open_latches()
        self._fail_no_more()
        with self._driver.activate(0):
            self._driver.synchronize()
        self._raise_what_was_read(synchronized=True)
        for clocks in (self._sure, self._perhaps):
            clocks.host_knows_all()
        for each in self._transfers:
            if not each.transfer.done():
                raise HistoryMismatch(f"{each.transfer!r} is not done after everything was synchronized")
            self._check_landed(each)
        if len(self._driver.in_flight):
            raise HistoryMismatch(f"{len(self._driver.in_flight)} swaps are in flight after all was synchronized")
        for side in (*self._device_sides, *self._host_sides):
            self._compare(side)
        self.checkpoints += 1

    def finish(self) -> None:
        """The last checkpoint. Nothing of the world is held afterwards."""
        self.check()
        self._transfers.clear()
        self._users.clear()
        for pool in self._pools:
            pool.close()

    # ---- what the actions do ----

    def _swap(self, action: Swap) -> None:
        user, out = self._users[action.swapper], action.direction == "out"
        device, host = self._device_sides[user.device], self._host_sides[user.host]
        source, target = (device, host) if out else (host, device)
        source_ids, target_ids = (action.device_ids, action.host_ids) if out else (action.host_ids, action.device_ids)
        timeline = self._timelines[action.stream]
        promised = self._order(action.stream, [(source, source_ids)], (target, target_ids), user.number)
        transfer, undefined = self._call(user.swapper, action, target_ids)
        if transfer is None:
            if undefined:
                # What was put on the stream before the failure runs there, and so ends before this event.
                operation = self._put(timeline, self._event(action.stream), user.number, ring=action.direction)
                self._note_failed(operation, (source, source_ids), (target, undefined))
            return
        self._keep_promises(timeline, promised)
        ring = action.direction if transfer.transport in _OF_THE_RING else None
        operation = self._put(timeline, _TransferFence(transfer), user.number, ring=ring)
        self._note(operation, [(source, source_ids)], (target, target_ids))
        for a, b in zip(source_ids, target_ids, strict=True):
            target.versions[b] = source.versions[a]
        self._keep(_UnderWay(transfer, operation, (target, target_ids)))

    def _call(
        self, swapper: Swapper, action: Swap, target_ids: tuple[int, ...]
    ) -> tuple[Transfer | None, tuple[int, ...]]:
        """The transfer; or None, and the targets that the failed call left undefined."""
        out, stream = action.direction == "out", self._handles[action.stream]
        method = swapper.swap_out if out else swapper.swap_in
        try:
            if action.by_plan:
                ids = (action.device_ids, action.host_ids) if out else (action.host_ids, action.device_ids)
                return method(Plan(*ids), stream=stream), ()
            device, host = list(action.device_ids), np.array(action.host_ids)
            try:
                return method(device, host, stream), ()
            finally:  # whoever still reads them has not copied them
                device[:] = [_OVERWRITTEN] * len(device)
                host[:] = _OVERWRITTEN
        except KVSwapDriverError as error:
            self._expect(error)
            undefined = error.undefined_targets
        if not set(undefined) <= set(target_ids):
            raise HistoryMismatch(f"undefined_targets is {undefined}; the swap's targets are {target_ids}")
        return None, undefined

    def _write(self, action: Write) -> None:
        side, stream = self._device_sides[action.cache], self._handles[action.stream]
        version = self._new_version()
        self._order(action.stream, [], (side, (action.block,)))
        self._surely(lambda: self.machine.write(stream, side, action.block, version))
        operation = self._put(self._timelines[action.stream], self._event(action.stream))
        self._note(operation, [], (side, (action.block,)))
        side.versions[action.block] = version

    def _read(self, action: Read) -> None:
        side, stream = self._device_sides[action.cache], self._handles[action.stream]
        version = side.versions[action.block]
        if version is None:
            return
        self._order(action.stream, [(side, (action.block,))], (side, ()))
        self._surely(lambda: self.machine.judge(stream, side, action.block, version))
        operation = self._put(self._timelines[action.stream], self._event(action.stream))
        self._note(operation, [(side, (action.block,))], (side, ()))
        self.blocks_compared += 1

    def _host_write(self, action: HostWrite) -> None:
        side, block = self._host_sides[action.pool], action.block
        for earlier in self._conflicts([], (side, (block,))):
            self._host_waits_for(earlier)
        side.versions[block] = version = self._new_version()
        for view, row in zip(side.views, side.content.of(version), strict=True):
            view[block] = row
        side.last_writes[block], side.last_reads[block] = [], {}

    def _host_read(self, action: HostRead) -> None:
        side = self._host_sides[action.pool]
        for earlier in self._conflicts([(side, (action.block,))], (side, ())):
            self._host_waits_for(earlier)
        self._look_at(side, action.block)

    def _wait(self, action: Wait) -> None:
        if not self._transfers:
            return
        each = self._transfers[-1 - action.transfer % len(self._transfers)]
        self._open_latches(before=each.operation)
        self._surely(each.transfer.wait)
        self._learn(each)

    def _done(self, action: Done) -> None:
        if not self._transfers:
            return
        each = self._transfers[-1 - action.transfer % len(self._transfers)]
        try:
            done = each.transfer.done()
        except KVSwapDriverError as error:
            self._expect(error)
            return
        if done:
            self._learn(each)
            return
        undefined, (_, targets) = each.transfer.undefined_targets, each.targets
        if undefined and set(undefined) != set(targets):  # none: it has landed meanwhile
            raise HistoryMismatch(f"{each.transfer!r} is under way to {targets}; its undefined_targets are {undefined}")

    def _wait_on(self, action: WaitOn) -> None:
        if not self._transfers:
            return
        each = self._transfers[-1 - action.transfer % len(self._transfers)]
        self._make_wait(action.stream, each.operation)

    def _forget(self, action: Forget) -> None:
        if self._transfers:
            self._drop(self._transfers.pop(-1 - action.transfer % len(self._transfers)))

    def _hold(self, action: Hold) -> None:
        if self._told_to_fail != _NOTHING_FAILS:
            return  # a failed submission may wait for what it began, which a closed latch would not let end
        latch = self.machine.hold(self._handles[action.stream])
        timeline = self._timelines[action.stream]
        after, _ = self._sure.put(timeline), self._perhaps.put(timeline)
        self._latches.append(_Held(latch, timeline, after[timeline]))

    def _open(self, action: Open) -> None:
        if self._latches:
            self._latches.pop(action.latch % len(self._latches)).latch.open()

    def _remake(self, action: Remake) -> None:
        if not self.machine.passes_latches:
            self._open_latches()
        user = self._users.pop(action.swapper)
        device, host = user.device, user.host
        del user  # before there is another one
        self._users.insert(action.swapper, self._new_user(action.swapper, device, host))

    def _close_pool(self, action: ClosePool) -> None:
        self._open_latches()
        side, pool = self._host_sides[action.pool], self._pools[action.pool]
        self._surely(pool.close)
        for operation in _touching(side):
            self._host_knows(operation.after)
        side.last_writes = [[] for _ in range(side.blocks)]  # nobody looks at it any more
        users = [index for index, user in enumerate(self._users) if user.host == action.pool]
        for index in users:
            for method in (self._users[index].swapper.swap_out, self._users[index].swapper.swap_in):
                self._refused(ValueError, lambda method=method: method([0], [0]))  # type: ignore[misc]
        self._host_sides[action.pool] = self._new_side("host", action.pool)
        self._pools[action.pool] = self._host_sides[action.pool].host_cache()
        for index in users:
            self._users[index] = self._new_user(index, self._users[index].device, action.pool)

    def _fault(self, action: Fault) -> None:
        if self.machine.simulated is None or self._told_to_fail != _NOTHING_FAILS:
            return
        self._open_latches()
        driver = self.machine.simulated.driver
        self._told_to_fail = (action.call, driver.calls[action.call] + action.at)
        driver.fail(action.call, at=action.at)

    def _mistake(self, action: Mistake) -> None:
        user = self._users[action.swapper]
        method = user.swapper.swap_out if action.direction == "out" else user.swapper.swap_in
        device_ids, host_ids = [0, 1, 2], [2, 1, 0]
        on_device = action.at % 2 == 0
        ids, blocks = (device_ids, DEVICE_BLOCKS) if on_device else (host_ids, HOST_BLOCKS)
        wrong: dict[str, tuple[type[Exception], Any]] = {
            "an id at its bound": (IndexError, blocks),
            "an id below 0": (IndexError, -1),
            "an id that is no integer": (TypeError, True),
        }
        if action.wrong == "lists of different length":
            ids.pop()
            self._refused(ValueError, lambda: method(device_ids, host_ids))
        else:
            expected, ids[action.at % len(ids)] = wrong[action.wrong]
            self._refused(expected, lambda: method(device_ids, host_ids))

    # ---- order ----

    def _conflicts(
        self, reads: Iterable[tuple[Side, tuple[int, ...]]], writes: tuple[Side, tuple[int, ...]]
    ) -> list[Operation]:
        """The operations before one of such reads and writes that it must come after: each once."""
        found: dict[Operation, None] = {}
        for side, blocks in reads:
            for block in blocks:
                found.update(dict.fromkeys(side.last_writes[block]))
        side, blocks = writes
        for block in blocks:
            found.update(dict.fromkeys(side.last_writes[block]))
            found.update(dict.fromkeys(side.last_reads[block].values()))
        return list(found)

    def _order(
        self,
        stream: int,
        reads: list[tuple[Side, tuple[int, ...]]],
        writes: tuple[Side, tuple[int, ...]],
        swapper: int = -1,
    ) -> list[Operation]:
        """Make `stream` wait for all that such an operation must come after, where nothing promised orders the two.

        Returns those that the library has promised to order before a swap of `swapper`.
        """
        conflicts = self._conflicts(reads, writes)
        promised = [each for each in conflicts if each.swapper == swapper != -1]
        # What the library orders may order others too, and then the user need not.
        known = later(self._sure.before(self._timelines[stream]), *(each.after for each in promised))
        for each in conflicts:
            if each not in promised and not each.is_in(known):
                self._make_wait(stream, each)
                known = later(known, each.fenced)
        return promised

    def _keep_promises(self, timeline: int, promised: list[Operation]) -> None:
        for each in promised:
            self._sure.make_wait(timeline, each.after)
            self._perhaps.make_wait(timeline, each.perhaps)

    def _make_wait(self, stream: int, operation: Operation) -> None:
        handle, timeline = self._handles[stream], self._timelines[stream]
        self._in_context(lambda: operation.fence.make_wait(handle))
        self._sure.make_wait(timeline, operation.fenced)
        self._perhaps.make_wait(timeline, operation.perhaps)

    def _put(self, timeline: int, fence: Fence, swapper: int = -1, *, ring: Direction | None = None) -> Operation:
        """Note that an operation was put there. ring: which way it may go by the ring."""
        if ring is not None:
            self._perhaps.make_wait(timeline, self._on_ring[ring])
        after, perhaps = self._sure.put(timeline), self._perhaps.put(timeline)
        operation = Operation(timeline, after[timeline], after, perhaps, fence, after, swapper)
        if ring is not None:
            self._on_ring[ring] = operation.perhaps
        for held in self._latches:
            held.behind += 1
        if any(held.behind >= _BEHIND_LATCHES_MAX for held in self._latches):
            self._open_latches()
        return operation

    @staticmethod
    def _note(
        operation: Operation, reads: list[tuple[Side, tuple[int, ...]]], writes: tuple[Side, tuple[int, ...]]
    ) -> None:
        for side, blocks in reads:
            for block in blocks:
                side.last_reads[block][operation.stream] = operation
        side, blocks = writes
        for block in blocks:
            side.last_writes[block], side.last_reads[block] = [operation], {}

    @staticmethod
    def _note_failed(
        operation: Operation, reads: tuple[Side, tuple[int, ...]], undefined: tuple[Side, tuple[int, ...]]
    ) -> None:
        """Of a swap that failed. How much of it began nobody knows, so it takes the place of nothing before it."""
        side, blocks = reads
        for block in blocks:
            side.last_reads[block][-1 - operation.stream] = operation
        side, blocks = undefined
        for block in dict.fromkeys(blocks):
            side.last_writes[block].append(operation)
            side.versions[block] = None

    def _host_waits_for(self, operation: Operation) -> None:
        if not operation.is_in(self._sure.host):
            self._open_latches(before=operation)
            self._in_context(operation.fence.synchronize)
            self._host_knows(operation.fenced)

    def _host_knows(self, clock: Clock) -> None:
        self._sure.host_knows(clock)
        self._perhaps.host_knows(clock)

    def _open_latches(self, before: Operation | None = None) -> None:
        """Those that an operation may wait behind, or all."""
        everything = before is None or not self.machine.passes_latches
        still: list[_Held] = []
        for held in self._latches:
            if everything or (before is not None and before.perhaps[held.timeline] >= held.number):
                held.latch.open()
            else:
                still.append(held)
        self._latches = still

    def _event(self, stream: int) -> Event:
        """Recorded on the stream now."""
        handle = self._handles[stream]

        def recorded() -> Event:
            event = Event(self._driver, timed=False)
            event.record(handle)
            return event

        return self._in_context(recorded)

    # ---- what is known and compared ----

    def _learn(self, each: _UnderWay) -> None:
        """The library says that it has landed."""
        self._host_knows(each.operation.after)
        self._check_landed(each)
        side, targets = each.targets
        for block in dict.fromkeys(targets):
            if side.kind == "host" and side.last_writes[block] == [each.operation]:
                self._look_at(side, block)

    @staticmethod
    def _check_landed(each: _UnderWay) -> None:
        if undefined := each.transfer.undefined_targets:
            raise HistoryMismatch(f"{each.transfer!r} has landed, but its undefined_targets are {undefined}")

    def _look_at(self, side: Side, block: int) -> None:
        """The host compares a block of a pool as it is."""
        version = side.versions[block]
        if version is None:
            return
        self.blocks_compared += 1
        for layer, (view, row) in enumerate(zip(side.views, side.content.of(version), strict=True)):
            if (view[block] != row).any():
                raise HistoryMismatch(f"the host read host block {block}, layer {layer}: not version {version}")

    def _compare(self, side: Side) -> None:
        for index, (found, (expected, defined)) in enumerate(
            zip(self.machine.images(side), side.expected(), strict=True)
        ):
            wrong = np.flatnonzero((found != expected) & defined)
            if wrong.size:
                where, which = int(wrong[0]), self._name_of(side)
                raise HistoryMismatch(
                    f"{wrong.size} bytes of {which} differ, first {side.place_of_byte(index, where)}: "
                    f"{found[where]}, expected {expected[where]}; versions {side.versions}"
                )
        self.blocks_compared += side.blocks

    def _name_of(self, side: Side) -> str:
        sides = self._device_sides if side.kind == "device" else self._host_sides
        return f"{side.kind} side {sides.index(side)}"

    def _raise_what_was_read(self, *, synchronized: bool = False) -> None:
        if found := self.machine.found_wrong(synchronized=synchronized):
            raise HistoryMismatch("; ".join(found))

    def _refused(self, expected: type[Exception], call: Callable[[], object]) -> None:
        try:
            self._surely(call)
        except expected:
            return
        except (SimulatedHang, HistoryMismatch):
            raise
        except Exception as error:
            raise HistoryMismatch(f"expected {expected.__name__}, came {error!r}") from error
        raise HistoryMismatch(f"expected {expected.__name__}; the call succeeded")

    # ---- faults ----

    def _in_context(self, call: Callable[[], _T]) -> _T:
        def within() -> _T:
            with self._driver.activate(0):
                return call()

        return self._surely(within)

    def _surely(self, call: Callable[[], _T]) -> _T:
        """Call again after each failure that was asked for."""
        while True:
            try:
                return call()
            except KVSwapDriverError as error:
                self._expect(error)

    def _expect(self, error: KVSwapDriverError) -> None:
        """Raise it again unless it is one that was asked for, and comes for the first time."""
        if not self._has_struck() or (error.call, error.result_name) != (self._told_to_fail[0], _INJECTED):
            raise error
        self._fail_no_more()

    def _has_struck(self) -> bool:
        simulated, (call, at) = self.machine.simulated, self._told_to_fail
        return simulated is not None and call != "" and simulated.driver.calls[call] > at

    def _fail_no_more(self) -> None:
        if self.machine.simulated is not None:
            self.faults += self._has_struck()
            self.machine.simulated.driver.fail_no_more()
            self._told_to_fail = _NOTHING_FAILS

    # ---- what there is ----

    def _new_version(self) -> int:
        self._versions += 1
        return self._versions

    def _new_side(self, kind: Literal["device", "host"], index: int) -> Side:
        content = self._contents[index == SIDES - 1]
        layouts = self.shape.device_layouts if kind == "device" else self.shape.host_layouts
        pad_bytes = self.shape.pad_bytes[2 * index + (kind == "host")]
        blocks = DEVICE_BLOCKS if kind == "device" else HOST_BLOCKS
        side = self._surely(lambda: Side(self._driver, kind, content, blocks, layouts[index], pad_bytes))
        side.versions[:] = [self._new_version() for _ in range(blocks)]
        self.machine.fill(side)
        return side

    def _new_user(self, index: int, device: int, host: int) -> _User:
        self._numbers += 1
        swapper = self._surely(lambda: self._new_swapper(index, self._device_caches[device], self._pools[host]))
        self.machine.prepare(swapper)
        return _User(swapper, device, host, self._numbers)

    def _new_swapper(self, index: int, device: DeviceCache, host: HostCache) -> Swapper:
        return Swapper(device, host, transport=self.shape.transports[index])

    def _keep(self, each: _UnderWay) -> None:
        self._transfers.append(each)
        if len(self._transfers) > _TRANSFERS_MAX:
            self._drop(self._transfers.pop(0))

    def _drop(self, each: _UnderWay) -> None:
        """Let go of it; an event stands for it, recorded behind all that its stream holds by now."""
        operation = each.operation
        operation.fence = self._event(self._timelines.index(operation.stream))
        operation.fenced = self._sure.record(operation.stream)
        operation.perhaps = later(operation.perhaps, self._perhaps.record(operation.stream))

    _DOERS: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        Swap: _swap,
        Write: _write,
        Read: _read,
        HostWrite: _host_write,
        HostRead: _host_read,
        Wait: _wait,
        Done: _done,
        WaitOn: _wait_on,
        Forget: _forget,
        Hold: _hold,
        Open: _open,
        Remake: _remake,
        ClosePool: _close_pool,
        Fault: _fault,
        Mistake: _mistake,
        Checkpoint: lambda world, _action: world.check(),
    }


def _touching(side: Side) -> list[Operation]:
    writes = [each for writes in side.last_writes for each in writes]
    return writes + [each for reads in side.last_reads for each in reads.values()]
