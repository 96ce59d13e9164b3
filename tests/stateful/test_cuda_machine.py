"""The GPU's machine without a GPU: its kernels compiled, and its host's side over the simulated driver, whose launches
do what the kernels do. What they do on a GPU the same files say there: test_races.py, and check --stateful."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from numba_kvswap.driver import SimulatedDriver, cuda_available
from numba_kvswap.testing.history import Content, Side, World, make_action, make_shape

HOPPER = (9, 0)


@pytest.fixture
def kernels(monkeypatch):
    pytest.importorskip("cuda.core")
    pytest.importorskip("numba.cuda")
    from numba.cuda import compiler, dispatcher

    if not cuda_available():
        for module in (compiler, dispatcher):
            monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=HOPPER))
    from numba_kvswap.testing.history import kernels

    return kernels


def test_a_latch_looks_at_its_word_again_and_again_and_not_for_ever(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "machine_code", ptx_of)
    text = kernels.compiled("hold", HOPPER)
    loop = text[text.index("_1:") :]
    assert "ld.acquire.sys.global.u64" in loop and "globaltimer" in loop and "nanosleep" in loop
    assert text.count("st.global.u64") == 1  # where it gives up


def test_a_judge_reads_every_byte_and_answers_once(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "machine_code", ptx_of)
    text = kernels.compiled("judge", HOPPER)
    assert "ld.global.u8" in text and "bar.red.or" in text and text.count("st.global.u64") == 1
    assert "st.global.u8" in kernels.compiled("write", HOPPER)


def ptx_of(entry, signature, compute_capability):
    from numba import cuda

    ptx, _ = cuda.compile(entry, signature, device=False, abi="numba", cc=compute_capability, output="ptx")
    return ptx


class Driver(SimulatedDriver):
    """Launches by name what the kernels of that name do."""

    def __init__(self):
        super().__init__(seed=3, ring_slot_bytes=1 << 10)
        self.held = []

    def compute_capability(self, _device):
        return HOPPER

    def load_kernel(self, _code, symbol):
        return symbol

    def launch_kernel(self, kernel, _blocks, _threads, stream, words):
        if kernel == "hold":
            self.held.append((words_at(words[0], 1), self.latch(stream)))
        else:
            self.launch(stream, lambda: self.run(kernel, *map(int, words)))

    @staticmethod
    def run(kernel, table_at, layers, block, version, answer_at=0):
        rows = words_at(table_at, 3 * layers).reshape(-1, 3).tolist() if layers else []
        expected = Content([size for _, _, size in rows]).of(version) if rows else []
        found = [bytes_at(address + block * stride, size) for address, stride, size in rows]
        if kernel == "write":
            for view, row in zip(found, expected, strict=True):
                view[:] = row
        else:
            same = all((view == row).all() for view, row in zip(found, expected, strict=True))
            words_at(answer_at, 1)[0] = 1 if same else 2

    def _verb(self, call):
        for word, latch in list(self.held):
            if word[0]:
                latch.open()
        return super()._verb(call)


def words_at(address, count):
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(address))


def bytes_at(address, count):
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


@pytest.fixture
def machine(kernels, monkeypatch):
    from numba_kvswap.testing.history import cuda_machine

    driver = Driver()
    monkeypatch.setattr(cuda_machine, "cuda_driver", lambda: driver)
    monkeypatch.setattr(kernels, "compiled", lambda name, _capability: (b"", name))
    return cuda_machine.CudaMachine()


@pytest.mark.parametrize("seed", range(3))
def test_worlds_one_after_the_other(machine, seed):
    from random import Random

    pick = Random(seed).randint
    for _ in range(2):
        world = World(make_shape(pick), machine)
        for _ in range(120):
            world.apply(make_action(pick))
        world.finish()
        assert world.blocks_compared


def side_of(machine):
    side = Side(machine.driver, "device", Content([5, 16]), 4)
    side.versions[:] = range(4)
    machine.fill(side)
    return side


def test_what_was_judged_to_differ_is_told_once(machine):
    side, stream = side_of(machine), machine.streams[4]
    machine.judge(stream, side, 2, 2)
    machine.judge(stream, side, 2, 3)
    machine.driver.stream_synchronize(stream)
    assert machine.found_wrong() == ["a kernel read device block 2: not version 3"]
    assert not machine.found_wrong(synchronized=True)


def test_what_was_never_judged_is_no_agreement(machine):
    side, stream = side_of(machine), machine.streams[4]
    latch = machine.hold(stream)
    machine.judge(stream, side, 2, 2)
    assert not machine.found_wrong()
    assert machine.found_wrong(synchronized=True) == ["1 kernels that judge blocks never ran"]
    latch.open()


def test_a_latch_that_gave_up_is_told_of(machine):
    machine._latches.words[1] = 1
    (found,) = machine.found_wrong()
    assert "closed for 5 s" in found
    assert not machine.found_wrong()
