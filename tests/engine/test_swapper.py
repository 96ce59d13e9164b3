"""Swapper: what it takes, how often it calls the driver, and that a call without ids in bounds moves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, Plan, SimulatedDevice, Swapper

BLOCKS, SIZE = 8, 16


@pytest.fixture
def simulated():
    return SimulatedDevice(schedule=b"")


def spaced_layers(simulated, layers, blocks=BLOCKS, size=SIZE, gap_bytes=0, seed=0):
    """Evenly spaced layers in one allocation, and their first bytes."""
    distance = blocks * size + gap_bytes
    pool = simulated.device_array((layers * distance,), np.uint8)
    pool.fill_from(np.random.default_rng(seed).integers(0, 256, pool.shape, np.uint8))
    return [pool.view(i * distance, (blocks, size), np.uint8) for i in range(layers)]


def calls_during(simulated, function):
    names = ("cuMemcpyAsync", "cuMemcpy2DAsync")
    before = [simulated.driver.calls[name] for name in names]
    function()
    return tuple(simulated.driver.calls[name] - count for name, count in zip(names, before, strict=True))


def assert_out(layers, host, device_ids, host_ids):
    for index, layer in enumerate(layers):
        np.testing.assert_array_equal(host.layer(index)[host_ids], layer.to_numpy()[device_ids])


# ---- the fewest calls ----


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
@pytest.mark.parametrize("gap_bytes", [0, 40])
def test_one_2d_copy_a_run_over_evenly_spaced_layers(simulated, layout, gap_bytes):
    layers = spaced_layers(simulated, 6, gap_bytes=gap_bytes)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout=layout) as host:
        swapper = Swapper(layers, host, transport="copies")
        calls = calls_during(simulated, lambda: swapper.swap_out([0, 3, 5], [1, 6, 2]).wait())
        assert calls == (0, 3)
        assert_out(layers, host, [0, 3, 5], [1, 6, 2])


def test_one_2d_copy_a_merged_run_in_layer_major_pools(simulated):
    layers = spaced_layers(simulated, 6)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout="layer_major") as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([2, 3, 4], [0, 1, 2]).wait()) == (0, 1)
        assert_out(layers, host, [2, 3, 4], [0, 1, 2])


def test_more_blocks_than_layers_in_a_block_major_pool_go_layer_by_layer(simulated):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out(range(8), range(8)).wait()) == (0, 2)
        assert_out(layers, host, range(8), range(8))


def test_a_copy_a_run_and_layer_where_layers_lie_apart(simulated):
    layers = [simulated.device_array((BLOCKS, SIZE + i), np.uint8) for i in range(3)]
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout="layer_major") as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([0, 1, 5], [0, 1, 7]).wait()) == (6, 0)


def test_layers_further_apart_than_the_largest_pitch_are_copied_one_by_one():
    simulated = SimulatedDevice(schedule=b"", pitch_bytes_max=100)
    layers = spaced_layers(simulated, 3)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout="layer_major") as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([0, 4], [2, 5]).wait()) == (6, 0)
        assert_out(layers, host, [0, 4], [2, 5])


def test_padded_rows_further_apart_than_the_largest_pitch_are_copied_block_by_block():
    simulated = SimulatedDevice(schedule=b"", pitch_bytes_max=40)
    layers = spaced_layers(simulated, 3)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:  # rows 48 bytes apart
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([0, 1], [2, 3]).wait()) == (6, 0)
        assert_out(layers, host, [0, 1], [2, 3])


def test_layers_that_change_their_spacing_make_groups(simulated):
    a, b = spaced_layers(simulated, 3, seed=1), spaced_layers(simulated, 2, gap_bytes=8, seed=2)
    layers = [*a, *b]
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout="layer_major") as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([0], [3]).wait()) == (0, 2)
        assert_out(layers, host, [0], [3])


def test_layers_of_one_allocation_that_change_their_spacing_make_groups(simulated):
    pool = simulated.device_array((7, BLOCKS, SIZE), np.uint8)
    pool.fill_from(np.random.default_rng(3).integers(0, 256, pool.shape, np.uint8))
    layers = [pool.view(i * BLOCKS * SIZE, (BLOCKS, SIZE), np.uint8) for i in (0, 1, 2, 4, 6)]
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS, layout="layer_major") as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_out([0, 1], [3, 4]).wait()) == (0, 2)
        assert_out(layers, host, [0, 1], [3, 4])


def test_layers_in_descending_order_are_moved_too(simulated):
    layers = spaced_layers(simulated, 4)[::-1]
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
        Swapper(layers, host, transport="copies").swap_out([1], [0]).wait()
        assert_out(layers, host, [1], [0])


def test_no_pairs_mean_no_copies(simulated):
    layers = spaced_layers(simulated, 3)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
        swapper = Swapper(layers, host, transport="copies")
        assert calls_during(simulated, lambda: swapper.swap_in([], []).wait()) == (0, 0)


# ---- plans ----


def test_a_plan_may_be_used_again_for_other_caches_and_backwards(simulated):
    plan = Plan([0, 1, 6], [4, 5, 2])
    for seed, layers_count in enumerate((1, 4)):
        layers = spaced_layers(simulated, layers_count, seed=seed)
        with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
            swapper = Swapper(layers, host, transport="copies")
            swapper.swap_out(plan).wait()
            assert_out(layers, host, [0, 1, 6], [4, 5, 2])
            wanted = [layer.to_numpy() for layer in layers]
            for layer in layers:
                layer.fill_from(np.zeros(layer.shape, np.uint8))
            swapper.swap_in(plan.reversed()).wait()
            for layer, before in zip(layers, wanted, strict=True):
                np.testing.assert_array_equal(layer.to_numpy()[[0, 1, 6]], before[[0, 1, 6]])


def test_a_plan_names_source_then_target_in_both_directions(simulated):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
        swapper = Swapper(layers, host, transport="copies")
        swapper.swap_out([3], [7]).wait()
        swapper.swap_in(Plan([7], [0])).wait()
        for layer in layers:
            np.testing.assert_array_equal(layer.to_numpy()[0], layer.to_numpy()[3])


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_plan_and_ids_together_or_one_list_alone_are_refused(simulated, direction):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=BLOCKS) as host:
        swapper = Swapper(layers, host, transport="copies")
        swap = swapper.swap_out if direction == "out" else swapper.swap_in
        with pytest.raises(TypeError, match="Plan alone"):
            swap(Plan([0], [0]), [0])
        with pytest.raises(TypeError, match="host_ids is None"):
            swap([0])
        with pytest.raises(TypeError, match="stream"):
            swap([0], [0], "the first")


def test_a_plan_is_checked_against_each_pair_of_caches(simulated):
    layers = spaced_layers(simulated, 1)
    plan = Plan([7], [3])
    with HostCache.allocate(DeviceCache(layers), blocks=4) as host:
        swapper = Swapper(layers, host, transport="copies")
        swapper.swap_out(plan).wait()
        with pytest.raises(IndexError, match=r"target id 3; expected 0 <= id < 3|source id 7; expected 0 <= id < 4"):
            swapper.swap_in(plan)


# ---- what it refuses ----


def refusal(device, host):
    with pytest.raises((TypeError, ValueError)) as caught:
        Swapper(device, host)
    return str(caught.value)


def test_caches_that_do_not_match(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    pinned = simulated.pinned_array((BLOCKS, SIZE), np.uint8)
    assert "1 layers, the host cache 2" in refusal([layer], [pinned, pinned])
    assert "device layer 0 has dtype uint8, host layer 0 int8" in refusal([layer], [pinned.view(np.int8)])
    assert "blocks of 16 bytes, host layer 0 of 8" in refusal([layer], [pinned.reshape(2 * BLOCKS, SIZE // 2)])
    assert "no layers" in refusal([], [])


def test_pageable_memory(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    message = refusal([layer], [np.zeros((BLOCKS, SIZE), np.uint8)])
    assert "host layer 0" in message and "pageable" in message and "HostCache.allocate" in message


def test_arrays_on_the_wrong_side(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    pinned = simulated.pinned_array((BLOCKS, SIZE), np.uint8)
    assert "device layer 0 is ndarray in host memory" in refusal([pinned], [pinned])
    assert "host layer 0 is SimulatedArray on device 0" in refusal([layer], [layer])
    assert "host layer 0 is list" in refusal([layer], [[1, 2]])


def test_layers_of_several_devices_or_drivers():
    two = SimulatedDevice(devices=2)
    arrays = [two.device_array((BLOCKS, SIZE), np.uint8, device=device) for device in (0, 1)]
    with pytest.raises(ValueError, match="simulated device 0, simulated device 1; expected all on one device"):
        DeviceCache(arrays)
    with pytest.raises(ValueError, match="different devices or drivers"):
        DeviceCache([arrays[0], SimulatedDevice().device_array((BLOCKS, SIZE), np.uint8)])


def test_pinned_memory_of_another_driver_is_not_pinned(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    foreign = SimulatedDevice().pinned_array((BLOCKS, SIZE), np.uint8)
    assert "not known to the driver" in refusal([layer], [foreign])


def test_blocks_that_are_not_contiguous(simulated):
    array = simulated.device_array((BLOCKS, 4, 4), np.uint8, strides_bytes=(32, 8, 1))
    with pytest.raises(ValueError, match=r"device layer 0 .*strides \(32, 8, 1\)"):
        DeviceCache([array])
    host = simulated.pinned_array((BLOCKS, 4, 4), np.uint8)
    with pytest.raises(ValueError, match=r"host layer 0 .*strides"):
        HostCache([host.transpose(0, 2, 1)])
    with pytest.raises(ValueError, match=r"host layer 0 .*strides"):
        HostCache([host[::-1]])


@pytest.mark.parametrize("shape", [(), (BLOCKS, 0), (BLOCKS, 2, 0)])
def test_blocks_of_no_bytes(simulated, shape):
    with pytest.raises(ValueError, match="blocks of 1 byte or more"):
        HostCache([simulated.pinned_array(shape, np.uint8)])


def test_a_read_only_target_is_refused_and_a_read_only_source_is_not(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    pinned = simulated.pinned_array((BLOCKS, SIZE), np.uint8)
    pinned[:] = 5
    pinned.flags.writeable = False
    swapper = Swapper([layer], [pinned])
    with pytest.raises(ValueError, match="host layer 0 is read-only"):
        swapper.swap_out([0], [0])
    swapper.swap_in([0], [0]).wait()
    assert (layer.to_numpy()[0] == 5).all()


@pytest.mark.parametrize("direction", ["out", "in"])
def test_nothing_is_submitted_when_an_id_is_out_of_bounds(simulated, direction):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=4) as host:
        swapper = Swapper(layers, host, transport="copies")
        swap = swapper.swap_out if direction == "out" else swapper.swap_in

        def refused():
            for ids in (([0, 8], [0, 1]), ([0, 1], [0, 4]), ([-1], [0]), ([0], [-1])):
                with pytest.raises(IndexError, match="position"):
                    swap(*ids)

        assert calls_during(simulated, refused) == (0, 0)


def test_freed_device_memory_is_found_when_the_cache_is_made(simulated):
    layer = simulated.device_array((BLOCKS, SIZE), np.uint8)
    layer.free()
    with pytest.raises(ValueError, match="not known to the driver"):
        DeviceCache([layer])


def test_an_unknown_stream_is_an_error_of_that_call_alone(simulated):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=4) as host:
        swapper = Swapper(layers, host, transport="copies")
        with pytest.raises(KVSwapDriverError, match="INVALID_HANDLE"):
            swapper.swap_out([0], [0], 0x1234)
        swapper.swap_out([0], [0]).wait()


def test_representations_say_what_they_are(simulated):
    layers = spaced_layers(simulated, 2)
    with HostCache.allocate(DeviceCache(layers), blocks=4) as host:
        text = repr(Swapper(layers, host, transport="batch"))
        assert "transport='batch', favor='swap'" in text
    assert "2 layers, 8 blocks of 32 bytes" in text and "simulated device 0" in text and "4 blocks" in text
