"""The door: what an array, a dtype name and a stream turn into."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from numba_kvswap import SimulatedDevice
from numba_kvswap.ids import check_integer
from numba_kvswap.interop import array_facts, producer_stream, stream_handle
from numba_kvswap.layers import dtype_fault, layer_of, name_fault

# ---- dtypes ----


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16", "?", "i8", "V3", "S5", "U2", "M8[ns]"])
def test_whole_byte_dtypes_are_fine(dtype):
    assert dtype_fault(np.dtype(dtype)) == ""


@pytest.mark.parametrize(
    ("dtype", "fault"),
    [
        (object, "holds Python objects"),
        ([("a", "u1")], "structured"),
        ([("a", object)], "holds Python objects"),
        (("u1", (2,)), "structured"),
    ],
)
def test_other_dtypes_are_not(dtype, fault):
    assert fault in dtype_fault(np.dtype(dtype))


@pytest.mark.parametrize(
    "name", ["int4", "uint4", "int2", "uint1", "float4_e2m1fn", "float6_e3m2fn", "quint4x2", "bits2x4"]
)
def test_names_narrower_than_a_byte(name):
    assert "narrower than a byte" in name_fault(name)


@pytest.mark.parametrize(
    "name",
    ["int8", "uint16", "int64", "float8_e4m3fn", "float8_e8m0fnu", "bfloat16", "float4_e2m1fn_x2", "bool", "bits8"],
)
def test_names_of_whole_bytes(name):
    assert name_fault(name) == ""


def test_every_type_of_ml_dtypes_is_judged_by_its_width():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    types = [getattr(ml_dtypes, name) for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)]
    dtypes = [np.dtype(each) for each in types if issubclass(each, np.generic)]
    assert len(dtypes) > 10
    for dtype in dtypes:
        info = ml_dtypes.iinfo if "int" in dtype.name else ml_dtypes.finfo
        assert bool(dtype_fault(dtype)) == (info(dtype).bits < 8), dtype


def test_dtype_names_are_those_that_frameworks_share():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, name in (
        (np.float16, "float16"),
        (np.uint8, "uint8"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"),
    ):
        assert array_facts(np.zeros((2, 2), dtype), "it").dtype == name
        assert array_facts(SimulatedDevice().device_array((2, 2), dtype), "it").dtype == name


def test_another_byte_order_is_another_dtype():
    names = {array_facts(np.zeros(2, dtype), "it").dtype for dtype in ("<f4", ">f4")}
    assert len(names) == 2


# ---- arrays ----


def test_facts_of_a_numpy_view():
    array = np.zeros((4, 3, 8), np.float32)[1:, :, :]
    array.flags.writeable = False
    facts = array_facts(array, "it")
    assert (facts.address, facts.shape, facts.strides_bytes) == (array.ctypes.data, (3, 3, 8), (96, 32, 4))
    assert (facts.item_bytes, facts.device, facts.writable, facts.owner is array) == (4, None, False, True)


def test_facts_of_a_simulated_view():
    simulated = SimulatedDevice(devices=2)
    array = simulated.device_array((4, 8), np.float16, device=1).view(16, (3, 2), np.float16, (16, 2))
    facts = array_facts(array, "it")
    assert (facts.shape, facts.strides_bytes, facts.device, facts.owner is array) == ((3, 2), (16, 2), 1, True)


def test_cpu_torch_tensors_are_host_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((4, 3, 8), dtype=torch.bfloat16)[1:].requires_grad_()
    facts = array_facts(tensor, "it")
    assert (facts.address, facts.shape, facts.strides_bytes) == (tensor.data_ptr(), (3, 3, 8), (48, 16, 2))
    assert (facts.dtype, facts.device, facts.dtype_fault) == ("bfloat16", None, "")
    with pytest.raises(TypeError, match="strided"):
        array_facts(torch.zeros((2, 2)).to_sparse(), "it")
    with pytest.raises(TypeError, match="meta"):
        array_facts(torch.zeros((2, 2), device="meta"), "it")


@pytest.mark.parametrize("other", [[1, 2], 7, None, "array", memoryview(b"12"), (ctypes.c_ubyte * 4)()])
def test_what_is_no_array_is_named(other):
    with pytest.raises(TypeError, match=f"the layer is {type(other).__name__}; expected a torch, CuPy"):
        array_facts(other, "the layer")


def test_an_axis_of_length_one_may_have_any_stride():
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint8), (4, 1, 8), (8, 3, 1))
    assert layer_of(array_facts(array, "it"), "it").block_bytes == 8


def test_a_layer_of_one_block_may_have_any_stride():
    array = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint8), (1, 8), (0, 1))
    layer = layer_of(array_facts(array, "it"), "it")
    assert (layer.blocks, layer.block_bytes, layer.extent_bytes) == (1, 8, 8)


@pytest.mark.parametrize("bad", [True, np.bool_(0), 1.0, None, "1", np.float64(2), [1]])
def test_check_integer_names_what_came(bad):
    with pytest.raises(TypeError, match=r"rank is .*expected an integer"):
        check_integer(bad, "rank")


# ---- streams ----


class ByProtocol:
    def __cuda_stream__(self):
        return (0, 0x77)


class ByProtocolAttribute:
    __cuda_stream__ = (0, 0x78)


class LikeTorch:
    cuda_stream = 0x79


class LikeCuPy:
    ptr = 0x7A


class LikeNumba:
    handle = ctypes.c_void_p(0x7B)


class NumbasDefault:
    handle = ctypes.c_void_p(0)


class LikeNumbaOfBindings:
    class handle:
        value = 0x7C


class PlainHandle:
    handle = 0x7D


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 0),
        (2, 2),
        (np.uint64(5), 5),
        (ByProtocol(), 0x77),
        (ByProtocolAttribute(), 0x78),
        (LikeTorch(), 0x79),
        (LikeCuPy(), 0x7A),
        (LikeNumba(), 0x7B),
        (NumbasDefault(), 0),
        (LikeNumbaOfBindings(), 0x7C),
        (PlainHandle(), 0x7D),
    ],
)
def test_stream_handles(stream, handle):
    found = stream_handle(stream, SimulatedDevice().driver)
    assert found == handle
    assert type(found) is int


def test_a_simulated_stream_has_its_handle_on_its_own_driver_only():
    stream = SimulatedDevice().stream()
    assert stream_handle(stream, stream.driver) == stream.handle
    with pytest.raises(ValueError, match="a stream of another driver"):
        stream_handle(stream, SimulatedDevice().driver)


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_handles_that_no_driver_gives(bad):
    with pytest.raises(ValueError, match=r"stream is .*expected a handle of 0 or more"):
        stream_handle(bad, SimulatedDevice().driver)


@pytest.mark.parametrize("bad", [True, "0", 1.0, object(), [0]])
def test_what_is_no_stream_is_named(bad):
    with pytest.raises(TypeError, match=r"stream is .*expected None, an integer handle"):
        stream_handle(bad, SimulatedDevice().driver)


class Exported:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def test_the_stream_on_which_an_array_is_made():
    array = SimulatedDevice().device_array(4, np.uint8)
    array.stream = 0x51
    assert producer_stream(array) == 0x51
    assert producer_stream(Exported(stream=7)) == 7
    assert producer_stream(Exported(stream=None)) == producer_stream(Exported()) == 0
