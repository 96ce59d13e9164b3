"""The FastDeploy op: stand-ins for addresses, devices, streams, and what it says when it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import KVSwapDriverError, SimulatedDevice, swap_cache_all_layers

BLOCKS, HOST_BLOCKS = 4, 6
OUT, IN = 0, 1


class Bench:
    """Two layers, 4-D and 3-D, full of random bytes, and pinned memory for them."""

    def __init__(self, tape: bytes = b"", devices: int = 1, device: int = 0, dtype="float16"):
        self.simulated = SimulatedDevice(schedule=tape, devices=devices)
        self.driver = self.simulated.driver
        shapes = [(BLOCKS, 2, 4, 8), (BLOCKS, 2, 4)]
        self.tensors = [self.simulated.device_array(shape, dtype, device=device) for shape in shapes]
        for seed, tensor in enumerate(self.tensors):
            values = np.random.default_rng(seed).integers(0, 256, tensor.nbytes, np.uint8)
            tensor.fill_from(values.view(dtype).reshape(tensor.shape))
        self.host = [self.simulated.pinned_array((HOST_BLOCKS, *shape[1:]), dtype) for shape in shapes]
        for host in self.host:
            host.view(np.uint8)[:] = 0
        self.device = device

    def call(self, gpu_ids, cpu_ids, *, pointers=None, bound=HOST_BLOCKS, rank=None, mode=OUT, tensors=None, **more):
        rank = self.device if rank is None else rank
        swap_cache_all_layers(
            tensors or self.tensors, pointers or self.host, bound, gpu_ids, cpu_ids, rank, mode, **more
        )

    def assert_out(self, gpu_ids, cpu_ids):
        for tensor, host in zip(self.tensors, self.host, strict=True):
            wanted = tensor.to_numpy().view(np.uint8)[gpu_ids]
            np.testing.assert_array_equal(host.view(np.uint8)[cpu_ids], wanted)


@pytest.fixture
def bench():
    return Bench()


# ---- what may stand in for a host address ----

STAND_INS = {
    "address": lambda host: host.ctypes.data,
    "int64 scalar": lambda host: np.int64(host.ctypes.data),
    "uint64 scalar": lambda host: np.uint64(host.ctypes.data),
    "array": lambda host: host,
    "more blocks than the bound": lambda host: host,
    "uint8 blocks": lambda host: host.view(np.uint8),
    "2-D": lambda host: host.reshape(HOST_BLOCKS, -1),
    "flat of the dtype": lambda host: host.reshape(-1),
    "flat of bytes": lambda host: host.reshape(-1).view(np.uint8),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_every_stand_in_means_the_same_memory(bench, name):
    pointers = [STAND_INS[name](host) for host in bench.host]
    bound = HOST_BLOCKS - 1 if name.startswith("more") else HOST_BLOCKS
    bench.call([0, 3], [4, 1], pointers=pointers, bound=bound)
    bench.assert_out([0, 3], [4, 1])
    for host in bench.host:
        assert not host.view(np.uint8)[[0, 2, 3, 5]].any()
        host[2] = host[4]
    bench.call([1], [2], pointers=pointers, bound=bound, mode=IN)
    for tensor in bench.tensors:
        found = tensor.to_numpy().view(np.uint8)
        np.testing.assert_array_equal(found[1], found[0])


def test_a_block_major_pool_is_given_as_padded_rows(bench):
    sizes = [tensor.nbytes // BLOCKS for tensor in bench.tensors]
    pool = bench.simulated.pinned_array((HOST_BLOCKS, sum(sizes)), np.uint8)
    pool[:] = 0xEE
    bench.call([2], [3], pointers=[pool[:, : sizes[0]], pool[:, sizes[0] :]])
    wanted = np.concatenate([tensor.to_numpy().view(np.uint8)[2].reshape(-1) for tensor in bench.tensors])
    np.testing.assert_array_equal(pool[3], wanted)
    assert (np.delete(pool, 3, 0) == 0xEE).all()


@pytest.mark.parametrize(
    ("stand_in", "error", "words"),
    [
        (lambda host: host[: HOST_BLOCKS - 1], ValueError, "shape .*expected 6 or more blocks of"),
        (lambda host: host.reshape(-1)[1:], ValueError, "bytes; expected 6 blocks of"),
        (lambda host: host.reshape(-1)[::2], ValueError, "contiguous bytes|strides"),
        (lambda host: host.view(np.int16), ValueError, "dtype int16; expected float16, or uint8"),
        (lambda host: host.view("V2"), ValueError, "dtype"),
        (lambda host: [1, 2], TypeError, r"\[1, 2\].*expected an integer"),
        (lambda host: float(host.ctypes.data), TypeError, "expected an integer"),
        (lambda host: None, TypeError, "expected an integer"),
        (lambda host: True, TypeError, "expected an integer"),
    ],
)
def test_stand_ins_that_are_refused(bench, stand_in, error, words):
    with pytest.raises(error, match=f"cpu layer 1.*{words}"):
        bench.call([0], [0], pointers=[bench.host[0], stand_in(bench.host[1])])
    assert not bench.host[0].view(np.uint8).any()


def test_a_device_array_in_place_of_host_memory(bench):
    with pytest.raises(TypeError, match="cpu layer 0 is SimulatedArray on device 0; expected pinned host memory"):
        bench.call([0], [0], pointers=bench.tensors)


# ---- host memory that is not pinned, or too short ----


def test_pageable_numpy_memory_is_refused(bench):
    pageable = np.zeros((HOST_BLOCKS, 2, 4, 8), np.float16)
    with pytest.raises(ValueError, match=f"{pageable.ctypes.data:#x} .*pageable.*expected pinned host memory"):
        bench.call([0], [0], pointers=[pageable, bench.host[1]])
    assert not pageable.any()


def test_an_address_that_is_not_pinned_is_refused(bench):
    pageable = np.zeros(1 << 16, np.uint8)
    with pytest.raises(ValueError, match=f"{pageable.ctypes.data:#x} .*pageable"):
        bench.call([0], [0], pointers=[pageable.ctypes.data, bench.host[1].ctypes.data])


def test_a_device_address_is_no_host_address(bench):
    with pytest.raises(ValueError, match="memory of device 0; expected pinned host memory"):
        bench.call([0], [0], pointers=[bench.tensors[0].address, bench.host[1]])


@pytest.mark.parametrize("missing", [1, 7])
def test_too_little_pinned_memory_is_refused_with_address_needed_and_found(bench, missing):
    needed = bench.host[0].nbytes
    short = bench.simulated.pinned_array(needed - missing, np.uint8)
    with pytest.raises(ValueError) as caught:
        bench.call([0], [0], pointers=[short.ctypes.data, bench.host[1]])
    for part in (f"{short.ctypes.data:#x}", f"needs {needed} bytes", f"found {needed - missing} pinned bytes"):
        assert part in str(caught.value)


def test_the_bound_counts_even_where_no_id_reaches_it(bench):
    with pytest.raises(ValueError, match="needs"):
        bench.call([0], [0], pointers=[host.ctypes.data for host in bench.host], bound=HOST_BLOCKS + 1)


@pytest.mark.parametrize("address", [0, -1, 2**63, 2**64 - 1])
def test_impossible_addresses(bench, address):
    with pytest.raises(ValueError, match=r"cpu layer 0 is at .*expected a host address with 6 blocks of 128 bytes"):
        bench.call([0], [0], pointers=[address, bench.host[1]])


# ---- shapes and dtypes ----


@pytest.mark.parametrize("shape", [(4, 8), (4, 1, 2, 2, 2)])
def test_tensors_of_other_dimensions_are_refused(bench, shape):
    tensor = bench.simulated.device_array(shape, np.float16)
    with pytest.raises(ValueError, match=r"gpu layer 0 has shape .*expected 3 or 4 dimensions"):
        bench.call([0], [0], tensors=[tensor], pointers=[bench.host[0]])


@pytest.mark.parametrize(
    "dtype", ["uint8", "float16", "int8", "uint16", "float32", "float64", "complex128", "bool", ">f4"]
)
def test_any_whole_byte_dtype_moves(dtype):
    bench = Bench(dtype=dtype)
    bench.call([0, 2], [1, 3])
    bench.assert_out([0, 2], [1, 3])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_the_types_of_ml_dtypes_move_to_ml_dtypes_host_arrays(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    bench = Bench(dtype=dtype)
    bench.call([0, 2], [1, 3])
    bench.assert_out([0, 2], [1, 3])
    with pytest.raises(ValueError, match=f"expected {name}, or uint8"):
        bench.call([0], [0], pointers=[host.view("i1" if dtype(0).itemsize == 1 else "i2") for host in bench.host])


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float4_e2m1fn", "float6_e2m3fn"])
def test_sub_byte_types_are_refused(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    bench = Bench()
    tensor = bench.simulated.device_array((4, 2, 4), dtype)
    with pytest.raises(TypeError, match=f"{name}.*narrower than a byte.*view the array as uint8"):
        bench.call([0], [0], tensors=[tensor], pointers=[bench.host[0]])


def test_object_and_structured_types_are_refused(bench):
    with pytest.raises(TypeError, match=r"cpu layer 0 .*Python objects"):
        bench.call([0], [0], pointers=[np.array([[None]] * HOST_BLOCKS), bench.host[1]])
    with pytest.raises(TypeError, match="structured"):
        bench.call([0], [0], pointers=[bench.host[0].view([("a", "u1"), ("b", "u1")]), bench.host[1]])


def test_values_are_never_interpreted(bench):
    """Every float16 there is: signalling NaNs and negative zeros among them."""
    every = np.arange(1 << 16, dtype=np.uint16).reshape(4, 4, 32, 128).view(np.float16)
    tensor = bench.simulated.device_array(every.shape, np.float16)
    host = bench.simulated.pinned_array(every.shape, np.float16)
    tensor.fill_from(every)
    bench.call(range(4), range(4), tensors=[tensor], pointers=[host], bound=4)
    np.testing.assert_array_equal(host.view(np.uint16), every.view(np.uint16))


# ---- modes, ranks, devices ----


@pytest.mark.parametrize("mode", [2, -1, 2**40])
def test_a_mode_other_than_0_or_1(bench, mode):
    with pytest.raises(ValueError, match=f"mode is {mode}; expected 0 .swap out, GPU to CPU. or 1"):
        bench.call([0], [0], mode=mode)


@pytest.mark.parametrize("integer", [np.int64, np.uint8])
def test_numpy_integers_will_do_for_scalars(bench, integer):
    swap_cache_all_layers(bench.tensors, bench.host, integer(HOST_BLOCKS), [1], [2], integer(0), integer(0))
    bench.assert_out([1], [2])


def test_the_tensors_device_must_be_the_rank():
    bench = Bench(devices=2, device=1)
    with pytest.raises(ValueError, match="tensors lie on device 1, rank is 0"):
        bench.call([0], [0], rank=0)
    bench.call([0], [0], rank=1)
    bench.assert_out([0], [0])


def test_tensors_of_two_devices():
    bench = Bench(devices=2)
    other = bench.simulated.device_array((BLOCKS, 2, 4), np.float16, device=1)
    with pytest.raises(
        ValueError, match="gpu layers lie on different devices or drivers: simulated device 0, simulated device 1"
    ):
        bench.call([0], [0], tensors=[bench.tensors[0], other])


def test_a_host_tensor_among_the_gpu_tensors(bench):
    with pytest.raises(TypeError, match="gpu layer 1 is ndarray in host memory; expected an array on the device"):
        bench.call([0], [0], tensors=[bench.tensors[0], bench.host[1]])


class CurrentDevice:
    """Whether the thread's current device is after a call what it was before."""

    def __init__(self, bench, device):
        self.bench, self.device = bench, device
        self.found = []

    def check(self, *arguments, **options):
        driver = self.bench.driver
        try:
            if self.device is None:
                self._call(arguments, options)
            else:
                with driver.activate(self.device):
                    self._call(arguments, options)
        except BaseException as error:  # a thread's error would be lost
            self.found.append(error)

    def _call(self, arguments, options):
        self.found.append(self.bench.driver.current_device())
        try:
            self.bench.call(*arguments, **options)
        except (ValueError, IndexError, KVSwapDriverError) as error:
            self.found.append(type(error))
        self.found.append(self.bench.driver.current_device())


