"""The arrays and streams that users really hold: torch, CuPy and Numba, on a real device."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from numba_kvswap import DeviceCache, HostCache, Plan, Swapper, cuda_driver, swap_cache_all_layers
from numba_kvswap.driver import why_no_cuda

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")]

BLOCKS, HOST_BLOCKS, LAYERS = 6, 9, 3
SHAPE = (2, 4, 8)
GPU_IDS, CPU_IDS = [0, 1, 5, 3], [7, 8, 0, 2]  # a run of two, and two blocks alone
OUT, IN = 0, 1
TORCH_DTYPES = ["bfloat16", "float16", "uint8", "float8_e4m3fn", "float8_e5m2", "float32"]
# Long enough that a copy which did not wait would surely be early; it is never measured.
SLEEP_CYCLES = 100_000_000


@pytest.fixture(scope="module")
def torch():
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    module.cuda.init()
    return module


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def numba_cuda():
    return pytest.importorskip("numba.cuda")


@pytest.fixture
def cuda_pools(make_pools):
    """Arrays that no framework made, so that none makes a context current either."""
    return make_pools("cuda")


def random_u8(shape, seed):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# ---- torch ----


class TorchCache:
    """Layers of random bytes on the device, and zeroed pinned tensors."""

    def __init__(self, torch, dtype="bfloat16", shape=SHAPE, layers=LAYERS):
        self.torch, self.dtype = torch, getattr(torch, dtype)
        item_bytes = torch.empty(0, dtype=self.dtype).element_size()
        byte_shape = (*shape[:-1], shape[-1] * item_bytes)
        self.device = [
            torch.from_numpy(random_u8((BLOCKS, *byte_shape), seed)).cuda().view(self.dtype) for seed in range(layers)
        ]
        self.host = [
            torch.zeros((HOST_BLOCKS, *byte_shape), dtype=torch.uint8).pin_memory().view(self.dtype)
            for _ in range(layers)
        ]
        torch.cuda.synchronize()

    def bytes_of(self, tensor):
        return tensor.detach().view(self.torch.uint8).cpu().numpy()

    def assert_same(self, gpu_ids=GPU_IDS, cpu_ids=CPU_IDS):
        """Both sides agree in these blocks, and hold something."""
        for device, host in zip(self.device, self.host, strict=True):
            found = self.bytes_of(host)[cpu_ids]
            np.testing.assert_array_equal(self.bytes_of(device)[gpu_ids], found)
            assert found.any()

    def assert_others_untouched(self):
        others = [block for block in range(HOST_BLOCKS) if block not in CPU_IDS]
        for host in self.host:
            assert not self.bytes_of(host)[others].any()


def there_and_back(cache, pointers):
    """Out, then in onto other blocks; content checked on both sides."""
    swap_cache_all_layers(cache.device, pointers, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    cache.assert_same()
    cache.assert_others_untouched()
    swap_cache_all_layers(cache.device, pointers, HOST_BLOCKS, [2, 4], [7, 0], 0, IN)
    cache.assert_same([0, 5, 2, 4], [7, 0, 7, 0])


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("host_as", ["address", "tensor", "flat bytes"])
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[:2]])
def test_torch_tensors_through_the_op(torch, dtype, host_as, shape):
    cache = TorchCache(torch, dtype, shape)
    pointers = {
        "address": [host.data_ptr() for host in cache.host],
        "tensor": cache.host,
        "flat bytes": [host.view(torch.uint8).reshape(-1) for host in cache.host],
    }[host_as]
    there_and_back(cache, pointers)


def test_a_torch_tensor_that_requires_grad(torch):
    cache = TorchCache(torch, "float16")
    for tensor in cache.device:
        tensor.requires_grad_()
    there_and_back(cache, cache.host)


@pytest.mark.parametrize("ids_as", ["tensor", "int32 tensor", "numpy"])
def test_torch_ids(torch, ids_as):
    cache = TorchCache(torch)
    make = {
        "tensor": torch.tensor,
        "int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
        "numpy": np.array,
    }[ids_as]
    swap_cache_all_layers(cache.device, cache.host, HOST_BLOCKS, make(GPU_IDS), make(CPU_IDS), 0, OUT)
    cache.assert_same()


def test_torch_ids_on_the_device_are_refused(torch):
    with pytest.raises(TypeError, match=r"cuda:0.*pass ids.cpu\(\)"):
        Plan(torch.tensor([0], device="cuda"), [0])


def test_a_pageable_torch_tensor_is_refused(torch):
    cache = TorchCache(torch)
    pageable = [torch.zeros_like(host, pin_memory=False) for host in cache.host]
    with pytest.raises(ValueError, match="pageable"):
        swap_cache_all_layers(cache.device, pageable, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    with pytest.raises(ValueError, match="pageable"):
        Swapper(cache.device, pageable)


def test_a_cpu_torch_tensor_is_no_device_cache(torch):
    cache = TorchCache(torch)
    with pytest.raises(TypeError, match="host memory"):
        swap_cache_all_layers(cache.host, cache.host, HOST_BLOCKS, [0], [0], 0, OUT)
    with pytest.raises(TypeError, match="on device 0; expected pinned host memory"):
        swap_cache_all_layers(cache.device, cache.device, HOST_BLOCKS, [0], [0], 0, OUT)


def test_a_transposed_torch_tensor_is_refused(torch):
    cache = TorchCache(torch)
    with pytest.raises(ValueError, match=r"gpu layer 0 .*strides"):
        swap_cache_all_layers(
            [tensor.transpose(1, 2) for tensor in cache.device], cache.host, HOST_BLOCKS, [0], [0], 0, OUT
        )


def test_k_and_v_interleaved_in_one_tensor(torch):
    """[blocks, 2, ...], as some engines lay a layer out: each half's blocks are padded by the other."""
    both = torch.from_numpy(random_u8((BLOCKS, 2, *SHAPE), 1)).cuda()
    k, v = both[:, 0], both[:, 1]
    host = torch.zeros((2, HOST_BLOCKS, *SHAPE), dtype=torch.uint8).pin_memory()
    before = both.cpu().numpy()
    Swapper(DeviceCache([k], [v]), HostCache([host[0]], [host[1]])).swap_out(GPU_IDS, CPU_IDS).wait()
    np.testing.assert_array_equal(host.numpy()[0][CPU_IDS], before[GPU_IDS, 0])
    np.testing.assert_array_equal(host.numpy()[1][CPU_IDS], before[GPU_IDS, 1])
    host[1, CPU_IDS[0]] = 0
    Swapper([v], [host[1]]).swap_in([GPU_IDS[0]], [CPU_IDS[0]]).wait()
    after = both.cpu().numpy()
    assert not after[GPU_IDS[0], 1].any()
    np.testing.assert_array_equal(after[:, 0], before[:, 0])


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
def test_one_torch_pool_of_all_layers_against_our_own_pinned_pool(torch, layout):
    """Evenly spaced layers on both sides: the copies are 2-D."""
    pool = torch.from_numpy(random_u8((8, BLOCKS, *SHAPE), 2)).cuda()
    before = pool.cpu().numpy().reshape(8, BLOCKS, -1)
    device = DeviceCache(pool)
    with HostCache.allocate(device, blocks=HOST_BLOCKS, layout=layout) as host:
        swapper = Swapper(device, host)
        swapper.swap_out(GPU_IDS, CPU_IDS).wait()
        pool.zero_()
        transfer = swapper.swap_in(GPU_IDS, CPU_IDS, torch.cuda.current_stream())
        transfer.wait()
        assert transfer.seconds > 0.0
        after = pool.cpu().numpy().reshape(8, BLOCKS, -1)
        np.testing.assert_array_equal(after[:, GPU_IDS], before[:, GPU_IDS])
        assert not after[:, [2, 4]].any()


