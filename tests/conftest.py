"""What every room shares: the engines under test, plain arrays on their devices, Hypothesis profiles."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings

from numba_kvswap.driver import SimulatedDevice, cuda_driver, why_no_cuda
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory
from numba_kvswap.testing import engine_named
from numba_kvswap.testing.cases import LayerView
from numba_kvswap.testing.engines import CudaView
from numba_kvswap.transports.named import TRANSPORTS

# No deadline: a first example compiles. HYPOTHESIS_PROFILE=ci searches longer; "planted", whose failures nobody reads,
# neither makes them small nor looks for another first.
settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=400, print_blob=True)
settings.register_profile("planted", deadline=None, max_examples=100, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_CUDA_MARKS = [pytest.mark.cuda, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")]
_CUDA = pytest.param("cuda", marks=_CUDA_MARKS)
# By "auto" and by each transport. What searches long takes a share of the examples for each: see test_every_engine.py.
_PACKAGE_ENGINES = [
    name if device == "simulated" else pytest.param(name, marks=_CUDA_MARKS)
    for device in ("simulated", "cuda")
    for name in (device, *(f"{device}-{transport}" for transport in TRANSPORTS))
]


@pytest.fixture(scope="session", params=["reference", *_PACKAGE_ENGINES])
def engine(request):
    return engine_named(request.param)


@pytest.fixture(scope="session", params=_PACKAGE_ENGINES)
def package_engine(request):
    """The engines that are judged by the reference."""
    return engine_named(request.param)


@pytest.fixture(scope="session", params=TRANSPORTS)
def transport(request):
    """Each transport's name."""
    return request.param


@pytest.fixture(scope="session", params=["auto", *TRANSPORTS])
def transport_or_auto(request):
    return request.param


@pytest.fixture(scope="session")
def mooncake_trace():
    """The Mooncake project's conversation_trace.jsonl (FAST25-release/traces), where MOONCAKE_TRACE names it."""
    path = Path(os.environ.get("MOONCAKE_TRACE", "conversation_trace.jsonl"))
    if not path.exists():
        pytest.skip("MOONCAKE_TRACE names no conversation_trace.jsonl of the Mooncake project")
    return path


def pytest_terminal_summary(terminalreporter):
    """One line for the hundreds of skips that have one reason."""
    if why_no_cuda():
        terminalreporter.write_line(f"tests that need a GPU are skipped: {why_no_cuda()}")


class Pools:
    """Arrays in device memory and in pinned memory, written and read by synchronous copies."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A slot of the ring holds the largest blocks there are.
        self.simulated = SimulatedDevice(seed=1, ring_slot_bytes=8 << 20) if name == "simulated" else None
        self.driver = self.simulated.driver if self.simulated else cuda_driver()

    def device(self, shape, dtype="uint8"):
        """An uninitialised array, as this engine's users would hold it."""
        if self.simulated:
            return self.simulated.device_array(shape, dtype)
        kind = np.dtype(dtype)
        strides = tuple(prod(shape[i + 1 :]) * kind.itemsize for i in range(len(shape)))
        memory = DriverMemory(self.driver, 0, prod(shape) * kind.itemsize, "device")
        return CudaView(memory.address, LayerView(0, tuple(shape), strides, kind), memory)

    def pinned(self, shape, dtype="uint8"):
        if self.simulated:
            return self.simulated.pinned_array(shape, dtype)
        size = prod(shape) * np.dtype(dtype).itemsize
        memory = DriverMemory(self.driver, 0, size, "host")
        one_block = Layer(memory.address, 1, size, size, None, True, memory)
        return np.asarray(LayerBytes(one_block)).view(dtype).reshape(shape)

    def address(self, device_array) -> int:
        return device_array.address if self.simulated else device_array.__cuda_array_interface__["data"][0]

    def write(self, device_array, offset_bytes: int, values) -> None:
        """Put the bytes of `values` at an offset in a device array."""
        values = np.ascontiguousarray(values)
        with self.driver.activate(0):
            self.driver.copy_now(self.address(device_array) + offset_bytes, values.ctypes.data, values.nbytes)

    def read(self, device_array, offset_bytes: int, size_bytes: int):
        found = np.empty(size_bytes, np.uint8)
        with self.driver.activate(0):
            self.driver.copy_now(found.ctypes.data, self.address(device_array) + offset_bytes, size_bytes)
        return found


@pytest.fixture(params=["simulated", _CUDA])
def pools(request):
    return Pools(request.param)


@pytest.fixture
def make_pools():
    """`Pools` of an engine by name."""
    return Pools


def random_bytes(shape, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture
def random_block():
    """``random_block(shape, seed)``: the same random bytes for the same arguments."""
    return random_bytes
