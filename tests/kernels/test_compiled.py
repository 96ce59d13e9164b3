"""What the kernels become on a GPU, compiled here without one; and where they come from: disk, or the compiler."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_kvswap import KVSwapDriverError, Plan, disk_cache
from numba_kvswap.driver import CudaDriver, SimulatedDriver, cuda_available
from numba_kvswap.kernels import loaded
from numba_kvswap.kernels.body import PARAMETERS
from numba_kvswap.kernels.loaded import NoKernels, load_kernel

HOPPER = (9, 0)


@pytest.fixture
def compiled(monkeypatch):
    """The module, whose "machine code" is the PTX that would be linked."""
    pytest.importorskip("cuda.core")
    pytest.importorskip("numba.cuda")
    from numba.cuda import compiler, dispatcher

    if not cuda_available():
        for module in (compiler, dispatcher):
            monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=HOPPER))
    from numba_kvswap.kernels import compiled

    monkeypatch.setattr(compiled, "ObjectCode", SimpleNamespace(from_ptx=lambda ptx: ptx))
    monkeypatch.setattr(compiled, "LinkerOptions", lambda arch: arch)
    monkeypatch.setattr(
        compiled, "Linker", lambda ptx, options: SimpleNamespace(link=lambda kind: SimpleNamespace(code=ptx))
    )
    return compiled


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["warp_a_chunk", "thread_a_block"])
def test_it_has_one_entry_with_a_word_a_parameter(compiled, name):
    code, symbol = compiled.cubin(name, HOPPER)
    ptx = code.decode()
    assert f".entry {symbol}" in ptx
    assert len(re.findall(r"\.param \.u64 \S+_param_\d", ptx.split("{")[0])) == len(PARAMETERS)
    assert ".target sm_90" in ptx


def test_sixteen_bytes_move_at_once_by_global_addresses_and_four_loads_come_before_the_stores(compiled):
    ptx = compiled.cubin("warp_a_chunk", HOPPER)[0].decode()
    moves = re.findall(r"\b(ld|st)\.global\.v4\.(?:u32|b32)", ptx)
    assert moves.count("ld") == moves.count("st") == 5  # four at once, and one
    assert "".join("l" if move == "ld" else "s" for move in moves).count("llllssss") == 1
    assert not re.findall(r"\b(?:ld|st)\.(?:v4|u8|u16|u32|u64)\b", ptx)  # generic addresses would be slower


class Cuda(CudaDriver):
    """What load_kernel asks of the real driver."""

    def __init__(self):
        self.loaded = []

    def compute_capability(self, device):
        return HOPPER

    def load_kernel(self, code, symbol):
        self.loaded.append((code, symbol))
        return len(self.loaded)

    def __del__(self):
        pass


@pytest.fixture
def made(monkeypatch):
    """A compiler that says when it was asked, in place of the real one."""
    asked = []
    module = SimpleNamespace(
        cubin=lambda name, capability: asked.append(name) or (b"code\nof " + name.encode(), "symbol")
    )
    monkeypatch.setitem(sys.modules, "numba_kvswap.kernels.compiled", module)
    monkeypatch.setattr(loaded.importlib.metadata, "version", lambda name: "1.0")
    return asked


def test_a_kernel_is_compiled_once_and_then_comes_from_disk(made, cache):
    driver = Cuda()
    for _ in range(3):
        load_kernel(driver, 0, "warp_a_chunk")
    assert made == ["warp_a_chunk"]
    assert driver.loaded == [(b"code\nof warp_a_chunk", "symbol")] * 3
    load_kernel(driver, 0, "thread_a_block")  # another file
    assert made == ["warp_a_chunk", "thread_a_block"]


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_made_anew(made, cache, damage):
    driver = Cuda()
    load_kernel(driver, 0, "warp_a_chunk")
    (file,) = cache.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1] if damage is None else damage)
    load_kernel(driver, 0, "warp_a_chunk")
    assert len(made) == 2
    assert file.read_bytes() == content
    assert driver.loaded[1] == driver.loaded[0]


def test_other_machines_and_other_compilers_have_files_of_their_own(made, cache, monkeypatch):
    driver = Cuda()
    load_kernel(driver, 0, "warp_a_chunk")
    monkeypatch.setattr(Cuda, "compute_capability", lambda self, device: (8, 0))
    load_kernel(driver, 0, "warp_a_chunk")
    monkeypatch.setattr(loaded.importlib.metadata, "version", lambda name: "2.0")
    load_kernel(driver, 0, "warp_a_chunk")
    assert len(made) == len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("source", ["body.py", "compiled.py", "words.py"])
def test_what_another_source_was_compiled_to_is_not_loaded(made, monkeypatch, source):
    load_kernel(Cuda(), 0, "warp_a_chunk")
    really = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: really(path) + b"#" * (path.name == source))
    load_kernel(Cuda(), 0, "warp_a_chunk")
    assert len(made) == 2


def test_a_missing_compiler_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba_kvswap.kernels.compiled", None)  # importing it fails
    monkeypatch.setattr(loaded.importlib.metadata, "version", lambda name: "1.0")
    with pytest.raises(NoKernels, match=r"kernels cannot be compiled \(ModuleNotFoundError.*cu13"):
        load_kernel(Cuda(), 0, "warp_a_chunk")


def test_a_compiler_that_fails_is_said_in_a_line(monkeypatch):
    def fail(name, capability):
        raise RuntimeError("no room\nsecond line")

    monkeypatch.setitem(sys.modules, "numba_kvswap.kernels.compiled", SimpleNamespace(cubin=fail))
    with pytest.raises(NoKernels, match=r"\(RuntimeError: no room\)"):
        load_kernel(Cuda(), 0, "warp_a_chunk")


def test_what_a_driver_fails_to_load_once_it_is_asked_for_again(monkeypatch):
    """Unlike a compiler, memory that is missing may be there a moment later."""
    from numba_kvswap import DeviceCache, HostCache, Swapper, device_tools

    really, failing = device_tools.load_kernel, [True]

    def load(driver, device, name):
        if failing:
            raise KVSwapDriverError("cuModuleLoadData", "CUDA_ERROR_OUT_OF_MEMORY")
        return really(driver, device, name)

    monkeypatch.setattr(device_tools, "load_kernel", load)
    device = DeviceCache.allocate(SimulatedDriver(schedule=b""), blocks=4, block_bytes=[8])
    with HostCache.allocate(device, blocks=4) as host:
        assert "cuModuleLoadData" in Swapper(device, host).explain(Plan([0], [0])).why_not["kernel"]
        with pytest.raises(KVSwapDriverError, match="cuModuleLoadData"):
            Swapper(device, host, transport="kernel")
        failing.clear()
        Swapper(device, host, transport="kernel").swap_out([0], [1]).wait()
        assert "kernel" not in Swapper(device, host).explain(Plan([0], [0])).why_not


def test_without_kernels_their_transports_say_why_and_auto_goes_on(monkeypatch):
    from numba_kvswap import DeviceCache, HostCache, Swapper, device_tools

    def none(driver, device, name):
        raise NoKernels("kernels cannot be compiled (planted); install the extra cu13")

    monkeypatch.setattr(device_tools, "load_kernel", none)
    device = DeviceCache.allocate(SimulatedDriver(schedule=b""), blocks=4, block_bytes=[8])
    host = HostCache.allocate(device, blocks=4)
    for name in ("kernel", "ring"):
        with pytest.raises(ValueError, match=rf"'{name}'.*planted.*cu13"):
            Swapper(device, host, transport=name)
    swapper = Swapper(device, host)
    assert "planted" in swapper.explain(Plan([0], [0])).why_not["ring"]
    swapper.swap_out([0], [1]).wait()


def test_a_kernel_on_disk_is_loaded_without_importing_the_compiler(made, cache):
    """In a process of its own: this one has imported it long since."""
    load_kernel(Cuda(), 0, "warp_a_chunk")
    text = f"""
import sys
sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
from numba_kvswap.kernels import loaded
loaded.importlib.metadata.version = lambda name: "1.0"
from test_compiled import Cuda
driver = Cuda()
before = set(sys.modules)
loaded.load_kernel(driver, 0, "warp_a_chunk")
assert driver.loaded == [(b"code\\nof warp_a_chunk", "symbol")]
assert not [name for name in set(sys.modules) - before if name.startswith(("numba", "cuda"))]
assert "numba.cuda" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_simulated_device_runs_the_same_body():
    driver = SimulatedDriver(schedule=b"")
    assert load_kernel(driver, 0, "warp_a_chunk") != load_kernel(driver, 0, "thread_a_block")
    with pytest.raises(KeyError):
        load_kernel(driver, 0, "no_such_kernel")


def test_a_file_is_kept_under_a_key_of_its_sources(made, cache):
    load_kernel(Cuda(), 0, "warp_a_chunk")
    (file,) = cache.iterdir()
    assert re.fullmatch(r"[0-9a-f]{32}\.cubin", file.name)
    assert disk_cache.load(file.name) == b"symbol\ncode\nof warp_a_chunk"