# ---- torch streams ----


@pytest.mark.parametrize("stream_as", ["torch", "handle"])
def test_swap_out_waits_for_the_kernel_that_fills_its_blocks(torch, stream_as):
    cache = TorchCache(torch, "uint8")
    stream = torch.cuda.Stream()
    swapper = Swapper(cache.device, cache.host)
    swapper.swap_out([0], [0], stream).wait()  # compiled now, so that the race is not lost to the compiler
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        for tensor in cache.device:
            tensor.fill_(7)
        transfer = swapper.swap_out(GPU_IDS, CPU_IDS, stream if stream_as == "torch" else stream.cuda_stream)
        for tensor in cache.device:
            tensor.fill_(9)
    transfer.wait()
    for host in cache.host:
        assert (host[CPU_IDS] == 7).all()


def test_a_kernel_put_after_swap_in_sees_the_new_blocks(torch):
    cache = TorchCache(torch, "uint8")
    for host in cache.host:
        host.fill_(5)
    stream = torch.cuda.Stream()
    swapper = Swapper(cache.device, cache.host)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        swapper.swap_in(GPU_IDS, CPU_IDS, stream)
        seen = [tensor[GPU_IDS].clone() for tensor in cache.device]
    stream.synchronize()
    assert all((each == 5).all() for each in seen)


