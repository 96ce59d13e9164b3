"""Class 6: id x bytes past 2^31 and 2^32, and blocks that end in the midst of a word."""

from __future__ import annotations

import numpy as np
import pytest
from plain_model import assert_images, images_after, small_case

from numba_kvswap import Swapper, swap_cache_all_layers
from numba_kvswap.testing import LayerShape, run_case

MIB = 1 << 20
# (block bytes, id): past 2^31; past 2^32; past 2^32 by one block alone.
FAR = [(5 * MIB, 500), (5 * MIB, 900), (MIB, 4097)]
MARK_BYTES = 4096


def offsets_to_watch(block_bytes, block):
    """Where a product cut to 32 bits, signed or not, would land instead; the block itself not among them."""
    true = block * block_bytes
    return sorted({true % 2**32, true % 2**31} - {true})


def assert_untouched(read, offsets, before):
    for offset, bytes_before in zip(offsets, before, strict=True):
        np.testing.assert_array_equal(read(offset), bytes_before, err_msg=f"bytes at {offset:#x}")


@pytest.mark.parametrize(("block_bytes", "block"), FAR)
class TestFarBlocks:
    def test_device_block(self, transport, pools, random_block, block_bytes, block):
        far, near = pools.device((block + 1, block_bytes)), pools.pinned((2, block_bytes))
        swapper = Swapper([far], [near], transport=transport)
        near[:] = 0
        wanted = random_block(block_bytes, 1)
        pools.write(far, block * block_bytes, wanted)
        swapper.swap_out([block], [1]).wait()
        np.testing.assert_array_equal(near[1], wanted)
        assert not near[0].any()

        watched = offsets_to_watch(block_bytes, block)
        for offset in watched:
            pools.write(far, offset, random_block(MARK_BYTES, 2))
        before = [pools.read(far, offset, MARK_BYTES) for offset in watched]
        near[0] = random_block(block_bytes, 3)
        swapper.swap_in([block], [0]).wait()
        np.testing.assert_array_equal(pools.read(far, block * block_bytes, block_bytes), near[0])
        assert_untouched(lambda offset: pools.read(far, offset, MARK_BYTES), watched, before)

    def test_host_block(self, transport, pools, random_block, block_bytes, block):
        near, far = pools.device((2, block_bytes)), pools.pinned((block + 1, block_bytes))
        flat = far.reshape(-1)
        swapper = Swapper([near], [far], transport=transport)
        wanted = random_block(block_bytes, 4)
        far[block] = wanted
        swapper.swap_in([1], [block]).wait()
        np.testing.assert_array_equal(pools.read(near, block_bytes, block_bytes), wanted)

        watched = offsets_to_watch(block_bytes, block)
        for offset in watched:
            flat[offset : offset + MARK_BYTES] = random_block(MARK_BYTES, 5)
        before = [flat[offset : offset + MARK_BYTES].copy() for offset in watched]
        other = random_block(block_bytes, 6)
        pools.write(near, 0, other)
        swapper.swap_out([0], [block]).wait()
        np.testing.assert_array_equal(far[block], other)
        assert_untouched(lambda offset: flat[offset : offset + MARK_BYTES], watched, before)

    def test_op_with_a_bare_address(self, transport, pools, random_block, block_bytes, block):
        near, far = pools.device((2, 1, 1, block_bytes)), pools.pinned((block + 1, block_bytes))
        wanted = random_block(block_bytes, 7)
        pools.write(near, 0, wanted)
        swap_cache_all_layers([near], [far.ctypes.data], block + 1, [0], [block], 0, 0, transport=transport)
        np.testing.assert_array_equal(far[block], wanted)


@pytest.mark.slow  # it touches 4 GiB
def test_a_run_longer_than_2_to_the_32_bytes_is_moved_to_its_end(pools, random_block):
    """One run, one copy: its size itself does not fit 32 bits."""
    blocks = 4097
    device, host = pools.device((blocks, MIB)), pools.pinned((blocks, MIB))
    marks = {block: random_block(MARK_BYTES, block) for block in (0, 1, 2048, 4095, 4096)}
    for block, mark in marks.items():
        pools.write(device, block * MIB, mark)
    transfer = Swapper([device], [host]).swap_out(range(blocks), range(blocks))
    transfer.wait()
    assert (transfer.runs, transfer.bytes) == (1, blocks * MIB)
    for block, mark in marks.items():
        np.testing.assert_array_equal(host[block, :MARK_BYTES], mark)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 15, 17, 31, 33, 999])
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("host_pad", [0, 1])
def test_blocks_of_odd_size_move_to_their_last_byte_and_no_further(engine, size, direction, layers, host_pad):
    shape = LayerShape((1, size), "uint8", 0, host_pad)
    case = small_case([0, 1, 3], [2, 3, 0], direction=direction, layers=[shape] * layers)
    outcome = run_case(engine, case)
    assert outcome.error is None
    assert_images(outcome, images_after(case))
