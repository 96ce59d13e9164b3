"""Races, one at a time, made certain by a latch that holds a stream until it is opened: simulated and on a GPU."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from numba_kvswap import Plan, Swapper
from numba_kvswap.driver import why_no_cuda
from numba_kvswap.testing.history import Content, Side, SimulatedMachine, machine_named
from numba_kvswap.testing.history.machines import TIMELINES

BLOCKS, SIZES = 16, (48, 5, 64)
# By their place among a machine's streams; the first is the legacy default one.
DEFAULT, BLOCKING, APART, ASIDE, THIRD = 0, 3, 4, 5, 6
# So many times the driver is called, or the host sleeps, to let happen what must not.
LOOKS, LOOK_S = 40, 0.0005
DIRECTIONS = ("out", "in")
#: Few pairs, whose ids a kernel reads over the link, and so many that they are copied to the device first.
COUNTS = (2, 12)
_CUDA_MARKS = [pytest.mark.cuda, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")]


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=_CUDA_MARKS)])
def rig(request, transport_or_auto):
    """Two caches whose blocks hold versions, block b of the device b, of the host 100 + b."""
    gc.collect()  # what others left, since a latch of a real device bears no freeing of memory
    rig = Rig(request.param, transport_or_auto)
    yield rig
    rig.finish()


class Rig:
    def __init__(self, engine, transport):
        # On the simulated device everything runs as soon as it may: what could be too early is.
        simulated = engine == "simulated"
        self.machine = (
            SimulatedMachine(schedule=b"\x01" * 100_000, block_bytes=sum(SIZES), hang_seconds=20.0)
            if simulated
            else machine_named(engine)
        )
        self.driver, self.transport = self.machine.driver, transport
        content = Content(SIZES)
        self.device = Side(self.driver, "device", content, BLOCKS, "layer_major")
        self.host = Side(self.driver, "host", content, BLOCKS, "block_major")
        for side, first in ((self.device, 0), (self.host, 100)):
            side.versions[:] = range(first, first + BLOCKS)
            self.machine.fill(side)
        self.pool = self.host.host_cache()
        self.swapper = Swapper(self.device.device_cache(), self.pool, transport=transport)
        self.machine.prepare(self.swapper)
        self.latches = []

    def hold(self, stream):
        self.latches.append(self.machine.hold(self.machine.streams[stream]))
        return self.latches[-1]

    def swap(self, direction, device_ids, host_ids, stream):
        method = self.swapper.swap_out if direction == "out" else self.swapper.swap_in
        return method(device_ids, host_ids, self.machine.streams[stream])

    def write(self, block, version, stream):
        self.machine.write(self.machine.streams[stream], self.device, block, version)

    def judge(self, block, version, stream):
        self.machine.judge(self.machine.streams[stream], self.device, block, version)

    def host_holds(self, block, version):
        return all(
            (view[block] == row).all() for view, row in zip(self.host.views, self.host.content.of(version), strict=True)
        )

    def let_happen(self, *transfers):
        """Give what is not held time to run, and see that none of these has landed."""
        for _ in range(LOOKS):
            assert not any(transfer.done() for transfer in transfers)
            with self.driver.activate(0):
                self.driver.current_device()
            if self.machine.simulated is None:
                time.sleep(LOOK_S)

    def synchronize(self):
        for latch in self.latches:
            latch.open()
        with self.driver.activate(0):
            self.driver.synchronize()

    def assert_hold(self, device=None, host=None):
        """Every byte: of these blocks these versions, of all others what they held at first."""
        self.synchronize()
        assert not self.machine.found_wrong(synchronized=True)
        for side, changed in ((self.device, device or {}), (self.host, host or {})):
            for block, version in changed.items():
                side.versions[block] = version
            for found, (expected, _) in zip(self.machine.images(side), side.expected(), strict=True):
                np.testing.assert_array_equal(found, expected)

    def finish(self):
        self.synchronize()
        self.machine.found_wrong(synchronized=True)
        del self.swapper
        self.pool.close()
        gc.collect()  # frees memory, which a later test's latch must not meet


# ---- compute and swaps ----


@pytest.mark.parametrize("stream", [DEFAULT, BLOCKING, APART])
def test_a_store_waits_for_the_kernel_that_writes_its_block(rig, stream):
    latch = rig.hold(stream)
    rig.write(3, 200, stream)
    transfer = rig.swap("out", [3, 4], [7, 8], stream)
    rig.let_happen(transfer)
    assert rig.host_holds(7, 107) and rig.host_holds(8, 108)
    latch.open()
    transfer.wait()
    assert rig.host_holds(7, 200) and rig.host_holds(8, 4)
    rig.assert_hold({3: 200}, {7: 200, 8: 4})


def test_what_is_put_on_the_stream_later_waits_for_a_store(rig):
    latch = rig.hold(APART)
    transfer = rig.swap("out", [3], [7], APART)
    rig.write(3, 200, APART)
    latch.open()
    transfer.wait()
    assert rig.host_holds(7, 3)
    rig.assert_hold({3: 200}, {7: 3})


@pytest.mark.parametrize("stream", [DEFAULT, BLOCKING, APART])
def test_a_load_waits_for_a_kernel_that_reads_its_block(rig, stream):
    rig.hold(stream)
    rig.judge(3, 3, stream)
    transfer = rig.swap("in", [3], [7], stream)
    rig.judge(3, 107, stream)
    rig.let_happen(transfer)
    rig.assert_hold({3: 107})


def test_wait_on_orders_another_streams_kernels_after_a_load(rig):
    latch = rig.hold(APART)
    transfer = rig.swap("in", [3], [7], APART)
    transfer.wait_on(rig.machine.streams[ASIDE])
    rig.judge(3, 107, ASIDE)
    rig.write(3, 200, ASIDE)
    rig.judge(3, 200, ASIDE)
    rig.let_happen(transfer)
    latch.open()
    rig.assert_hold({3: 200})


def test_a_load_on_another_stream_waits_for_a_store_it_was_told_to_wait_for(rig):
    """Of another Swapper for the same caches: nothing but wait_on orders the two."""
    other = Swapper(rig.device.device_cache(), rig.pool, transport=rig.transport)
    rig.machine.prepare(other)
    rig.hold(APART)
    store = rig.swap("out", [3], [7], APART)
    store.wait_on(rig.machine.streams[ASIDE])
    load = other.swap_in([3, 5], [8, 7], rig.machine.streams[ASIDE])
    rig.let_happen(store, load)
    rig.assert_hold({3: 108, 5: 3}, {7: 3})
    del other


# ---- swaps of one Swapper ----


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("out", [3], [7]), ("in", [5], [7])),  # reads on the host what the first writes
        (("out", [3], [7]), ("in", [3], [8])),  # writes on the device what the first reads
        (("out", [3], [7]), ("out", [4], [7])),  # both write it
        (("in", [3], [7]), ("out", [3], [8])),
        (("in", [3], [7]), ("out", [4], [7])),
        (("in", [3], [7]), ("in", [3], [8])),
    ],
)
@pytest.mark.parametrize("streams", [(APART, ASIDE), (DEFAULT, APART), (BLOCKING, APART)])
def test_two_swaps_that_touch_a_block_happen_in_the_order_of_their_calls(rig, first, second, streams):
    rig.hold(streams[0])
    transfers = [rig.swap(*each, stream) for each, stream in zip((first, second), streams, strict=True)]
    rig.let_happen(*transfers)
    sides = {"device": list(range(BLOCKS)), "host": list(range(100, 100 + BLOCKS))}
    for direction, device_ids, host_ids in (first, second):
        if direction == "out":
            sides["host"][host_ids[0]] = sides["device"][device_ids[0]]
        else:
            sides["device"][device_ids[0]] = sides["host"][host_ids[0]]
    rig.assert_hold(dict(enumerate(sides["device"])), dict(enumerate(sides["host"])))


def test_a_chain_over_three_streams_keeps_its_order(rig):
    rig.hold(APART)
    rig.swap("out", [1], [2], APART)
    rig.swap("in", [3], [2], ASIDE)
    last = rig.swap("out", [3], [4], THIRD)
    rig.let_happen(last)
    rig.assert_hold({3: 1}, {2: 1, 4: 1})


# ---- what a call was given ----


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", COUNTS)
def test_ids_are_those_of_the_call_whatever_becomes_of_the_lists(rig, direction, count):
    """Two swaps behind a latch, from the same two buffers; no two pairs of one run, or no table would be needed."""
    latch = rig.hold(APART)
    device_ids, host_ids = np.arange(count), np.arange(count)[::-1].copy()
    transfers = [rig.swap(direction, device_ids, host_ids, APART)]
    device_ids += BLOCKS - count
    host_ids += 1
    transfers.append(rig.swap(direction, device_ids, host_ids, APART))
    device_ids[:], host_ids[:] = 0, 0
    rig.let_happen(*transfers)
    latch.open()
    expected = list(range(BLOCKS)), list(range(100, 100 + BLOCKS))
    source, target = expected if direction == "out" else expected[::-1]
    for first in (0, 1):
        for i in range(count):
            pair = i + first * (BLOCKS - count), count - 1 - i + first
            a, b = pair if direction == "out" else pair[::-1]
            target[b] = source[a]
    rig.assert_hold(*(dict(enumerate(each)) for each in expected))


@pytest.mark.parametrize("count", COUNTS)
def test_a_table_of_ids_is_not_rewritten_while_its_swap_waits(rig, count):
    """A table made ready by a swap that has landed serves one of two that wait, not both; dropped, they still run."""
    rig.swap("out", [0, 2], [2, 0], APART).wait()
    gc.collect()
    rig.hold(APART)
    for first in range(3):
        ids = [(first + 2 * i) % BLOCKS for i in range(min(count, BLOCKS // 2))]
        rig.swap("out", ids, ids[::-1], APART)
        gc.collect()
    host = {0: 2, 2: 0}
    for first in range(3):
        ids = [(first + 2 * i) % BLOCKS for i in range(min(count, BLOCKS // 2))]
        host.update(zip(ids[::-1], ids, strict=True))
    rig.assert_hold(host=host)


def test_a_plan_used_twice_at_once_moves_twice(rig):
    plan = Plan([1, 3, 5], [5, 3, 1])
    rig.hold(APART)
    stream = rig.machine.streams[APART]
    rig.swapper.swap_out(plan, stream=stream)
    rig.write(3, 200, APART)
    last = rig.swapper.swap_out(plan, stream=stream)
    del plan
    rig.let_happen(last)
    rig.assert_hold({3: 200}, {5: 1, 3: 200, 1: 5})


# ---- lifetimes ----


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_transfer_dropped_while_it_is_held_still_lands(rig, direction):
    rig.hold(APART)
    transfer = rig.swap(direction, [3, 5], [7, 9], APART)
    assert not transfer.done()
    del transfer
    gc.collect()
    assert len(rig.driver.in_flight) == 1
    changed = {7: 3, 9: 5} if direction == "out" else {3: 107, 5: 109}
    rig.assert_hold(**{"host" if direction == "out" else "device": changed})
    assert len(rig.driver.in_flight) == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_close_in_another_thread_waits_for_what_is_held(rig, direction):
    latch = rig.hold(APART)
    rig.write(3, 200, APART)
    transfer = rig.swap(direction, [3], [7], APART)
    failures = []

    def close():
        try:
            rig.pool.close()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it did not wait"
    assert rig.pool.closed
    with pytest.raises(ValueError, match="closed"):
        rig.swap("out", [0], [0], ASIDE)
    latch.open()
    thread.join(30)
    assert not thread.is_alive() and not failures
    assert transfer.done()
    rig.synchronize()
    assert not rig.machine.found_wrong(synchronized=True)
    version = 200 if direction == "out" else 107
    rig.judge(3, version, APART)
    rig.synchronize()
    assert not rig.machine.found_wrong(synchronized=True)


def test_a_latch_holds_its_own_stream_alone(rig):
    """Else all of the above would hold for a latch that holds everything."""
    rig.hold(APART)
    transfer = rig.swap("out", [3], [7], ASIDE)
    transfer.wait()
    assert rig.host_holds(7, 3)
    assert len(set(TIMELINES)) == len(rig.machine.kinds)
    rig.assert_hold(host={7: 3})
