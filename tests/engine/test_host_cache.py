"""HostCache: where its blocks lie, and how its memory comes and goes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, SimulatedDevice, Swapper, swap_cache_all_layers

BLOCKS, SIZES = 5, (16, 12, 3)


@pytest.fixture
def simulated():
    return SimulatedDevice(schedule=b"")


@pytest.fixture
def like(simulated):
    return DeviceCache([simulated.device_array((4, size), np.uint8) for size in SIZES])


# ---- layouts ----


def test_block_major_lays_a_blocks_layers_side_by_side(like):
    with HostCache.allocate(like, blocks=BLOCKS) as host:
        start = host.layers[0].address
        assert [layer.address - start for layer in host.layers] == [0, 16, 28]
        assert {layer.block_stride_bytes for layer in host.layers} == {31}


def test_layer_major_lays_a_layers_blocks_side_by_side(like):
    with HostCache.allocate(like, blocks=BLOCKS, layout="layer_major") as host:
        start = host.layers[0].address
        assert [layer.address - start for layer in host.layers] == [0, 80, 140]
        assert [layer.block_stride_bytes for layer in host.layers] == list(SIZES)


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
def test_no_two_blocks_share_a_byte_and_all_lie_in_one_pinned_allocation(simulated, like, layout):
    with HostCache.allocate(like, blocks=BLOCKS, layout=layout) as host:
        taken = [
            byte
            for layer in host.layers
            for block in range(BLOCKS)
            for byte in range(layer.block_stride_bytes * block, layer.block_stride_bytes * block + layer.block_bytes)
            for byte in [layer.address + byte]
        ]
        assert len(taken) == len(set(taken)) == BLOCKS * sum(SIZES)
        info = simulated.driver.pointer_info(min(taken))
        assert (info.kind, info.start, info.bytes) == ("host", min(taken), BLOCKS * sum(SIZES))
        assert max(taken) == info.end - 1


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
def test_views_are_the_blocks_that_a_swap_fills(like, simulated, layout, random_block):
    arrays = [simulated.device_array((4, size), np.uint8) for size in SIZES]
    for seed, each in enumerate(arrays):
        each.fill_from(random_block(each.shape, seed))
    with HostCache.allocate(DeviceCache(arrays), blocks=BLOCKS, layout=layout) as host:
        Swapper(arrays, host).swap_out([0, 3], [4, 0]).wait()
        for index, each in enumerate(arrays):
            view = host.layer(index)
            assert (view.shape, view.dtype) == ((BLOCKS, SIZES[index]), np.uint8)
            np.testing.assert_array_equal(view[[4, 0]], each.to_numpy()[[0, 3]])
            del view


def test_a_dtype_is_taken_over(simulated):
    device = DeviceCache([simulated.device_array((4, 2), np.float16)])
    with HostCache.allocate(device, blocks=1) as host:
        assert host.layers[0].dtype == "float16"
        Swapper(device, host)


def test_one_array_whose_first_axis_is_the_layer_stands_for_a_list(simulated):
    host = HostCache(simulated.pinned_array((3, BLOCKS, 16), np.uint8))
    assert (len(host.layers), host.blocks, host.block_bytes) == (3, BLOCKS, 48)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"blocks": -1}, ValueError),
        ({"blocks": 2.0}, TypeError),
        ({"blocks": True}, TypeError),
        ({"blocks": 1, "layout": "page_major"}, ValueError),
    ],
)
def test_what_allocate_refuses(simulated, like, arguments, error):
    before = simulated.driver.live_allocations()
    with pytest.raises(error, match="expected"):
        HostCache.allocate(like, **arguments)
    assert simulated.driver.live_allocations() == before


def test_no_blocks_are_a_pool_too(like):
    with HostCache.allocate(like, blocks=0) as host:
        assert host.blocks == 0
        Swapper(like, host).swap_out([], []).wait()
        with pytest.raises(IndexError):
            Swapper(like, host).swap_out([0], [0])


def test_memory_that_is_not_to_be_had(simulated, like):
    simulated.driver.fail("cuMemHostAlloc", status=2)
    with pytest.raises(KVSwapDriverError, match="OUT_OF_MEMORY"):
        HostCache.allocate(like, blocks=1)


# ---- closing ----


def test_close_frees_and_a_second_close_does_nothing(simulated, like):
    before = simulated.driver.live_allocations()
    host = HostCache.allocate(like, blocks=BLOCKS)
    assert simulated.driver.live_allocations() == before + 1
    host.close()
    host.close()
    assert host.closed and "closed" in repr(host)
    assert simulated.driver.live_allocations() == before
    assert simulated.driver.calls["cuMemFreeHost"] == 1


def test_a_context_manager_closes_also_after_an_error(simulated, like):
    before = simulated.driver.live_allocations()
    with pytest.raises(KeyError), HostCache.allocate(like, blocks=1) as host:
        raise KeyError
    assert host.closed
    assert simulated.driver.live_allocations() == before


def test_a_pool_with_views_alive_refuses_to_close(like):
    host = HostCache.allocate(like, blocks=BLOCKS)
    part = host.layer(0)[1:3, ::2].view(np.int8)  # a view of a view of a view
    with pytest.raises(BufferError, match="1 views"):
        host.close()
    assert not host.closed
    part[:] = 1  # still there
    del part
    host.close()


def test_a_closed_pool_says_so(like):
    host = HostCache.allocate(like, blocks=BLOCKS)
    swapper = Swapper(like, host)
    host.close()
    for use in (
        lambda: host.layers,
        lambda: host.layer(0),
        lambda: Swapper(like, host),
        lambda: swapper.swap_out([0], [0]),
        lambda: swapper.swap_in([0], [0]),
        lambda: swapper.swap_out([], []),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_close_waits_for_the_transfers_that_use_the_pool(simulated, like):
    host, other = HostCache.allocate(like, blocks=BLOCKS), HostCache.allocate(like, blocks=BLOCKS)
    stream = simulated.stream()
    mine = Swapper(like, host).swap_out([0, 2], [0, 2], stream)
    others = Swapper(like, other).swap_out([0, 2], [0, 2], simulated.stream())
    assert not mine.done()  # the schedule is the laziest
    host.close()
    assert mine.done()
    assert not others.done()
    simulated.synchronize()  # a copy into freed memory would raise here


def test_a_pool_and_its_views_dropped_without_close_are_freed(simulated, like):
    before = simulated.driver.live_allocations()
    host = HostCache.allocate(like, blocks=BLOCKS)
    view = host.layer(1)
    del host
    gc.collect()
    assert simulated.driver.live_allocations() == before + 1
    view[:] = 1  # the view keeps the memory
    del view
    gc.collect()
    assert simulated.driver.live_allocations() == before


def test_arrays_of_the_user_are_not_freed_by_close(simulated):
    pinned = simulated.pinned_array((BLOCKS, 16), np.uint8)
    host = HostCache([pinned])
    host.close()
    assert not host.closed
    assert simulated.driver.live_allocations() == 1


def test_a_hundred_pools_leave_nothing_behind(simulated, like):
    with HostCache.allocate(like, blocks=BLOCKS) as host:
        Swapper(like, host).swap_out([0], [0]).wait()  # makes what its transport has once a device
    gc.collect()
    before = simulated.driver.live_allocations(), simulated.driver.live_events()
    for _ in range(100):
        with HostCache.allocate(like, blocks=BLOCKS) as host:
            Swapper(like, host).swap_out([0], [0]).wait()
    gc.collect()
    assert simulated.driver.live_allocations() == before[0]
    assert simulated.driver.live_events() == before[1]


@pytest.mark.parametrize("entry", ["swapper", "op"])
def test_caches_are_freed_once_the_transfer_is_done_and_everything_dropped(simulated, entry):
    array, pinned = simulated.device_array((4, 1, 8), np.uint8), simulated.pinned_array((4, 1, 8), np.uint8)
    if entry == "op":
        swap_cache_all_layers([array], [pinned], 4, [0], [0], 0, 0)
    else:
        Swapper([array], [pinned]).swap_out([0], [0]).wait()
    del array, pinned
    gc.collect()
    assert simulated.driver.live_allocations() == 0


def test_sizes_of_numpy_integers_do_not_overflow():
    driver = SimulatedDevice().driver
    cache = DeviceCache.allocate(driver, blocks=300, block_bytes=np.array([200, 1], np.uint8))
    assert [layer.extent_bytes for layer in cache.layers] == [60_000, 300]