@pytest.mark.parametrize("current", [None, 0, 1])
@pytest.mark.parametrize(
    ("ids", "options", "fail", "error"),
    [
        (([0], [0]), {}, "", None),
        (([9], [0]), {}, "", IndexError),
        (([0], [0]), {"mode": 3}, "", ValueError),
        (([0], [0]), {"transport": "copies"}, "cuMemcpyAsync", KVSwapDriverError),
        (([0], [0]), {}, "cuEventCreate", KVSwapDriverError),
        (([0], [0]), {}, "cuEventSynchronize", KVSwapDriverError),
    ],
)
def test_the_current_device_is_left_as_it_was_found(current, ids, options, fail, error):
    bench = Bench(devices=2, device=0)
    if fail:
        bench.driver.fail(fail)
    observed = CurrentDevice(bench, current)
    fresh = threading.Thread(target=observed.check, args=ids, kwargs=options)  # a fresh thread has no device
    fresh.start()
    fresh.join()
    assert observed.found == [current, *([error] if error else []), current]


# ---- order ----


@given(tape=st.binary(max_size=80), mode=st.sampled_from([OUT, IN]))
def test_it_comes_after_the_streams_of_all_tensors(tape, mode):
    bench = Bench(tape)
    streams = [bench.simulated.stream() for _ in bench.tensors]
    for tensor, host, stream in zip(bench.tensors, bench.host, streams, strict=True):
        tensor.stream = stream.handle
        filled = tensor.live() if mode == OUT else host
        stream.launch(lambda filled=filled: filled.view(np.uint8).fill(7))
    bench.call([0, 1], [3, 5], mode=mode)
    for tensor, host in zip(bench.tensors, bench.host, strict=True):
        assert (host.view(np.uint8)[[3, 5]] == 7).all()
        assert (tensor.live().view(np.uint8)[[0, 1]] == 7).all()


@given(tape=st.binary(max_size=80), mode=st.sampled_from([OUT, IN]))
def test_it_returns_after_the_last_byte_has_landed(tape, mode):
    bench = Bench(tape)
    wanted = [(tensor.to_numpy(), host.copy()) for tensor, host in zip(bench.tensors, bench.host, strict=True)]
    bench.call([0, 2], [3, 5], mode=mode)
    for tensor, host, (tensor_before, host_before) in zip(bench.tensors, bench.host, wanted, strict=True):
        out = host[[3, 5]], tensor_before[[0, 2]]
        found, source = out if mode == OUT else (tensor.live()[[0, 2]], host_before[[3, 5]])
        np.testing.assert_array_equal(found.view(np.uint8), source.view(np.uint8))


def test_it_waits_for_no_other_stream(bench):
    other = bench.simulated.stream()
    latch = other.latch()
    bench.call([0], [0])
    latch.open()


def test_it_leaves_no_events_and_no_memory_behind(bench):
    bench.call([0], [0])
    before = bench.driver.live_events(), bench.driver.live_allocations()
    for _ in range(20):
        bench.call([0, 1], [1, 2])
    assert (bench.driver.live_events(), bench.driver.live_allocations()) == before
