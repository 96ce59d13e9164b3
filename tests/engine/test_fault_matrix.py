"""Every driver call that the library makes in its whole life fails, at its first, a middle, its last use and some
others, once and for ever: what is raised, what stays as it was, that the next swap moves, and that nothing is left.

On the simulated device alone: a real one gives no such errors that leave its context usable.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import defaultdict

import numpy as np
import pytest
from transport_rig import BLOCKS, assert_same, random_bytes

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, Swapper, host_memory, swap_cache_all_layers
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.driver.simulated import CALLS
from numba_kvswap.layers import LayerBytes
from numba_kvswap.transports.named import TRANSPORTS

PAGE = host_memory.SYSTEM_BLOCK_BYTES
SIZES = (PAGE // 4, PAGE // 4, PAGE // 2)  # so that a pool can be cut into pieces
IDS = ([3, 4, 5, 9, 1, 0, 12, 13, 14, 2, 7], [0, 1, 2, 8, 7, 6, 15, 14, 13, 4, 5])
OTHER_IDS = ([8, 3, 10], [9, 0, 3])  # device block 3 and host block 0 are of both
SCHEDULE = bytes(range(256)) * 40
WAYS = (*TRANSPORTS, "auto")
#: Calls that the library does without, and in which of its functions: who asks there has another way to know, or
#: another thing to take, or what is not freed now is freed later.
DOES_WITHOUT = {
    "cuCtxSetCurrent": {"landed", "_why_not"},
    "cuEventQuery": {"landed"},
    "cuEventDestroy": {"_drop_event"},
    "cuMemFree": {"_drop_allocation"},
    "cuMemFreeHost": {"_drop_allocation"},
    "cuMemHostUnregister": {"_drop_allocation"},
    "cuStreamDestroy": {"_drop_stream"},
    # "auto" takes another transport.
    "cuMemAlloc": {"make_ready"},
    "cuMemHostAlloc": {"make_ready"},
    "cuMemcpyAsync": {"make_ready"},
    "cuPointerGetAttributes": {"make_ready", "_why_not"},
    "cuStreamCreate": {"make_ready"},
    "cuStreamSynchronize": {"make_ready"},
}
FOR_AUTO_ALONE = {"make_ready", "_why_not"}


class Life:
    """All that the library offers, used once, each step again after the one error that may come.

    Attributes: error, the one that came, by its call; uses, of each call in which functions it was used.
    """

    def __init__(self, transport, call=None, at=0, times=None):
        self.transport, self.call = transport, call
        self.simulated = SimulatedDevice(schedule=SCHEDULE, ring_slot_bytes=3 * sum(SIZES))
        self.driver = self.simulated.driver
        self.uses = defaultdict(list)
        self.error, self.two_failed = None, False
        if call:
            self.driver.fail(call, at=at, times=times)

    def record(self):
        counted = self.driver._counted

        def recorded(call):
            frame, names = sys._getframe(1), set()
            while frame is not None and frame.f_code.co_name != "lived":
                names.add(frame.f_code.co_name)
                frame = frame.f_back
            self.uses[call].append(names)
            return counted(call)

        self.driver._counted = recorded

    def fail_too(self, call):
        """From the first failure on, what is called to clean up after it fails as well."""
        counted = self.driver._counted

        def counted_and_armed(used):
            status = counted(used)
            if status and not self.two_failed:
                self.two_failed = True
                self.driver.fail(call, times=None)
            return status

        self.driver._counted = counted_and_armed

    def settle_the_unmarked(self):
        """Where recording an end failed, and asking what else could tell of it too, a close of its memory settles
        it; what was swapped by the op has none."""
        for work in self.driver.in_flight._pending():
            assert work.unmarked
            self.driver.in_flight.wait_for(work._owners[0])

    def lift(self):
        self.driver.fail_no_more()

    def attempt(self, do, judge=lambda undefined: None):
        """`do`, and where it raises, as it may once, judge what is left behind, lift the fault and do it again."""
        try:
            return do()
        except KVSwapDriverError as error:
            assert self.error is None, f"{error} came after {self.error}"
            assert error.call == self.call
            self.error, undefined = f"{error}", error.undefined_targets
        judge(undefined)
        self.lift()
        self.simulated.synchronize()
        judge(undefined)
        return do()

    def lived(self):
        """The whole life, and then what is left of it."""
        self.live_in_turn()
        if self.two_failed:
            self.settle_the_unmarked()
        self.driver.tools.clear()
        self.still_failing = self.driver.not_freed()
        self.left = self.live()
        self.lift()
        assert self.driver.not_freed() == ()
        assert self.live() == (0, 0, 0)

    def live(self):
        return self.driver.live_allocations(), self.driver.live_events(), self.driver.live_streams()

    def live_in_turn(self):
        streams = [self.attempt(self.simulated.stream) for _ in range(2)]
        # Alive to the end, or what comes later might lie there, and find its tables ready: other uses in each life.
        first = self.attempt(self.allocated)
        self.swap_between(first, HostCache.allocate, streams)
        arrays = [
            self.attempt(lambda size=size: self.simulated.device_array((BLOCKS, 1, size), np.uint8)) for size in SIZES
        ]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(host_memory, "POOL_BYTES_MIN", 1)
            patched.setattr(host_memory, "PIECE_BYTES_MAX", 5 * PAGE)
            pool = self.attempt(lambda: HostCache.allocate(DeviceCache(arrays), blocks=BLOCKS))
            assert len(pool.pieces) > 1
            self.attempt(lambda: HostCache.allocate(DeviceCache(arrays), blocks=BLOCKS))  # and never closed
            self.swap_by_op(arrays)
            device = self.attempt(lambda: DeviceCache(arrays))
            self.swap_between(device, lambda *_, **__: pool, streams)

    def allocated(self):
        return DeviceCache.allocate(self.driver, blocks=BLOCKS, block_bytes=list(SIZES))

    def swap_between(self, device, allocate, streams):
        host = self.attempt(lambda: allocate(device, blocks=BLOCKS))
        sides = [[np.asarray(LayerBytes(layer)) for layer in cache.layers] for cache in (device, host)]
        fill(sides)
        swapper = self.attempt(lambda: Swapper(device, host, transport=self.transport))
        self.swap(swapper, sides, "out", IDS, streams[0], self.ask_all)
        self.swap(swapper, sides, "in", IDS, None, self.wait)
        self.swap_twice(swapper, sides, streams)
        with_view = host.layer(1)
        assert_same([with_view], [sides[1][1]])
        del with_view, sides
        self.attempt(host.close)

    def swap(self, swapper, sides, direction, ids, stream, ask):
        expected = after(sides, direction, ids)
        transfer = self.submit(swapper, sides, direction, ids, stream)
        ask(transfer)
        assert_same(flat(sides), expected)
        assert transfer.undefined_targets == ()

    def submit(self, swapper, sides, direction, ids, stream, others=()):
        before = [layer.copy() for layer in flat(sides)]
        swap = swapper.swap_out if direction == "out" else swapper.swap_in

        def judge(undefined):
            assert set(undefined) <= set(ids[direction == "out"])
            assert_only_differ(sides, before, direction, {*undefined, *others})

        transfer = self.attempt(lambda: swap(*ids, stream), judge)
        assert (transfer.direction, transfer.blocks) == (direction, len(ids[0]))
        return transfer

    def swap_twice(self, swapper, sides, streams):
        """Two that share blocks, on two streams, the second one before the first has landed."""
        expected = after(after(sides, "out", IDS, split=True), "out", OTHER_IDS)
        first = self.submit(swapper, sides, "out", IDS, streams[0])
        second = self.submit(swapper, sides, "out", OTHER_IDS, streams[1], others=IDS[1])
        self.wait(second)
        self.wait(first)
        assert_same(flat(sides), expected)

    def wait(self, transfer):
        self.attempt(transfer.wait)

    def ask_all(self, transfer):
        other = self.attempt(self.simulated.stream)
        self.attempt(transfer.done)
        self.attempt(lambda: transfer.wait_on(other))
        self.attempt(other.synchronize)
        self.attempt(transfer.wait)
        assert self.attempt(transfer.done)
        assert self.attempt(lambda: transfer.seconds) >= 0

    def swap_by_op(self, arrays):
        pinned = [
            self.attempt(lambda size=size: self.simulated.pinned_array((BLOCKS, 1, size), np.uint8)) for size in SIZES
        ]
        sides = [[array.live() for array in arrays], pinned]
        fill(sides)
        for mode, direction in enumerate(("out", "in")):
            expected, before = after(sides, direction, IDS), [layer.copy() for layer in flat(sides)]
            arguments = arrays, [layer.ctypes.data for layer in pinned], BLOCKS, *IDS, 0, mode
            self.attempt(
                lambda arguments=arguments: swap_cache_all_layers(*arguments, transport=self.transport),
                lambda undefined, before=before, way=direction: assert_only_differ(sides, before, way, undefined),
            )
            assert_same(flat(sides), expected)


def fill(sides):
    for index, layer in enumerate(flat(sides)):
        layer[...] = random_bytes(layer.shape, [index, 7])


def flat(sides):
    return [layer for side in sides for layer in side]


def after(sides, direction, ids, split=False):
    """What the layers hold after a swap of distinct targets; the device's first."""
    device, host = ([layer.copy() for layer in side] for side in sides)
    for on_device, on_host in zip(device, host, strict=True):
        if direction == "out":
            on_host[ids[1]] = on_device[ids[0]]
        else:
            on_device[ids[0]] = on_host[ids[1]]
    return [device, host] if split else [*device, *host]


