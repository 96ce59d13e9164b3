"""Pools of the process's own memory: how they are made, cut and given back, and what is said where they cannot be."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kvswap import (
    DeviceCache,
    HostCache,
    KVSwapDriverError,
    Plan,
    SimulatedDevice,
    Swapper,
    host_memory,
    host_room,
)
from numba_kvswap.driver import SimulatedDriver, cuda_available, cuda_driver, why_no_cuda
from numba_kvswap.host_memory import PinnedPool, pinned_memory
from numba_kvswap.layers import Layer, check_pinned_memory
from numba_kvswap.memory import DriverMemory

MIB, BLOCK = 1 << 20, host_memory.SYSTEM_BLOCK_BYTES
needs_gpu = pytest.mark.skipif(not cuda_available(), reason=why_no_cuda())


@pytest.fixture
def simulated():
    return SimulatedDevice(schedule=b"")


@pytest.fixture
def driver(simulated):
    return simulated.driver


@pytest.fixture
def tiny(monkeypatch):
    """Every pool is the process's own memory, in pieces of at most 3 system blocks, touched 2 at a time."""
    monkeypatch.setattr(host_memory, "POOL_BYTES_MIN", 1)
    monkeypatch.setattr(host_memory, "PIECE_BYTES_MAX", 3 * BLOCK)
    monkeypatch.setattr(host_memory, "SLICE_BYTES", 2 * BLOCK)


def mapped(address: int) -> bool:
    """Whether `address` lies in a mapping of this process."""
    spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def resident_bytes(address: int, size_bytes: int) -> int:
    """Bytes in memory of the mapping that starts at or below `address`, by mincore."""
    libc, pages = ctypes.CDLL(None), -(-size_bytes // BLOCK)
    found = (ctypes.c_uint8 * pages)()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), found) == 0
    return sum(flag & 1 for flag in found) * BLOCK


def bytes_of(memory) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * memory.size_bytes).from_address(memory.address))


@contextlib.contextmanager
def nothing_left_behind(driver, monkeypatch):
    """Around pools that come and go: no allocation, no thread and no mapping is left."""
    mappings, make = [], host_memory._mapped

    def recorded(size_bytes):
        mapping = make(size_bytes)
        mappings.append((host_memory._address_of(mapping), weakref.ref(mapping)))
        return mapping

    allocations, threads = driver.live_allocations(), threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(host_memory, "_mapped", recorded)
        yield mappings
    if driver.live_allocations() != allocations:
        gc.collect()  # slow, so only where an error's traceback holds on to something
    assert driver.live_allocations() == allocations
    assert threading.active_count() == threads
    for _, mapping in mappings:
        assert mapping() is None or mapping().closed


# ---- how a pool is made ----


