"""Swaps submitted layer by layer: the same bytes, and each layer's when it is said that they are in."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import EAGER, LAZY, Rig, assert_same

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, Swapper, swapper
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.submit import BATCH_COPIES, FILLED, RING_COPIES, RING_KERNELS

FEWER = settings(max_examples=max(20, settings().max_examples // 4))
DIRECTIONS = ("out", "in")
SIZES = (8, 5, 16, 8, 8)
IDS = ([3, 4, 5, 9, 1], [0, 1, 2, 8, 7])
TAPES = st.binary(max_size=200)


@pytest.fixture(autouse=True)
def parts_of_one_layer(monkeypatch):
    monkeypatch.setattr(swapper, "_PART_BYTES_MIN", 1)


def layerwise(a_swapper, direction, device_ids, host_ids, stream=None):
    swap = a_swapper.swap_out if direction == "out" else a_swapper.swap_in
    return swap(device_ids, host_ids, stream, layerwise=True)


def target_layers(rig, direction):
    return rig.host_layers() if direction == "out" else rig.device_layers()


@FEWER
@given(tape=TAPES, direction=st.sampled_from(DIRECTIONS), layout=st.sampled_from(("block_major", "layer_major")))
def test_the_same_bytes_come_and_each_layer_s_when_it_is_done(transport_or_auto, tape, direction, layout):
    rig = Rig(transport_or_auto, sizes=SIZES, schedule=tape, layout=layout)
    expected = rig.expected(direction, *IDS, rig.images())
    wanted = expected[len(SIZES) :] if direction == "out" else expected[: len(SIZES)]
    transfer = layerwise(rig.swapper(), direction, *IDS, rig.simulated.stream())
    for _ in range(30):
        done = [transfer.layer(index).done() for index in range(len(SIZES))]
        assert done == sorted(done, reverse=True)
        for index, layer in enumerate(target_layers(rig, direction)):
            if done[index]:
                np.testing.assert_array_equal(layer, wanted[index])
    transfer.layer(2).wait()
    np.testing.assert_array_equal(target_layers(rig, direction)[2], wanted[2])
    transfer.wait()
    assert_same(rig.images(), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_model_starts_with_its_first_layer_while_later_ones_are_still_to_come(transport, direction, monkeypatch):
    rig = Rig(transport, sizes=SIZES)
    expected = rig.expected(direction, *IDS, rig.images())
    transfer = layerwise(rig.swapper(), direction, *IDS, rig.simulated.stream())
    compute, seen = rig.simulated.stream(), []
    transfer.layer(0).wait_on(compute)
    compute.launch(lambda: seen.append([layer.copy() for layer in target_layers(rig, direction)]))
    compute.synchronize()
    wanted = expected[len(SIZES) :] if direction == "out" else expected[: len(SIZES)]
    np.testing.assert_array_equal(seen[0][0], wanted[0])
    assert (seen[0][-1] != wanted[-1]).any()  # in the laziest order
    assert not transfer.done()
    transfer.wait()


@FEWER
@given(tape=TAPES, layer=st.integers(0, len(SIZES) - 1), direction=st.sampled_from(DIRECTIONS))
def test_what_waits_on_a_layer_sees_its_bytes_in_any_order(transport_or_auto, tape, layer, direction):
    rig = Rig(transport_or_auto, sizes=SIZES, schedule=tape)
    expected = rig.expected(direction, *IDS, rig.images())
    wanted = expected[len(SIZES) :] if direction == "out" else expected[: len(SIZES)]
    transfer = layerwise(rig.swapper(), direction, *IDS, rig.simulated.stream())
    compute, seen = rig.simulated.stream(), []
    transfer.layer(layer).wait_on(compute)
    compute.launch(lambda: seen.append(target_layers(rig, direction)[layer].copy()))
    compute.synchronize()
    np.testing.assert_array_equal(seen[0], wanted[layer])


def lists_of(simulated, *lengths):
    return [[simulated.device_array((8, 4 + length), np.uint8) for _ in range(length)] for length in lengths]


def swapper_of(simulated, *lists):
    device = DeviceCache(*lists)
    return Swapper(device, HostCache.allocate(device, blocks=8), transport="copies")


def test_all_lists_of_a_cache_have_a_share_in_a_layer():
    simulated = SimulatedDevice(schedule=LAZY)
    k, v, scales = lists_of(simulated, 3, 3, 3)
    for index, array in enumerate((*k, *v, *scales)):
        array.fill_from(np.full(array.shape, index + 1, np.uint8))
    a_swapper = swapper_of(simulated, k, v, scales)
    transfer = a_swapper.swap_out([1], [2], layerwise=True)
    transfer.layer(1).wait()
    come = [int(layer[2, 0]) for layer in (a_swapper.host_cache.layer(index) for index in range(9))]
    assert come == [1, 2, 0xCD, 4, 5, 0xCD, 7, 8, 0xCD]  # layers 0 and 1 of each list; fresh memory holds 0xCD
    with pytest.raises(IndexError, match="expected 0 <= layer < 3"):
        transfer.layer(3)
    transfer.wait()


def test_lists_of_different_length_are_layers_each():
    simulated = SimulatedDevice()
    a_swapper = swapper_of(simulated, *lists_of(simulated, 2, 3))
    assert a_swapper.device_cache.depth == 5
    transfer = a_swapper.swap_out([1], [2], layerwise=True)
    transfer.layer(4).wait()
    assert transfer.layer(0) is not transfer.layer(1)


@pytest.mark.parametrize("wrong", [-1, len(SIZES)])
@pytest.mark.parametrize("cut", [True, False])
def test_a_layer_that_there_is_not(wrong, cut):
    transfer = Rig("copies", sizes=SIZES).swapper().swap_out(*IDS, layerwise=cut)
    with pytest.raises(IndexError, match=f"layer {wrong}; expected 0 <= layer < 5"):
        transfer.layer(wrong)
    with pytest.raises(TypeError):
        transfer.layer(None)
    transfer.wait()


def test_a_transfer_that_was_not_cut_is_each_of_its_layers(monkeypatch):
    whole = Rig("copies", sizes=SIZES).swapper().swap_out(*IDS)
    assert all(whole.layer(index) is whole for index in range(len(SIZES)))
    monkeypatch.setattr(swapper, "_PART_BYTES_MIN", 1 << 20)
    short = Rig("copies", sizes=SIZES).swapper().swap_out(*IDS, layerwise=True)
    assert all(short.layer(index) is short for index in range(len(SIZES)))


@pytest.mark.parametrize(("part_bytes", "parts"), [(1, 8), (9, 4), (17, 2), (33, 1)])
def test_parts_have_as_few_layers_as_are_worth_it(monkeypatch, part_bytes, parts):
    monkeypatch.setattr(swapper, "_PART_BYTES_MIN", part_bytes)
    transfer = Rig("copies", sizes=(8,) * 8).swapper().swap_out([2], [3], layerwise=True)
    assert len({id(transfer.layer(index)) for index in range(8)}) == parts
    transfer.wait()


def test_no_pairs_are_swapped_layer_by_layer_too(transport_or_auto):
    rig = Rig(transport_or_auto, sizes=SIZES)
    before = rig.images()
    rig.swapper().swap_out([], [], layerwise=True).wait()
    assert_same(rig.images(), before)


def test_layers_that_share_bytes_are_not_cut():
    simulated = SimulatedDevice()
    memory = simulated.device_array(64, np.uint8)
    layers = [memory.view(0, (4, 8), np.uint8), memory.view(4, (4, 8), np.uint8)]
    transfer = swapper_of(simulated, layers).swap_out([0], [1], layerwise=True)
    assert transfer.layer(0) is transfer
    transfer.wait()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_part_waits_for_the_one_before_it(direction):
    """On the ring the second part's first stage goes on while the first part's second stage is held."""
    rig = Rig("ring", sizes=(8, 8), schedule=EAGER, ring_blocks=4)
    with rig.driver.activate(0):
        ring = device_tools(rig.driver, 0).ring(direction)
    held_up = int(ring.words[RING_COPIES if direction == "out" else RING_KERNELS])
    latch = rig.driver.latch(held_up)
    launched = rig.driver.calls["cuLaunchKernel"]
    transfer = layerwise(rig.swapper(), direction, [0, 1], [2, 3], rig.simulated.stream())
    assert rig.driver.calls["cuLaunchKernel"] == launched + 2
    filled = [int(event) for event in ring.slots[:2, FILLED]]
    assert all(any(rig.driver.event_done(event) for _ in range(9)) for event in filled)
    latch.open()
    transfer.wait()


def test_what_it_says_of_itself_is_of_all_its_parts():
    rig = Rig("copies", sizes=SIZES, schedule=EAGER)
    stream = rig.simulated.stream()
    transfer = layerwise(rig.swapper(), "out", *IDS, stream)
    transfer.wait()
    assert (transfer.bytes, transfer.blocks, transfer.transport) == (5 * sum(SIZES), 5, "copies")
    assert transfer.layer(1).bytes == 5 * SIZES[1]
    seconds = [transfer.layer(index).seconds for index in range(5)]
    assert seconds == sorted(seconds) and seconds[-1] == transfer.seconds
    assert "done in" in repr(transfer)


def test_a_later_swap_on_another_stream_comes_after_its_last_part():
    rig = Rig("copies", sizes=SIZES)
    a_swapper = rig.swapper()
    layerwise(a_swapper, "out", [0], [1], rig.simulated.stream())
    a_swapper.swap_in([3], [1], rig.simulated.stream()).wait()
    for layer in rig.device_layers():
        np.testing.assert_array_equal(layer[3], layer[0])


@pytest.mark.parametrize("schedule", [LAZY, EAGER], ids=["lazy", "eager"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("failing", range(len(SIZES)))
def test_a_part_that_fails_is_named_by_its_layer_and_what_came_before_goes_on(direction, failing, schedule):
    rig = Rig("copies", sizes=SIZES, schedule=schedule)
    a_swapper, stream, before = rig.swapper(), rig.simulated.stream(), rig.images()
    ids = ([2, 4, 6], [1, 3, 5])
    layerwise(a_swapper, direction, *ids, stream).wait()
    gc.collect()
    live = rig.live()
    rig.driver.fail("cuMemcpyAsync", at=3 * failing + 1)
    with pytest.raises(KVSwapDriverError) as caught:
        layerwise(a_swapper, direction, *ids, stream)
    assert (caught.value.layer, caught.value.run) == (failing, 1)
    assert caught.value.undefined_targets == tuple(ids[direction == "out"])
    stream.synchronize()
    layerwise(a_swapper, direction, *ids, stream).wait()
    assert_same(rig.images(), rig.expected(direction, *ids, before))
    del caught
    gc.collect()
    assert rig.live() == live
    assert len(rig.driver.in_flight) == 0


def test_a_failure_on_the_device_in_an_early_part_is_one_of_the_whole():
    simulated = SimulatedDevice()
    layers = [simulated.device_array((8, 4), np.uint8) for _ in range(3)]
    stream = simulated.stream()
    latch = stream.latch()
    transfer = swapper_of(simulated, layers).swap_out([1], [2], stream, layerwise=True)
    layers[0].free()  # under the queued copies, as only a user's mistake can
    latch.open()
    with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
        transfer.layer(0).wait()
    for ask in (transfer.wait, transfer.done, transfer.wait):
        with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
            ask()
    assert transfer.undefined_targets == (2,)
    assert "failed" in repr(transfer)


def test_a_close_in_another_thread_waits_for_all_parts(monkeypatch):
    """It comes while the second part is being submitted, when the first may have landed already."""
    rig = Rig("copies", sizes=SIZES, schedule=EAGER)
    a_swapper, closed, errors = rig.swapper(), threading.Event(), []

    def close():
        try:
            rig.host.close()
        except BaseException as error:
            errors.append(error)
        closed.set()

    closer = threading.Thread(target=close)
    part = a_swapper._submitters  # make the parts before the copies are watched

    def submitters(plan):
        made = part(plan)
        real = rig.driver.in_flight.add

        def add(work, queue):
            real(work, queue)
            if not closer.is_alive() and not closed.is_set() and work.bytes == 5 * SIZES[1]:
                closer.start()
                assert not closed.wait(0.1)

        monkeypatch.setattr(rig.driver.in_flight, "add", add)
        return made

    monkeypatch.setattr(a_swapper, "_submitters", submitters)
    try:
        layerwise(a_swapper, "out", *IDS, rig.simulated.stream())
    except ValueError as error:
        assert "closed" in str(error)
    closer.join()
    assert not errors
    rig.simulated.synchronize()  # no copy came to freed memory


def test_parts_are_made_without_asking_about_addresses_again():
    rig = Rig("copies", sizes=SIZES)
    a_swapper = rig.swapper()
    asked = rig.driver.calls["cuPointerGetAttributes"]
    layerwise(a_swapper, "out", *IDS).wait()
    assert rig.driver.calls["cuPointerGetAttributes"] == asked


def test_a_part_of_a_pool_is_closed_with_it():
    rig = Rig("copies")
    part = rig.host.part([0, 2])
    rig.host.close()
    assert part.closed
    with pytest.raises(ValueError, match="closed"):
        part.check_open()


@pytest.mark.parametrize("transport", ["batch", "ring", "split"])
def test_many_runs_by_what_goes_in_batches(transport):
    rig = Rig(transport, sizes=(4, 4), blocks=2 * BATCH_COPIES + 8, layout="layer_major", ring_blocks=64)
    ids = list(range(0, 2 * BATCH_COPIES + 8, 2))
    before = rig.images()
    layerwise(rig.swapper(), "out", ids, ids[::-1], rig.simulated.stream()).wait()
    assert_same(rig.images(), rig.expected("out", ids, ids[::-1], before))