def assert_only_differ(sides, before, direction, undefined):
    for index, (found, was) in enumerate(zip(flat(sides), before, strict=True)):
        is_target = (index < len(SIZES)) == (direction == "in")
        others = [block for block in range(len(found)) if not (is_target and block in undefined)]
        assert np.array_equal(found[others], was[others]), f"layer {index}, the device's first; {undefined=}"


@pytest.fixture(scope="module", autouse=True)
def _collect_only_what_is_new():
    """Of the thousands of collections here each would go through all that Numba has made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def uses_of():
    """By transport: of each driver call that a life makes, in which functions each use was."""
    known = {}

    def found(transport):
        if transport not in known:
            life = Life(transport)
            life.record()
            life.lived()
            known[transport] = dict(life.uses)
        return known[transport]

    return found


def test_a_close_also_lets_go_of_what_somebody_has_seen_landed():
    """Such a transfer uses no memory any more, so the close has nothing to wait for."""
    life = Life("copies")
    device = life.allocated()
    with HostCache.allocate(device, blocks=BLOCKS) as host:
        transfer = Swapper(device, host, transport="copies").swap_out(*IDS, life.simulated.stream())
        life.simulated.synchronize()
        assert transfer.landed()
        del transfer
    assert life.driver.live_events() == 0


def test_an_op_whose_wait_fails_says_which_blocks_are_undefined():
    """Its copies may have landed, or some of them: nobody has the transfer to ask."""
    life = Life("copies")
    arrays = [life.simulated.device_array((BLOCKS, 1, size), np.uint8) for size in SIZES]
    pinned = [life.simulated.pinned_array((BLOCKS, 1, size), np.uint8) for size in SIZES]
    for mode in (0, 1):
        life.driver.fail("cuEventSynchronize")
        with pytest.raises(KVSwapDriverError, match="cuEventSynchronize") as caught:
            swap_cache_all_layers(arrays, pinned, BLOCKS, *IDS, 0, mode, transport="copies")
        assert set(caught.value.undefined_targets) == set(IDS[1 - mode])


def test_a_table_of_layers_in_doubt_goes_once_a_later_one_has_landed():
    life = Life("kernel")
    device = life.allocated()
    with HostCache.allocate(device, blocks=BLOCKS) as one, HostCache.allocate(device, blocks=BLOCKS) as other:
        Swapper(device, one, transport="kernel").swap_out([0], [0]).wait()
        before = life.driver.live_allocations()
        life.driver.fail("cuStreamSynchronize", times=3)
        swapper = Swapper(device, other, transport="kernel")
        for _ in range(3):
            with pytest.raises(KVSwapDriverError, match="cuStreamSynchronize"):
                swapper.swap_out([0], [0])
        assert life.driver.live_allocations() > before, "kept while nobody knows that the copy has landed"
        swapper.swap_out([0], [0]).wait()
        tables = len(device_tools(life.driver, 0).tables._all)
        assert life.driver.live_allocations() == before + 1 + 2 * (tables - 1)


def with_a_fault(transport, call, at, times, used_in):
    life = Life(transport, call, at, times)
    life.lived()
    assert life.driver.calls[call] > at, "or the fault did not happen"
    if life.error is None:
        reasons = DOES_WITHOUT.get(call, set()) & used_in
        assert reasons - (FOR_AUTO_ALONE if transport != "auto" else set()), f"unheard of, in {sorted(used_in)}"
    assert bool(life.still_failing) == any(life.left)
    if times is None and life.error is None and reasons & {"_drop_event", "_drop_allocation", "_drop_stream"}:
        assert life.still_failing, "what is not freed is named"


def places(uses, rng, sampled):
    return sorted({0, uses // 2, uses - 1, *rng.sample(range(uses), min(sampled, uses))})


def the_matrix(uses_of, transport, call, sampled):
    uses = uses_of(transport).get(call)
    if uses is None:
        pytest.skip(f"{transport} makes no use of {call}")
    for at in places(len(uses), random.Random(f"{transport} {call}"), sampled):
        for times in (1, None):
            try:
                with_a_fault(transport, call, at, times, uses[at])
            except BaseException as error:
                error.args = (
                    f"{transport}: {call}, use {at} of {len(uses)}, {times or 'for ever'}: {error}",
                    *error.args[1:],
                )
                raise


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("transport", WAYS)
def test_a_call_that_fails_is_named_and_nothing_else_is_harmed(uses_of, transport, call):
    the_matrix(uses_of, transport, call, sampled=1)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("transport", WAYS)
def test_so_does_every_use_of_every_call(uses_of, transport, call):
    the_matrix(uses_of, transport, call, sampled=10**6)


def test_the_life_uses_every_call_that_can_fail(uses_of):
    used = {call for transport in WAYS for call in uses_of(transport)}
    # For set-up alone; of CUDA's producers alone; where another call failed before, see below.
    assert set(CALLS) - used == {"cuMemcpy", "cuCtxGetDevice", "cuCtxSynchronize"}


# ---- two at once ----

SUBMITTING = (
    "cuEventRecord",
    "cuLaunchKernel",
    "cuMemcpy2DAsync",
    "cuMemcpyAsync",
    "cuMemcpyBatchAsync",
    "cuStreamWaitEvent",
)
CLEANING_UP = ("cuCtxSetCurrent", "cuCtxSynchronize", "cuEventRecord", "cuEventQuery", "cuStreamSynchronize")


def the_pairs(uses_of, transport, cleaning, sampled):
    called = set()
    for call in (call for call in SUBMITTING if call in uses_of(transport)):
        uses = uses_of(transport)[call]
        for at in places(len(uses), random.Random(f"{transport} {call} {cleaning}"), sampled):
            if uses[at] & FOR_AUTO_ALONE and transport == "auto":  # it goes on by another transport
                continue
            life = Life(transport, call, at, None if cleaning == call else 1)
            life.fail_too(cleaning)
            try:
                life.lived()
            except BaseException as error:
                error.args = (
                    f"{transport}: {call}, use {at} of {len(uses)}, then {cleaning}: {error}",
                    *error.args[1:],
                )
                raise
            called |= set(life.driver.calls)
    assert cleaning in called


@pytest.mark.parametrize("cleaning", CLEANING_UP)
@pytest.mark.parametrize("transport", WAYS)
def test_where_cleaning_up_after_a_failure_fails_too_the_first_one_is_named(uses_of, transport, cleaning):
    the_pairs(uses_of, transport, cleaning, sampled=2)


@pytest.mark.slow
@pytest.mark.parametrize("cleaning", CLEANING_UP)
@pytest.mark.parametrize("transport", WAYS)
def test_so_it_is_after_every_use(uses_of, transport, cleaning):
    the_pairs(uses_of, transport, cleaning, sampled=10**6)
