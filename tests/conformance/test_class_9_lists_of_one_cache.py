"""Class 9: K without V, or a cache without its scales. All lists of a cache move together or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from numba_kvswap import DeviceCache, HostCache, Swapper, swap_cache_all_layers

BLOCKS, LAYERS = 6, 3
K, V, SCALES = (BLOCKS, 2, 4, 8), (BLOCKS, 2, 4, 6), (BLOCKS, 2, 4)
LISTS = {"K": (K, "float16"), "V": (V, "float16"), "scales": (SCALES, "float32")}


def fill(pools, array, seed, random_block):
    size = int(np.prod(array.shape)) * array.dtype.itemsize
    values = random_block(size, seed)
    pools.write(array, 0, values)
    return values.reshape(BLOCKS, -1)


@pytest.fixture
def cache(pools, random_block):
    """(arrays by list, their bytes by list)."""
    arrays = {name: [pools.device(*kind) for _ in range(LAYERS)] for name, kind in LISTS.items()}
    contents = {
        name: [fill(pools, array, 10 * at + i, random_block) for i, array in enumerate(arrays[name])]
        for at, name in enumerate(arrays)
    }
    return arrays, contents


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
def test_one_swap_moves_k_v_and_scales_out_and_in(pools, cache, layout):
    arrays, contents = cache
    device = DeviceCache(*arrays.values())
    with HostCache.allocate(device, blocks=9, layout=layout) as host:
        swapper = Swapper(device, host)
        out = swapper.swap_out([0, 1, 5], [7, 8, 2])
        out.wait()
        assert out.bytes == 3 * device.block_bytes
        swapper.swap_in([4, 3], [7, 2]).wait()  # block 0 onto 4, block 5 onto 3
        for name, layers in arrays.items():
            for layer, array in enumerate(layers):
                before = contents[name][layer]
                expected = before.copy()
                expected[4], expected[3] = before[0], before[5]
                found = pools.read(array, 0, before.size).reshape(BLOCKS, -1)
                np.testing.assert_array_equal(found, expected, err_msg=f"{name} layer {layer}")


@pytest.mark.parametrize("missing", LISTS)
def test_a_cache_that_lacks_a_list_is_refused(cache, missing):
    arrays, _ = cache
    whole = DeviceCache(*arrays.values())
    part = DeviceCache(*(layers for name, layers in arrays.items() if name != missing))
    with HostCache.allocate(whole, blocks=4) as host, pytest.raises(ValueError, match=r"9.*6|6.*9"):
        Swapper(part, host)
    with HostCache.allocate(part, blocks=4) as host, pytest.raises(ValueError, match="K, V, scales"):
        Swapper(whole, host)


def test_lists_in_another_order_are_refused(cache):
    arrays, _ = cache
    device = DeviceCache(arrays["K"], arrays["V"])
    other = DeviceCache(arrays["V"], arrays["K"])
    with HostCache.allocate(other, blocks=4) as host, pytest.raises(ValueError, match=r"layer 0.*bytes"):
        Swapper(device, host)


def test_the_op_refuses_fewer_addresses_than_tensors(pools, cache):
    arrays, _ = cache
    tensors = [*arrays["K"], *arrays["scales"]]
    pinned = [pools.pinned((4, *array.shape[1:]), array.dtype) for array in tensors]
    with pytest.raises(ValueError, match="6 gpu layers, 3 cpu addresses"):
        swap_cache_all_layers(tensors, pinned[:LAYERS], 4, [0], [0], 0, 0)
    swap_cache_all_layers(tensors, pinned, 4, [0], [0], 0, 0)


def test_a_list_with_fewer_blocks_is_refused(pools):
    with pytest.raises(ValueError, match="layer 1 has 5 blocks"):
        DeviceCache([pools.device((6, 8))], [pools.device((5, 8))])
