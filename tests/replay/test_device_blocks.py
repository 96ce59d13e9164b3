"""The kernels of the replay: that they compile, without a GPU; that they fill and judge rightly, with one."""

from types import SimpleNamespace

import numpy as np
import pytest

from numba_kvswap.driver import cuda_available, cuda_driver, why_no_cuda
from numba_kvswap.layers import Layer
from numba_kvswap.memory import DriverMemory
from numba_kvswap.replay.content import block_bytes_of


@pytest.fixture
def device_blocks(monkeypatch):
    """The module, with a device to compile for where there is none."""
    from numba.cuda import compiler, dispatcher

    if not cuda_available():
        for module in (compiler, dispatcher):
            monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    from numba_kvswap.replay import device_blocks

    return device_blocks


def test_kernels_compile_to_eight_byte_accesses(device_blocks):
    from numba import cuda, types

    words, counts = types.Array(types.uint64, 2, "C"), types.Array(types.int64, 1, "C")
    fill, _ = cuda.compile_ptx(device_blocks._fill.py_func, (words, words), cc=(9, 0))
    count, _ = cuda.compile_ptx(device_blocks._judge.py_func, (words, words, counts), cc=(9, 0))
    assert "st.u64" in fill
    assert "ld.u64" in count


@pytest.mark.cuda
@pytest.mark.skipif(not cuda_available(), reason=why_no_cuda())
@pytest.mark.parametrize(("block_bytes", "stride"), [(512, 512), (999, 999), (7, 7), (4096, 4104), (13, 32)])
def test_fill_writes_what_content_says_and_count_finds_every_change(device_blocks, block_bytes, stride):
    driver, blocks, layers = cuda_driver(), 5, 3
    memory = DriverMemory(driver, 0, layers * blocks * stride, "device")
    records = [
        Layer(memory.address + i * blocks * stride, blocks, block_bytes, stride, "uint8", True, memory)
        for i in range(layers)
    ]
    image = np.zeros((layers, blocks, stride), np.uint8)
    ids, positions, named = [2**62, 5, 9], [0, 3, 1], [4, 0, 2]

    def put() -> None:
        driver.copy_now(memory.address, image.ctypes.data, image.nbytes)

    with driver.activate(0):
        stream = driver.stream_create()
        put()
        content = device_blocks.ContentKernels(records, stream)
        content.fill(named, ids, positions)
        content.judge(named, ids, positions)
        assert content.mismatches() == 0
        driver.copy_now(image.ctypes.data, memory.address, image.nbytes)
        for layer in range(layers):
            for block, hash_id, position in zip(named, ids, positions, strict=True):
                expected = block_bytes_of(hash_id, layer, position, block_bytes)
                assert np.array_equal(image[layer, block, :block_bytes], expected)
        assert not image[:, [1, 3]].any(), "blocks that nobody named"
        assert not image[:, :, block_bytes:].any(), "padding"
        image[1, 0, block_bytes - 1] ^= 1
        image[2, 4, 0] ^= 128
        put()
        content.judge(named, ids, positions)
        assert content.mismatches() == 2
        driver.stream_destroy(stream)