def test_wait_on_orders_another_torch_stream(torch):
    cache = TorchCache(torch, "uint8")
    before = [cache.bytes_of(tensor) for tensor in cache.device]
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    swapper = Swapper(cache.device, cache.host)
    swapper.swap_out(GPU_IDS, CPU_IDS, first).wait()  # compiles, which takes longer than the sleep
    for host in cache.host:
        host.zero_()
    with torch.cuda.stream(first):
        torch.cuda._sleep(SLEEP_CYCLES)
    transfer = swapper.swap_out(GPU_IDS, CPU_IDS, first)
    assert not transfer.done()
    transfer.wait_on(second)
    with torch.cuda.stream(second):
        for tensor in cache.device:
            tensor.zero_()
    second.synchronize()
    assert transfer.done()
    for host, wanted in zip(cache.host, before, strict=True):
        np.testing.assert_array_equal(host.numpy()[CPU_IDS], wanted[GPU_IDS])


def test_the_op_waits_for_torchs_current_stream(torch):
    cache = TorchCache(torch, "uint8")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP_CYCLES)
        for tensor in cache.device:
            tensor.fill_(7)
        swap_cache_all_layers(cache.device, cache.host, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    for host in cache.host:
        assert (host[CPU_IDS] == 7).all()


def test_without_a_stream_a_swap_follows_the_legacy_default_stream(torch):
    cache = TorchCache(torch, "uint8")
    torch.cuda._sleep(SLEEP_CYCLES)  # torch's default stream is the legacy one
    for tensor in cache.device:
        tensor.fill_(7)
    Swapper(cache.device, cache.host).swap_out(GPU_IDS, CPU_IDS).wait()
    for host in cache.host:
        assert (host[CPU_IDS] == 7).all()


def test_caches_dropped_at_once_are_kept_until_the_copies_are_done(torch):
    cache = TorchCache(torch, "uint8")
    host, wanted = cache.host, [cache.bytes_of(tensor) for tensor in cache.device]
    shape, layers = cache.device[0].shape, len(cache.device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        transfer = Swapper(cache.device, cache.host).swap_out(GPU_IDS, CPU_IDS, stream)
    del cache
    # Were the layers free again, torch would hand the same memory out here.
    others = [torch.full(shape, 3, dtype=torch.uint8, device="cuda") for _ in range(8 * layers)]
    transfer.wait()
    for each, before in zip(host, wanted, strict=True):
        np.testing.assert_array_equal(each.numpy()[CPU_IDS], before[GPU_IDS])
    del others


# ---- the current context ----


def current_context() -> int:
    from cuda.bindings import driver

    status, context = driver.cuCtxGetCurrent()
    assert int(status) == 0
    return int(context)


def in_a_fresh_thread(function):
    """What `function` returns or raises in a thread where no context is current."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@pytest.mark.parametrize("ids", [([0], [0]), ([BLOCKS], [0])])
def test_a_thread_without_a_context_leaves_without_one(cuda_pools, ids):
    tensor, pinned = cuda_pools.device((BLOCKS, *SHAPE)), cuda_pools.pinned((HOST_BLOCKS, *SHAPE))

    def use():
        before = current_context()
        try:
            swap_cache_all_layers([tensor], [pinned], HOST_BLOCKS, *ids, 0, OUT)
            Swapper([tensor], [pinned]).swap_in(*ids).wait()
        except IndexError:
            assert ids[0] == [BLOCKS]
        return before, current_context()

    assert in_a_fresh_thread(use) == (0, 0)


def test_the_current_context_is_left_as_it_was_found(torch):
    cache = TorchCache(torch)
    before = current_context()
    assert before != 0
    there_and_back(cache, cache.host)
    with pytest.raises(IndexError):
        swap_cache_all_layers(cache.device, cache.host, HOST_BLOCKS, [BLOCKS], [0], 0, OUT)
    assert current_context() == before


def test_another_current_device_is_left_as_it_was_found(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    cache = TorchCache(torch)
    with torch.cuda.device(1):
        before = current_context()
        there_and_back(cache, cache.host)
        assert current_context() == before
        with pytest.raises(ValueError, match="device 0, rank is 1"):
            swap_cache_all_layers(cache.device, cache.host, HOST_BLOCKS, [0], [0], 1, OUT)


# ---- CuPy ----


SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles);
}
"""


def cupy_cache(cupy, dtype="float16"):
    import cupyx

    item_bytes = np.dtype(dtype).itemsize
    byte_shape = (*SHAPE[:-1], SHAPE[-1] * item_bytes)
    device = [cupy.asarray(random_u8((BLOCKS, *byte_shape), seed)).view(dtype) for seed in range(LAYERS)]
    host = [cupyx.zeros_pinned((HOST_BLOCKS, *SHAPE), dtype) for _ in range(LAYERS)]
    cupy.cuda.Device().synchronize()
    return device, host


def assert_cupy_same(cupy, device, host, gpu_ids=GPU_IDS, cpu_ids=CPU_IDS):
    for one, other in zip(device, host, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(one).view(np.uint8)[gpu_ids], other.view(np.uint8)[cpu_ids])


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int32", "complex64"])
@pytest.mark.parametrize("host_as", ["address", "array"])
def test_cupy_arrays_through_the_op(cupy, dtype, host_as):
    device, host = cupy_cache(cupy, dtype)
    pointers = host if host_as == "array" else [each.ctypes.data for each in host]
    swap_cache_all_layers(device, pointers, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    assert_cupy_same(cupy, device, host)
    assert all(not each.view(np.uint8)[[1, 3, 4, 5, 6]].any() for each in host)
    swap_cache_all_layers(device, pointers, HOST_BLOCKS, [2], [7], 0, IN)
    assert_cupy_same(cupy, device, host, [0, 2], [7, 7])


def test_a_cupy_stream_orders_a_swap(cupy):
    device, host = cupy_cache(cupy, "uint8")
    stream = cupy.cuda.Stream(non_blocking=True)
    spin = cupy.RawKernel(SPIN, "spin")
    swapper = Swapper(device, host)
    swapper.swap_out([0], [0], stream).wait()
    with stream:
        spin((1,), (1,), (np.int64(SLEEP_CYCLES),))
        for each in device:
            each.fill(7)
        transfer = swapper.swap_out(GPU_IDS, CPU_IDS, stream)
        for each in device:
            each.fill(9)
    transfer.wait()
    for each in host:
        assert (each[CPU_IDS] == 7).all()


def test_the_op_waits_for_cupys_current_stream(cupy):
    device, host = cupy_cache(cupy, "uint8")
    with cupy.cuda.Stream(non_blocking=True):
        large = cupy.zeros(1 << 28, np.uint8)
        for _ in range(20):
            large += 1
        for each in device:
            each.fill(7)
        swap_cache_all_layers(device, host, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    for each in host:
        assert (each[CPU_IDS] == 7).all()


def test_a_read_only_host_array_is_a_source_and_no_target(cupy):
    device, host = cupy_cache(cupy)
    for each in host:
        each[:] = 1
        each.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        swap_cache_all_layers(device, host, HOST_BLOCKS, [0], [0], 0, OUT)
    swap_cache_all_layers(device, host, HOST_BLOCKS, [0], [0], 0, IN)
    assert_cupy_same(cupy, device, host, [0], [0])


# ---- Numba ----


@pytest.mark.parametrize("dtype", ["float16", "uint8", "float32"])
@pytest.mark.parametrize("host_as", ["mapped", "pinned", "address"])
def test_numba_arrays_through_the_op(numba_cuda, dtype, host_as):
    shape, host_shape = (BLOCKS, *SHAPE), (HOST_BLOCKS, *SHAPE)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    contents = [random_u8(size, seed).view(dtype).reshape(shape) for seed in range(LAYERS)]
    device = [numba_cuda.device_array(shape, np.dtype(dtype)) for _ in contents]
    for each, content in zip(device, contents, strict=True):
        each.copy_to_device(content)
    make = numba_cuda.mapped_array if host_as == "mapped" else numba_cuda.pinned_array
    host = [make(host_shape, dtype=np.dtype(dtype)) for _ in contents]
    for each in host:
        each[:] = 0
    pointers = [each.ctypes.data for each in host] if host_as == "address" else host
    swap_cache_all_layers(device, pointers, HOST_BLOCKS, GPU_IDS, CPU_IDS, 0, OUT)
    for content, each in zip(contents, host, strict=True):
        found = np.asarray(each).view(np.uint8)
        np.testing.assert_array_equal(found[CPU_IDS], content.view(np.uint8)[GPU_IDS])
        assert not found[[1, 3, 4, 5, 6]].any()
    swap_cache_all_layers(device, pointers, HOST_BLOCKS, [2], [7], 0, IN)
    for content, each in zip(contents, device, strict=True):
        np.testing.assert_array_equal(each.copy_to_host().view(np.uint8)[2], content.view(np.uint8)[GPU_IDS[0]])


def test_a_numba_stream_orders_a_swap(numba_cuda):
    @numba_cuda.jit
    def fill_late(array, value, rounds):
        # One thread, so slow that a copy which did not wait would be early.
        for _ in range(rounds):
            for i in range(array.size):
                array[i] = value

    size = BLOCKS * 512
    flat = numba_cuda.to_device(np.zeros(size, np.uint8))
    device = flat.reshape(BLOCKS, 512)
    host = numba_cuda.pinned_array((HOST_BLOCKS, 512), dtype=np.uint8)
    stream = numba_cuda.stream()
    fill_late[1, 1, stream](flat, 1, 1)
    swapper = Swapper([device], [host])
    swapper.swap_out([0], [0], stream).wait()
    fill_late[1, 1, stream](flat, 7, 50_000)
    transfer = swapper.swap_out(GPU_IDS, CPU_IDS, stream)
    fill_late[1, 1, stream](flat, 9, 1)
    transfer.wait()
    assert (np.asarray(host)[CPU_IDS] == 7).all()


# ---- the three together ----


def test_pageable_numpy_memory_is_refused(cuda_pools):
    tensor, pageable = cuda_pools.device((BLOCKS, *SHAPE)), np.zeros((HOST_BLOCKS, *SHAPE), np.uint8)
    for pointer in (pageable, pageable.ctypes.data):
        with pytest.raises(ValueError, match="pageable"):
            swap_cache_all_layers([tensor], [pointer], HOST_BLOCKS, [0], [0], 0, OUT)


def test_too_little_pinned_memory_is_refused(cuda_pools):
    driver = cuda_driver()
    tensor, short = cuda_pools.device((BLOCKS, 1, 1 << 20)), cuda_pools.pinned((2, 1, 1 << 20))
    found = driver.pointer_info(short.ctypes.data).end - short.ctypes.data
    blocks = found // (1 << 20) + 1
    with pytest.raises(ValueError, match=f"needs {blocks << 20} bytes .*found {found} pinned bytes"):
        swap_cache_all_layers([tensor], [short.ctypes.data], blocks, [0], [0], 0, OUT)


def test_layers_of_several_frameworks_are_one_cache(torch, cupy):
    contents = [random_u8((BLOCKS, *SHAPE), seed) for seed in range(2)]
    device = [torch.from_numpy(contents[0]).cuda(), cupy.asarray(contents[1])]
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    with HostCache.allocate(DeviceCache(device), blocks=HOST_BLOCKS) as host:
        Swapper(device, host).swap_out(GPU_IDS, CPU_IDS).wait()
        for index, content in enumerate(contents):
            np.testing.assert_array_equal(host.layer(index)[CPU_IDS], content.reshape(BLOCKS, -1)[GPU_IDS])
