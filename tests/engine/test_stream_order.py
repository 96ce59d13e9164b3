"""A transfer's place in its stream, under every order of the other work that Hypothesis thinks of."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kvswap import HostCache, SimulatedDevice, Swapper
from numba_kvswap.caches import DeviceCache
from numba_kvswap.driver.simulated import LEGACY_STREAM, PER_THREAD_STREAM

BLOCKS, LAYERS, SIZE = 6, 3, 8
TAPES = st.binary(max_size=80)
STREAMS = st.sampled_from(["own", "blocking", "default", "legacy", "per thread"])
# Each transport has its own share of the examples.
FEWER = settings(max_examples=max(20, settings().max_examples // 4))
BEFORE, AFTER = 7, 9


class Bench:
    """Three layers on a device whose order of work a tape decides."""

    def __init__(self, tape: bytes, stream: str = "own", spaced: bool = False, transport: str = "auto"):
        # Two blocks fit a slot of the ring, which so is gone round with a few.
        self.simulated = SimulatedDevice(schedule=tape, ring_slot_bytes=2 * LAYERS * SIZE)
        self.driver = self.simulated.driver
        self.layers = self._spaced() if spaced else self._apart()
        self.host = [self.simulated.pinned_array((BLOCKS, SIZE), np.uint8) for _ in range(LAYERS)]
        self.swapper = Swapper(self.layers, self.host, transport=transport)
        handles = {"default": None, "legacy": LEGACY_STREAM, "per thread": PER_THREAD_STREAM}
        self.stream = handles[stream] if stream in handles else self.simulated.stream(blocking=stream == "blocking")

    def _apart(self):
        return [self.simulated.device_array((BLOCKS, SIZE), np.uint8) for _ in range(LAYERS)]

    def _spaced(self):
        """Layers that one 2-D copy can span."""
        pool = self.simulated.device_array((LAYERS, BLOCKS, SIZE), np.uint8)
        return [pool.view(i * BLOCKS * SIZE, (BLOCKS, SIZE), np.uint8) for i in range(LAYERS)]

    def launch(self, function, stream=None):
        chosen = stream or self.stream
        if chosen is None or isinstance(chosen, int):
            with self.driver.activate(0):
                self.driver.launch(chosen or 0, function)
        else:
            chosen.launch(function)

    def fill(self, value, stream=None):
        """A kernel that writes every byte of every layer."""
        self.launch(lambda: [layer.live().fill(value) for layer in self.layers], stream)

    def read_into(self, found, stream=None):
        """A kernel that reads every layer."""
        self.launch(lambda: found.extend(layer.live().copy() for layer in self.layers), stream)

    def fill_host(self, value, stream=None):
        self.launch(lambda: [layer.fill(value) for layer in self.host], stream)


def ids(count=BLOCKS):
    return list(range(count)), list(range(count))


@FEWER
@given(tape=TAPES, stream=STREAMS, spaced=st.booleans())
def test_swap_out_comes_after_what_its_stream_holds_and_before_what_is_put_on_it_later(
    transport_or_auto, tape, stream, spaced
):
    bench = Bench(tape, stream, spaced, transport_or_auto)
    bench.fill(BEFORE)
    transfer = bench.swapper.swap_out(*ids(), bench.stream)
    bench.fill(AFTER)
    transfer.wait()
    assert all((layer == BEFORE).all() for layer in bench.host)


@FEWER
@given(tape=TAPES, stream=STREAMS)
def test_swap_in_comes_after_what_its_stream_holds_and_before_what_is_put_on_it_later(transport_or_auto, tape, stream):
    bench = Bench(tape, stream, transport=transport_or_auto)
    bench.fill(BEFORE)
    seen_before, seen_after = [], []
    bench.fill_host(1)
    bench.read_into(seen_before)
    transfer = bench.swapper.swap_in(*ids(), bench.stream)
    bench.read_into(seen_after)
    bench.fill_host(2)
    transfer.wait()
    bench.simulated.synchronize()
    assert all((layer == BEFORE).all() for layer in seen_before)
    assert all((layer == 1).all() for layer in seen_after)


@FEWER
@given(tape=TAPES, stream=STREAMS, count=st.integers(2, 5))
def test_swaps_on_one_stream_happen_in_their_order(transport_or_auto, tape, stream, count):
    bench = Bench(tape, stream, transport=transport_or_auto)
    for value in range(count):
        bench.fill(value)
        last = bench.swapper.swap_out([0], [value], bench.stream)
    last.wait()
    for layer in bench.host:
        np.testing.assert_array_equal(layer[:count, 0], np.arange(count))


@FEWER
@given(tape=TAPES, stream=STREAMS)
def test_wait_on_orders_another_stream_after_the_transfer(transport_or_auto, tape, stream):
    bench = Bench(tape, stream, transport=transport_or_auto)
    other = bench.simulated.stream()
    bench.fill(BEFORE)
    transfer = bench.swapper.swap_out(*ids(), bench.stream)
    transfer.wait_on(other)
    bench.fill(AFTER, other)
    other.synchronize()
    assert transfer.done()
    assert all((layer == BEFORE).all() for layer in bench.host)


@given(tape=TAPES)
def test_wait_on_none_orders_the_legacy_default_stream(tape):
    bench = Bench(tape, "own")
    transfer = bench.swapper.swap_out(*ids(), bench.stream)
    transfer.wait_on(None)
    with bench.driver.activate(0):
        bench.driver.stream_synchronize(0)
    assert transfer.done()


@given(tape=TAPES)
def test_none_is_the_legacy_default_stream_which_waits_for_blocking_streams(tape):
    bench = Bench(tape, "default")
    bench.fill(BEFORE, bench.simulated.stream(blocking=True))
    bench.swapper.swap_out(*ids()).wait()
    assert all((layer == BEFORE).all() for layer in bench.host)


@FEWER
@given(tape=TAPES)
def test_done_implies_that_every_byte_has_landed(transport_or_auto, tape):
    bench = Bench(tape, transport=transport_or_auto)
    bench.fill(BEFORE)
    transfer = bench.swapper.swap_out(*ids(), bench.stream)
    for _ in range(100):
        if transfer.done():
            assert all((layer == BEFORE).all() for layer in bench.host)
            break
        bench.driver.current_device()  # any call lets the schedule go on


def test_an_unrelated_stream_is_not_waited_for(transport_or_auto):
    """Else the ordering tests above would hold for a swap that waits for the whole device."""
    bench = Bench(b"", transport=transport_or_auto)
    other = bench.simulated.stream()
    latch = other.latch()
    bench.swapper.swap_out(*ids(), bench.stream).wait()
    assert not latch.is_open
    latch.open()


# ---- a transfer's life ----


def test_a_transfer_returns_at_once_and_is_done_only_after_its_copies(transport_or_auto):
    bench = Bench(b"", transport=transport_or_auto)
    latch = bench.stream.latch()
    bench.fill(BEFORE)
    transfer = bench.swapper.swap_out(*ids(), bench.stream)
    assert not transfer.done()
    assert "under way" in repr(transfer)
    with pytest.raises(RuntimeError, match="not done"):
        _ = transfer.seconds
    latch.open()
    transfer.wait()
    assert transfer.done()
    assert transfer.seconds >= 0.0
    assert transfer.seconds == transfer.seconds
    assert "done in" in repr(transfer)
    transfer.wait()  # a second wait returns at once


def test_what_a_transfer_says_of_itself():
    bench = Bench(b"")
    transfer = bench.swapper.swap_out([0, 1, 5, 5], [2, 3, 3, 0])
    assert (transfer.direction, transfer.blocks, transfer.runs, transfer.bytes) == ("out", 3, 3, 3 * LAYERS * SIZE)
    transfer.wait()
    assert bench.swapper.swap_in([], []).bytes == 0


def test_an_empty_swap_is_ordered_like_any_other():
    bench = Bench(b"")
    latch = bench.stream.latch()
    transfer = bench.swapper.swap_out([], [], bench.stream)
    assert not transfer.done()
    latch.open()
    transfer.wait()


@pytest.mark.parametrize("drop_transfer", [True, False])
def test_caches_live_until_their_copies_are_done_when_the_user_drops_everything(drop_transfer):
    bench = Bench(b"", transport="copies")
    simulated, stream, driver = bench.simulated, bench.stream, bench.driver
    live = driver.live_allocations()
    latch = stream.latch()
    transfer = bench.swapper.swap_out(*ids(), stream)
    del bench
    if drop_transfer:
        del transfer
    gc.collect()
    assert driver.live_allocations() == live
    assert len(driver.in_flight) == 1
    latch.open()
    simulated.synchronize()  # raises where a copy met freed memory
    assert len(driver.in_flight) == 0


def test_a_pool_of_ours_lives_until_its_copies_are_done():
    simulated = SimulatedDevice(schedule=b"")
    device = DeviceCache.allocate(simulated.driver, blocks=4, block_bytes=[8, 8])
    host = HostCache.allocate(device, blocks=4)
    stream = simulated.stream()
    latch = stream.latch()
    Swapper(device, host, transport="copies").swap_in([0, 2], [1, 3], stream)
    del device, host
    gc.collect()
    assert simulated.driver.live_allocations() == 3
    latch.open()
    simulated.synchronize()


def test_a_failed_swap_keeps_the_memory_of_the_copies_before_the_failing_one():
    bench = Bench(b"", transport="copies")
    simulated, stream, driver = bench.simulated, bench.stream, bench.driver
    latch = stream.latch()
    driver.fail("cuMemcpyAsync", at=2)
    with pytest.raises(RuntimeError, match="cuMemcpyAsync"):
        bench.swapper.swap_out([0, 2], [0, 2], stream)
    del bench
    gc.collect()
    assert len(driver.in_flight) == 1
    latch.open()
    simulated.synchronize()


def test_events_are_given_back(transport):
    bench = Bench(b"", transport=transport)
    bench.swapper.swap_out([0], [0]).wait()  # makes what the transport has once a device
    gc.collect()
    before = bench.driver.live_events()
    for _ in range(50):
        bench.swapper.swap_out([0], [0]).wait()
    gc.collect()
    assert bench.driver.live_events() == before