@pytest.mark.parametrize("size_bytes", [64 * MIB, 64 * MIB + 1, 150 * MIB - 4097])
@pytest.mark.parametrize("populate", [host_memory._MADV_POPULATE_WRITE, 9999])
def test_a_pool_is_aligned_touched_zero_and_registered_once(driver, monkeypatch, size_bytes, populate):
    monkeypatch.setattr(host_memory, "_MADV_POPULATE_WRITE", populate)  # 9999: no kernel knows it
    memory = pinned_memory(driver, 0, size_bytes, 1)
    assert isinstance(memory, PinnedPool)
    assert memory.address % (2 * MIB) == 0
    assert memory.pieces == (memory.address,)
    info = driver.pointer_info(memory.address + size_bytes - 1)
    assert (info.kind, info.start, info.bytes) == ("host", memory.address, size_bytes)
    assert resident_bytes(memory.address, size_bytes) == -(-size_bytes // BLOCK) * BLOCK
    assert memory.populated <= (populate != 9999)
    assert not bytes_of(memory).any()
    assert memory.touch_seconds > 0 and memory.register_seconds > 0
    address = memory.address
    memory.close()
    assert not mapped(address)


@pytest.mark.parametrize("size_bytes", [0, 1, 64 * MIB - 1])
def test_small_pools_are_the_drivers(driver, size_bytes):
    memory = pinned_memory(driver, 0, size_bytes, 1)
    assert isinstance(memory, DriverMemory)
    assert driver.calls["cuMemHostAlloc"] == 1 and driver.calls["cuMemHostRegister"] == 0
    assert memory.pieces == ()


def test_a_kernel_without_huge_pages_will_do(driver, monkeypatch, tiny):
    class Plain(mmap.mmap):
        def madvise(self, option, *span):
            if option == mmap.MADV_HUGEPAGE:
                raise OSError(22, "Invalid argument")
            super().madvise(option, *span)

    monkeypatch.setattr(host_memory.mmap, "mmap", Plain)
    memory = pinned_memory(driver, 0, 5 * BLOCK, 1)
    assert not memory.huge_pages
    memory.close()


def test_a_forked_child_gets_none_of_it(driver, tiny):
    memory = pinned_memory(driver, 0, 3 * BLOCK, 1)
    child = os.fork()
    if not child:
        os._exit(mapped(memory.address))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    memory.close()


@given(st.integers(1, 40 * BLOCK), st.integers(1, 5 * BLOCK))
@settings(max_examples=60)
def test_pieces_follow_each_other_and_end_where_no_copy_crosses(size_bytes, unit_bytes):
    driver = SimulatedDriver(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_memory, "POOL_BYTES_MIN", 1)
        patched.setattr(host_memory, "PIECE_BYTES_MAX", 7 * BLOCK)
        memory = pinned_memory(driver, 0, size_bytes, unit_bytes)
    if isinstance(memory, DriverMemory):
        assert math.lcm(unit_bytes, BLOCK) > 7 * BLOCK and size_bytes > 7 * BLOCK
        return
    covered = memory.address
    for start in memory.pieces:
        info = driver.pointer_info(start)
        assert info.start == start == covered
        assert info.bytes <= 7 * BLOCK
        assert start % BLOCK == 0 and (start - memory.address) % unit_bytes == 0
        covered = info.end
    assert covered == memory.address + size_bytes
    memory.close()
    assert driver.live_allocations() == 0


# ---- what a pool is for ----


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
@pytest.mark.parametrize(
    ("blocks", "sizes"), [(11, (BLOCK // 4, BLOCK // 4)), (3, (BLOCK, BLOCK, BLOCK)), (9, (512, 1024))]
)
def test_swaps_both_ways_through_a_pool_of_several_pieces(simulated, tiny, random_block, layout, blocks, sizes):
    """Block by block: runs of the transport do not look at `CachePair.runs` yet."""
    arrays = [simulated.device_array((blocks, size), np.uint8) for size in sizes]
    for seed, each in enumerate(arrays):
        each.fill_from(random_block(each.shape, seed))
    wanted = [each.to_numpy() for each in arrays]
    with HostCache.allocate(DeviceCache(arrays), blocks=blocks, layout=layout) as host:
        swapper = Swapper(arrays, host)
        for block in range(blocks):
            swapper.swap_out([block], [blocks - 1 - block]).wait()
        for index, each in enumerate(wanted):
            np.testing.assert_array_equal(host.layer(index)[::-1], each)
        for each in arrays:
            each.fill_from(np.zeros_like(each.to_numpy()))
        for block in range(blocks):
            swapper.swap_in([block], [blocks - 1 - block]).wait()
    for each, before in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(each.to_numpy(), before)


def test_a_pool_of_one_piece_takes_runs_as_ever(simulated, monkeypatch, random_block):
    monkeypatch.setattr(host_memory, "POOL_BYTES_MIN", 1)
    array = simulated.device_array((8, 1024), np.uint8)
    array.fill_from(random_block((8, 1024), 1))
    wanted = array.to_numpy()
    with HostCache.allocate(DeviceCache([array]), blocks=8) as host:
        swapper = Swapper([array], host)
        assert isinstance(host._memory, PinnedPool) and not swapper.pair.host_cuts.size
        transfer = swapper.swap_out(range(8), range(8))
        assert transfer.runs == 1
        transfer.wait()
        array.fill_from(np.zeros((8, 1024), np.uint8))
        swapper.swap_in(range(8), range(8)).wait()
    np.testing.assert_array_equal(array.to_numpy(), wanted)


@pytest.mark.parametrize("layout", ["block_major", "layer_major"])
@given(
    runs=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(1, 20)), max_size=6),
    direction=st.sampled_from(["out", "in"]),
    sizes=st.sampled_from([(1024,), (1024, 1024), (512, 1024), (BLOCK,), (BLOCK, 2 * BLOCK), (3, 5)]),
)
@settings(max_examples=60)
def test_runs_are_cut_between_registrations_and_nowhere_else(layout, runs, direction, sizes):
    simulated = SimulatedDevice(0)
    device = DeviceCache([simulated.device_array((20, size), np.uint8) for size in sizes])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_memory, "POOL_BYTES_MIN", 1)
        patched.setattr(host_memory, "PIECE_BYTES_MAX", 3 * BLOCK)
        host = HostCache.allocate(device, blocks=20, layout=layout)
    ids = [(a + i, b + i) for a, b, length in runs for i in range(length) if max(a, b) + i < 20]
    pair, plan = Swapper(device, host).pair, Plan([a for a, _ in ids], [b for _, b in ids])
    source, target, blocks = pair.runs(plan, direction)
    assert source.dtype == target.dtype == blocks.dtype == np.int64
    starts = target if direction == "out" else source
    found, expected = [], []
    for run in zip(source.tolist(), target.tolist(), blocks.tolist(), strict=True):
        found += [(run[0] + i, run[1] + i) for i in range(run[2])]
    for run in zip(plan.run_source.tolist(), plan.run_target.tolist(), plan.run_blocks.tolist(), strict=True):
        expected += [(run[0] + i, run[1] + i) for i in range(run[2])]
    assert found == expected and (blocks > 0).all()
    for start, count in zip(starts.tolist(), blocks.tolist(), strict=True):
        for layer in host.layers:
            first = simulated.driver.pointer_info(layer.address + start * layer.block_stride_bytes)
            end = layer.address + (start + count - 1) * layer.block_stride_bytes + layer.block_bytes
            assert end <= first.end
    cuts = set(pair.host_cuts.tolist())
    inner = zip(starts[1:].tolist(), (starts[:-1] + blocks[:-1]).tolist(), strict=True)
    assert blocks.size - plan.runs <= sum(start == end and start in cuts for start, end in inner)


def test_layers_in_other_pieces_are_no_group(simulated, tiny):
    device = DeviceCache([simulated.device_array((3, BLOCK), np.uint8) for _ in range(4)])
    with HostCache.allocate(device, blocks=3, layout="layer_major") as host:
        assert len(host.pieces) == 4  # a layer each
        assert Swapper(device, host).pair.groups.layers.tolist() == [1, 1, 1, 1]
    with HostCache.allocate(DeviceCache(device_row(simulated)), blocks=6) as host:
        pair = Swapper(device_row(simulated), host).pair
        assert pair.groups.layers.tolist() == [4]
        assert pair.host_cuts.tolist() == [3]


def device_row(simulated):
    return simulated.device_array((4, 6, BLOCK // 4), np.uint8)


def test_only_a_pools_own_pieces_go_on_where_the_one_before_ends(simulated, tiny):
    """Two allocations side by side are not one: a layer that runs over the first is a mistake in its size."""
    memory = pinned_memory(simulated.driver, 0, 6 * BLOCK, 1)
    layer = Layer(memory.address, 6, BLOCK, BLOCK, None, owner=memory)
    assert check_pinned_memory([layer], simulated.driver, memory.pieces) == (
        ((memory.address, 0), (memory.address + 3 * BLOCK, 3)),
    )
    with pytest.raises(ValueError, match=f"needs {6 * BLOCK} bytes for 6 blocks, found {3 * BLOCK} pinned"):
        check_pinned_memory([layer], simulated.driver)
    longer = Layer(memory.address, 7, BLOCK, BLOCK, None, owner=memory)
    with pytest.raises(ValueError, match=f"needs {7 * BLOCK} bytes for 7 blocks, found {6 * BLOCK} pinned"):
        check_pinned_memory([longer], simulated.driver, memory.pieces)


def test_close_refuses_living_views_and_waits_for_transfers(simulated, tiny):
    device = DeviceCache([simulated.device_array((4, 64), np.uint8)])
    host = HostCache.allocate(device, blocks=4)
    transfer = Swapper(device, host).swap_out([0], [3], simulated.stream())
    view = host.layer(0)
    with pytest.raises(BufferError):
        host.close()
    del view
    assert not transfer.done()
    host.close()
    assert transfer.done() and simulated.driver.calls["cuMemHostUnregister"] == 1
    simulated.synchronize()


def test_a_pool_dropped_with_a_view_alive_stays_mapped_as_long(simulated, tiny):
    device = DeviceCache([simulated.device_array((4, 64), np.uint8)])
    before = simulated.driver.live_allocations()
    host = HostCache.allocate(device, blocks=4)
    view, address = host.layer(0), host.layers[0].address
    del host
    gc.collect()
    view[:] = 7
    assert simulated.driver.live_allocations() == before + 1 and mapped(address)
    del view
    gc.collect()
    assert simulated.driver.live_allocations() == before and not mapped(address)


# ---- failures ----


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_piece_that_is_refused_leaves_nothing_behind(driver, monkeypatch, tiny, at):
    with nothing_left_behind(driver, monkeypatch) as mappings:
        driver.fail("cuMemHostRegister", at=at, status=2)
        with pytest.raises(KVSwapDriverError) as caught:
            pinned_memory(driver, 0, 14 * BLOCK, 1)
        assert (caught.value.call, caught.value.result_name) == ("cuMemHostRegister", "CUDA_ERROR_OUT_OF_MEMORY")
        assert "ulimit -l" in str(caught.value) and "ask for less" in str(caught.value)
        assert driver.calls["cuMemHostUnregister"] == at
        assert not mapped(mappings[0][0])
        memory = pinned_memory(driver, 0, 14 * BLOCK, 1)
        assert len(memory.pieces) == 5
        memory.close()


@settings(max_examples=100)
@given(
    size_blocks=st.integers(1, 14),
    faults=st.lists(
        st.tuples(
            st.sampled_from(["cuMemHostRegister", "cuMemHostUnregister", "cuCtxSetCurrent"]),
            st.integers(0, 6),
            st.integers(1, 3),
        ),
        max_size=4,
    ),
    drop=st.booleans(),
)
def test_whatever_call_fails_nothing_is_left_and_the_next_pool_is_whole(size_blocks, faults, drop):
    driver = SimulatedDriver(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_memory, "POOL_BYTES_MIN", 1)
        patched.setattr(host_memory, "PIECE_BYTES_MAX", 3 * BLOCK)
        with nothing_left_behind(driver, patched):
            for call, at, times in faults:
                driver.fail(call, at=at, times=times)
            with contextlib.suppress(KVSwapDriverError):
                memory = pinned_memory(driver, 0, size_blocks * BLOCK - 1, 1)
                bytes_of(memory)[:] = 1
                for _ in range(0 if drop else 40):
                    with contextlib.suppress(KVSwapDriverError):
                        memory.close()
                assert drop or memory.address == 0
                del memory
            driver.fail_no_more()
            memory = pinned_memory(driver, 0, 14 * BLOCK, 1)
            assert sum(driver.pointer_info(start).bytes for start in memory.pieces) == 14 * BLOCK
            memory.close()


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_close_that_fails_goes_on_where_it_stopped(driver, tiny, at):
    memory = pinned_memory(driver, 0, 14 * BLOCK, 1)
    address = memory.address
    driver.fail("cuMemHostUnregister", at=at)
    with pytest.raises(KVSwapDriverError, match="cuMemHostUnregister"):
        memory.close()
    assert memory.address == address and mapped(address)
    assert driver.live_allocations() == 5 - at
    memory.close()
    memory.close()
    assert memory.address == 0 and not mapped(address)
    assert driver.live_allocations() == 0
    assert driver.calls["cuMemHostUnregister"] == 6


def test_a_close_interrupted_behind_the_drivers_work_goes_on(driver, monkeypatch, tiny):
    memory = pinned_memory(driver, 0, 9 * BLOCK, 1)
    unregister = driver.host_unregister

    def interrupted(address):
        unregister(address)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(driver, "host_unregister", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memory.close()
    memory.close()
    assert (memory.address, driver.live_allocations()) == (0, 0)


def test_a_registration_interrupted_behind_the_drivers_work_is_undone(driver, monkeypatch, tiny):
    register = driver.host_register

    def interrupted(address, size_bytes):
        register(address, size_bytes)
        raise KeyboardInterrupt

    with nothing_left_behind(driver, monkeypatch), monkeypatch.context() as patched:
        patched.setattr(driver, "host_register", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pinned_memory(driver, 0, 9 * BLOCK, 1)
        assert driver.live_allocations() == 0


def test_memory_is_unmapped_after_its_last_piece_is_unregistered(driver, monkeypatch, tiny):
    memory = pinned_memory(driver, 0, 9 * BLOCK, 1)
    address, seen, unregister = memory.address, [], driver.host_unregister
    monkeypatch.setattr(driver, "host_unregister", lambda start: (seen.append(mapped(address)), unregister(start)))
    memory.close()
    assert seen == [True] * 3


def test_a_pool_dropped_is_unregistered_at_the_next_call_and_unmapped_after(driver, tiny):
    memory = pinned_memory(driver, 0, 9 * BLOCK, 1)
    address = memory.address
    memory.itself = memory  # for the garbage collector
    del memory
    gc.collect()
    assert mapped(address)
    assert driver.live_allocations() == 0
    assert not mapped(address)


def test_finalizers_in_the_midst_of_making_and_closing(driver, tiny):
    class Cycle:
        def __init__(self):
            self.itself = self
            self.memory = pinned_memory(driver, 0, 7 * BLOCK, 1)

        def __del__(self):
            self.memory.close()

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(20):
            Cycle()
            pinned_memory(driver, 0, 4 * BLOCK, 1).close()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert driver.live_allocations() == 0


def test_a_slice_that_the_kernel_has_no_memory_for(driver, monkeypatch, tiny):
    def refused(_start, _size_bytes, _advice):
        ctypes.set_errno(12)
        return -1

    with nothing_left_behind(driver, monkeypatch), monkeypatch.context() as patched:
        patched.setattr(host_memory._LIBC, "madvise", refused)
        with pytest.raises(MemoryError, match="system refuses: Cannot allocate memory; ask for less"):
            pinned_memory(driver, 0, 9 * BLOCK, 1)
        assert driver.calls["cuMemHostRegister"] == 0


# ---- memory that is not there ----


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A made /proc and /sys: ``machine(path, text)`` writes a file."""
    monkeypatch.setattr(host_room, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_room, "SYS", tmp_path / "sys")

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_the_machine_itself_has_room_for_a_little_and_none_for_everything():
    host_room.check_room(1)
    with pytest.raises(MemoryError):
        host_room.check_room(1 << 60)


def test_too_little_available_is_said_before_anything_is_touched(simulated, machine, monkeypatch):
    machine("proc/meminfo", "MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable: 102400 kB\nHugePages_Total: 0\n")
    device = DeviceCache([simulated.device_array((1, MIB), np.uint8)])
    with pytest.raises(
        MemoryError, match=r"asked for 101.0 MiB .* found 100.0 MiB left by MemAvailable .* fewer blocks"
    ):
        HostCache.allocate(device, blocks=101)
    assert simulated.driver.calls["cuMemHostRegister"] == 0
    HostCache.allocate(device, blocks=100).close()


def test_a_pool_by_itself_asks_for_room_too(simulated, machine):
    machine("proc/meminfo", "MemAvailable: 102400 kB\n")
    with pytest.raises(MemoryError, match=r"found 100\.0 MiB left"):
        PinnedPool(simulated.driver, 0, 101 * MIB, MIB)


def test_what_the_system_does_not_map_is_a_memory_error(simulated, machine):
    device = DeviceCache([simulated.device_array((1, MIB), np.uint8)])
    with pytest.raises(MemoryError, match=r"asked for .* which the system refuses"):
        HostCache.allocate(device, blocks=1 << 28)


_FILES = {
    "v2": ("0::{path}\n", "sys/fs/cgroup", "memory.max", "memory.current", "active_file {}\ninactive_file {}\n"),
    "v1": (
        "9:name=systemd:/x\n4:cpu,memory:{path}\n",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_active_file {}\ntotal_inactive_file {}\n",
    ),
}


@pytest.mark.parametrize("version", _FILES)
@pytest.mark.parametrize(
    ("path", "folder"),
    [("/pod/me", "/pod/me"), ("/pod/me", "/pod"), ("/pod/me", ""), ("/", ""), ("/of/the/host", "")],
    ids=["own", "parent", "root", "root alone", "a container's"],
)
def test_the_limit_of_any_cgroup_above_counts(machine, version, path, folder):
    lines, root, limit, used, stat = _FILES[version]
    machine("proc/meminfo", "MemAvailable: 99999999 kB\n")
    machine("proc/self/cgroup", lines.format(path=path))
    machine(f"{root}{path}/{limit}", "max" if version == "v2" else str(2**63 - 4096))
    machine(f"{root}{path}/{used}", "5")
    machine(f"{root}{folder}/{limit}", "1000")
    machine(f"{root}{folder}/{used}", "900\n")
    machine(f"{root}{folder}/memory.stat", stat.format(50, 20) + "slab 7\n")
    host_room.check_room(170)
    with pytest.raises(MemoryError, match=f"left by the cgroup's .*{limit}"):
        host_room.check_room(171)


def test_a_machine_that_says_nothing_is_believed(machine):
    host_room.check_room(1 << 60)


# ---- the CPUs near a device ----


class Facts:
    def __init__(self, facts):
        self.describe = lambda: facts


GPUS = Facts({"pci_bus_id": "0000:1A:00.0", "device_1": {"pci_bus_id": "0000:B3:00.0"}, "device_2": {}})


@pytest.fixture
def two_nodes(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {0, 1, 2, 9, 10, 31})
    machine("sys/devices/system/node/node0/cpulist", "0-3,8,16-19\n")
    machine("sys/devices/system/node/node1/cpulist", "9-11,20-31\n")
    machine("sys/devices/system/node/possible", "0-1\n")
    machine("sys/bus/pci/devices/0000:1a:00.0/numa_node", "0\n")
    machine("sys/bus/pci/devices/0000:b3:00.0/numa_node", "1\n")
    return machine


def test_the_cpus_of_a_devices_node_that_may_be_used(two_nodes):
    assert host_room.cpus_near(GPUS, 0) == {0, 1, 2}
    assert host_room.cpus_near(GPUS, 1) == {9, 10, 31}


def test_all_cpus_where_no_node_is_known_or_none_of_its_cpus_may_be_used(two_nodes, monkeypatch):
    everything = {0, 1, 2, 9, 10, 31}
    assert host_room.cpus_near(GPUS, 2) == everything  # no bus id
    assert host_room.cpus_near(SimulatedDriver(0, devices=2), 1) == everything
    two_nodes("sys/bus/pci/devices/0000:1a:00.0/numa_node", "-1\n")
    assert host_room.cpus_near(GPUS, 0) == everything
    two_nodes("sys/bus/pci/devices/0000:1a:00.0/numa_node", "1\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {0, 1})
    assert host_room.cpus_near(GPUS, 0) == {0, 1}


def test_all_cpus_where_there_is_one_node(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {0, 7})
    machine("sys/devices/system/node/node0/cpulist", "0-3\n")
    machine("sys/bus/pci/devices/0000:1a:00.0/numa_node", "0\n")
    assert host_room.cpus_near(GPUS, 0) == {0, 7}


def test_slices_are_touched_on_the_cpus_near_the_device_and_this_thread_stays_where_it_was(driver, monkeypatch, tiny):
    mine = os.sched_getaffinity(0)
    near = frozenset({min(mine)})
    monkeypatch.setattr(host_memory, "cpus_near", lambda _driver, _device: near)
    seen, touch = [], PinnedPool._touch_slice

    def touch_slice(pool, start, size_bytes):
        seen.append(os.sched_getaffinity(0))
        return touch(pool, start, size_bytes)

    monkeypatch.setattr(PinnedPool, "_touch_slice", touch_slice)
    pinned_memory(driver, 0, 9 * BLOCK, 1).close()
    assert seen == [set(near)] * 5
    assert os.sched_getaffinity(0) == mine


# ---- progress ----


@pytest.mark.parametrize(("size_blocks", "shown"), [(8, True), (7, False)])
def test_large_pools_show_their_progress_on_a_terminal(driver, monkeypatch, tiny, capsys, size_blocks, shown):
    import sys

    monkeypatch.setattr(host_memory, "PROGRESS_BYTES_MIN", 8 * BLOCK)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    pinned_memory(driver, 0, size_blocks * BLOCK, 1).close()
    written = capsys.readouterr().err
    assert ("pinned memory: 100%" in written) == shown


def test_no_progress_is_shown_elsewhere(driver, monkeypatch, tiny, capsys):
    monkeypatch.setattr(host_memory, "PROGRESS_BYTES_MIN", 1)
    pinned_memory(driver, 0, 8 * BLOCK, 1).close()
    assert capsys.readouterr().err == ""


# ---- the real driver ----


@pytest.mark.cuda
@needs_gpu
class TestCuda:
    @pytest.mark.parametrize("layout", ["block_major", "layer_major"])
    def test_a_pool_of_256_mib_swaps_right(self, make_pools, random_block, layout):
        pools, shape = make_pools("cuda"), (64, 2 * MIB)
        arrays = [pools.device(shape) for _ in range(2)]
        wanted = [random_block(shape, seed) for seed in range(2)]
        for array, each in zip(arrays, wanted, strict=True):
            pools.write(array, 0, each)
        with HostCache.allocate(DeviceCache(arrays), blocks=64, layout=layout) as host:
            assert isinstance(host._memory, PinnedPool) and host._memory.pieces == (host._memory.address,)
            swapper = Swapper(arrays, host)
            swapper.swap_out(range(64), range(63, -1, -1)).wait()
            for index, each in enumerate(wanted):
                np.testing.assert_array_equal(host.layer(index)[::-1], each)
            for array in arrays:
                pools.write(array, 0, np.zeros(shape, np.uint8))
            swapper.swap_in(range(64), range(63, -1, -1)).wait()
        for array, each in zip(arrays, wanted, strict=True):
            np.testing.assert_array_equal(pools.read(array, 0, each.size), each.ravel())

    def test_pieces_swap_right_block_by_block(self, make_pools, random_block, tiny):
        pools = make_pools("cuda")
        array, wanted = pools.device((12, BLOCK)), random_block((12, BLOCK), 1)
        pools.write(array, 0, wanted)
        with HostCache.allocate(DeviceCache([array]), blocks=12) as host:
            assert len(host.pieces) == 4
            swapper = Swapper([array], host)
            for block in range(12):
                swapper.swap_out([block], [block]).wait()
            np.testing.assert_array_equal(host.layer(0), wanted)

    def test_pools_come_and_go(self):
        driver = cuda_driver()
        for _ in range(10):
            memory = pinned_memory(driver, 0, 64 * MIB, 1)
            address = memory.address
            assert driver.pointer_info(address).bytes >= 64 * MIB
            memory.close()
            assert driver.pointer_info(address).kind == "unknown" and not mapped(address)
        memory = pinned_memory(driver, 0, 64 * MIB, 1)
        address = memory.address
        del memory
        gc.collect()
        assert driver.pointer_info(address).kind == "unknown"
        assert driver.not_freed() == ()
