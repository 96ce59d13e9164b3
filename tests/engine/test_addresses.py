"""What addresses and arrays are refused, by what error, in what words; and that none of it is asked by a swap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import DeviceCache, HostCache, SimulatedDevice, Swapper, cuda_driver, swap_cache_all_layers
from numba_kvswap.driver import PointerInfo, why_no_cuda
from numba_kvswap.layers import Layer, check_device_memory
from numba_kvswap.memory import DriverMemory
from numba_kvswap.testing.cases import LayerView
from numba_kvswap.testing.engines import CudaView

BLOCKS, SHAPE = 4, (4, 2, 8)
BLOCK_BYTES = 16
PAGE = 4096
MANY = PAGE // BLOCK_BYTES + 1
OUT = 0


class Bench:
    """Two layers on a simulated device, and pinned memory for them that must stay as it is."""

    def __init__(self, **options):
        self.simulated = SimulatedDevice(schedule=b"", **options)
        self.driver = self.simulated.driver
        self.tensors = [self.simulated.device_array(SHAPE, np.uint8) for _ in range(2)]
        self.host = [self.simulated.pinned_array((blocks, *SHAPE[1:]), np.uint8) for blocks in (MANY, BLOCKS)]
        for host in self.host:
            host[:] = 0

    def refused(self, error, words, *, tensors=None, pointers=None, bound=BLOCKS):
        """Layer 1 is the bad one: were it seen too late, layer 0 would have moved."""
        with pytest.raises(error, match=words):
            swap_cache_all_layers(tensors or self.tensors, pointers or self.host, bound, [0], [0], 0, OUT)
        assert not any(host.any() for host in self.host)
        assert len(self.driver.in_flight) == 0

    def host_refused(self, words, pointer, bound=BLOCKS, error=ValueError):
        self.refused(error, f"cpu layer 1 {words}", pointers=[self.host[0], pointer], bound=bound)

    def device_refused(self, words, tensor, error=ValueError):
        self.refused(error, f"(gpu|device) layer 1 {words}", tensors=[self.tensors[0], tensor])


@pytest.fixture
def bench():
    return Bench()


def aligned(pages):
    room = np.zeros((pages + 1) * PAGE, np.uint8)
    return room[-room.ctypes.data % PAGE :][: pages * PAGE]


# ---- host ----


@pytest.mark.parametrize("address", [0, -1, 1 << 63, (1 << 63) - 1, 1 << 80])
def test_a_host_address_that_cannot_be_one(bench, address):
    bench.host_refused(f"is at {address:#x}; expected a host address with 4 blocks of 16 bytes", address)


@pytest.mark.parametrize("bound", [1 << 59, 1 << 63, 1 << 90])
def test_more_host_blocks_than_addresses(bench, bound):
    """No product wraps around to a small one."""
    with pytest.raises(ValueError, match=rf"expected a host address with {bound} blocks|expected {bound} or more"):
        swap_cache_all_layers(bench.tensors, [each.ctypes.data for each in bench.host], bound, [0], [0], 0, OUT)


def test_pageable_host_memory(bench):
    pageable = np.zeros(SHAPE, np.uint8)
    words = f"at {pageable.ctypes.data:#x} is not known to the driver .*pageable.*expected pinned host memory: allocate"
    bench.host_refused(words, pageable)
    bench.host_refused(words, pageable.ctypes.data)


def test_freed_host_memory(bench):
    with bench.driver.activate(0):
        address = bench.driver.host_alloc(4 * BLOCK_BYTES)
        bench.driver.host_free(address)
    bench.host_refused(f"at {address:#x} is not known to the driver .*freed", address)


def test_device_and_managed_memory_as_host_memory(bench):
    bench.host_refused("at .* is memory of device 0; expected pinned host memory", bench.tensors[1].address)
    managed = bench.simulated.staged_array(SHAPE, np.uint8, kind="managed")
    bench.host_refused("at .* is managed memory; expected pinned host memory", managed.address)


def test_another_drivers_host_memory(bench):
    others = SimulatedDevice().pinned_array(SHAPE, np.uint8)
    bench.host_refused("at .* is not known to the driver .*another driver's", others)


@pytest.mark.parametrize("behind", ["nothing", "registration", "device"])
def test_too_short_host_memory_says_what_lies_behind_it(bench, behind):
    memory = aligned(2)
    start, needed = memory.ctypes.data, MANY * BLOCK_BYTES
    with bench.driver.activate(0):
        bench.driver.host_register(start, PAGE)
        if behind != "nothing":
            bench.driver.host_register(start + PAGE, PAGE)
    if behind == "device":
        bench.driver.allocation_at(start + PAGE).kind = "device"
    what = {
        "nothing": "not known to the driver",
        "registration": f"another piece of {PAGE} bytes, pinned host memory",
        "device": f"another piece of {PAGE} bytes, memory of device 0",
    }[behind]
    bench.host_refused(
        f"at {start:#x} needs {needed} bytes for 257 blocks, found {PAGE} pinned bytes there; "
        f"at {start + PAGE:#x} begins {what}.*; pass fewer blocks, or memory that was .*registered in one piece",
        start,
        bound=MANY,
    )
    assert not memory.any()


def test_a_block_across_two_registrations(bench):
    """3 blocks end 8 bytes before the registration does, the fourth would lie half in the next one."""
    memory = aligned(2)
    start = memory.ctypes.data
    with bench.driver.activate(0):
        for piece in (start, start + PAGE):
            bench.driver.host_register(piece, PAGE)
    at = start + PAGE - 3 * BLOCK_BYTES - 8
    bench.host_refused(f"at {at:#x} needs 64 bytes for 4 blocks, found 56 pinned bytes there; at .* another piece", at)
    swap_cache_all_layers(bench.tensors, [bench.host[0], at], 3, [0], [2], 0, OUT)
    assert memory[PAGE - 8 - BLOCK_BYTES : PAGE - 8].tolist() == bench.tensors[1].to_numpy()[0].reshape(-1).tolist()


# ---- device ----


def test_a_device_array_over_host_memory(bench):
    array = bench.simulated.staged_array(SHAPE, np.uint8, kind="host")
    bench.device_refused("at .* is pinned host memory; expected plain memory of device 0", array)


def test_a_device_array_over_managed_memory(bench):
    array = bench.simulated.staged_array(SHAPE, np.uint8, kind="managed")
    bench.device_refused("at .* is managed memory; expected plain memory of device 0", array)


def test_a_freed_device_array(bench):
    bench.tensors[1].free()
    bench.refused(ValueError, "gpu layer 1 at .* is not known to the driver .*freed")


def test_a_device_array_of_another_context(bench):
    array = bench.simulated.staged_array(SHAPE, np.uint8, context="another")
    bench.device_refused("at .* is memory of device 0, of another context; expected .* of its primary context", array)


@pytest.mark.parametrize("context", ["primary", "none"])
def test_a_device_array_of_the_primary_context_or_of_none(bench, context):
    array = bench.simulated.staged_array(SHAPE, np.uint8, context=context)
    swap_cache_all_layers([bench.tensors[0], array], bench.host, BLOCKS, [0], [0], 0, OUT)
    assert bench.host[1].any()


def test_a_device_array_of_another_gpu():
    bench = Bench(devices=2)
    array = bench.simulated.device_array(SHAPE, np.uint8, device=1)
    bench.refused(ValueError, "lie on different devices", tensors=[bench.tensors[0], array])
    layer = Layer(array.address, 4, 16, 16, None, owner=array, name="device layer 0")
    with pytest.raises(ValueError, match=r"layer 0 at .* is memory of device 1; expected plain memory of device 0"):
        DeviceCache.of_layers([layer], 0, bench.driver)


def test_a_device_layer_at_null(bench):
    with pytest.raises(ValueError, match=r"at 0x0 is not known to the driver \(null"):
        DeviceCache.of_layers([Layer(0, 4, 16, 16, None)], 0, bench.driver)


def test_a_device_layer_that_is_too_short_by_a_byte(bench):
    array = bench.tensors[0]
    layer = Layer(array.address + 1, BLOCKS, 16, 16, None, owner=array, name="device layer 0")
    words = f"layer 0 at {layer.address:#x} needs 64 bytes for 4 blocks, found 63 device bytes there; at .* begins"
    with pytest.raises(ValueError, match=words):
        DeviceCache.of_layers([layer], 0, bench.driver)


def test_a_layer_that_reaches_beyond_every_address(bench):
    array = bench.tensors[0]
    layer = Layer(array.address, 2, 16, 1 << 63, None, owner=array)
    with pytest.raises(ValueError, match=f"needs {(1 << 63) + 16} bytes for 2 blocks, found 64 device bytes"):
        DeviceCache.of_layers([layer], 0, bench.driver)


class Exported:
    """An empty array, whose blocks may have any size."""

    def __init__(self, shape):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (0, False), "version": 3}


@pytest.mark.parametrize("shape", [(0, 1 << 63), (0, 1 << 40, 1 << 40)])
def test_blocks_larger_than_every_address(shape, monkeypatch, bench):
    monkeypatch.setattr("numba_kvswap.interop.cuda_driver", lambda: bench.driver)
    with pytest.raises(ValueError, match=r"device layer 0 has blocks of \d+ bytes; expected fewer than 2\*\*63"):
        DeviceCache([Exported(shape)])


class Mappings:
    """As much of a driver as the check asks: ranges (start, bytes, context) of device 0, and how often it was asked."""

    def __init__(self, ranges):
        self.ranges, self.asked = ranges, 0

    def pointer_info(self, address):
        self.asked += 1
        for start, size, context in self.ranges:
            if start <= address < start + size:
                return PointerInfo("device", start, size, 0, address, context)
        return PointerInfo("unknown", 0, 0, -1)


@given(data=st.data())
def test_a_device_layer_is_accepted_where_each_of_its_bytes_is_mapped(data):
    """Virtual mappings with gaps between some, plain allocations among them; layers anywhere, in any order."""
    ranges, at = [], 100
    for _ in range(data.draw(st.integers(1, 6))):
        at += data.draw(st.sampled_from((0, 0, 0, 3)))
        size = data.draw(st.integers(1, 20))
        ranges.append((at, size, data.draw(st.sampled_from(("none", "none", "primary", "another")))))
        at += size
    places = st.tuples(st.integers(95, at + 2), st.integers(1, 30))
    layers = [Layer(*place[:1], 1, place[1], place[1], None) for place in data.draw(st.lists(places, max_size=4))]

    def range_of(byte):
        return next((each for each in ranges if each[0] <= byte < each[0] + each[1]), None)

    def good(layer):
        held = {range_of(byte) for byte in range(layer.address, layer.address + layer.block_bytes)}
        plain = None not in held and all(context != "another" for _, _, context in held)
        return plain and (len(held) == 1 or all(context == "none" for _, _, context in held))

    driver = Mappings(ranges)
    if all(map(good, layers)):
        found = check_device_memory(layers, 0, driver)
        assert found == tuple(range_of(layer.address)[0] for layer in layers)
        assert driver.asked <= len(ranges)
    else:
        with pytest.raises(ValueError, match="expected"):
            check_device_memory(layers, 0, driver)


def test_a_layer_over_many_mappings_moves_as_any_other(bench):
    array = bench.simulated.staged_array((2, *SHAPE), np.uint8, context="none", mapping_bytes=24)
    values = np.arange(128, dtype=np.uint8).reshape(2, *SHAPE)
    array.fill_from(values)
    host = [bench.simulated.pinned_array(SHAPE, np.uint8) for _ in range(2)]
    Swapper([array[0], array[1]], host).swap_out([3, 1, 0], [0, 1, 2]).wait()
    for index in range(2):
        np.testing.assert_array_equal(host[index][:3], values[index][[3, 1, 0]])


def test_a_large_cache_over_small_mappings_is_asked_about_once_a_mapping():
    """40 GiB in 2 MiB mappings, 64 layers that each reach through nearly all of it."""
    mapping, layers, count = 2 << 20, 64, 20_480
    start = 1 << 45

    class Even:
        asked = 0

        def pointer_info(self, address):
            self.asked += 1
            at = address - address % mapping
            return PointerInfo("device", at, mapping, 0, address, "none")

    driver, size = Even(), mapping * count // 1024
    found = check_device_memory(
        [Layer(start + size // layers * i, 1024, size // layers, size, None) for i in range(layers)], 0, driver
    )
    assert driver.asked == count
    assert found[0] == start and found[-1] == start + size // layers * 63 // mapping * mapping


# ---- when it is asked ----


def test_the_driver_is_asked_once_a_cache_and_a_pair_and_never_by_a_swap(transport):
    simulated = SimulatedDevice(schedule=b"")
    driver = simulated.driver
    arrays, pinned = simulated.device_array((8, 4, 8), np.uint8), simulated.pinned_array((8, 4, 8), np.uint8)
    device = DeviceCache(arrays)
    assert driver.calls["cuPointerGetAttributes"] == 1  # 8 layers of one allocation
    host = HostCache(pinned)
    assert driver.calls["cuPointerGetAttributes"] == 1
    swapper = Swapper(device, host, transport=transport)
    for _ in range(2):  # what a transport makes once
        swapper.swap_out([0, 2], [1, 3]).wait()
        swapper.swap_in([0, 2], [1, 3]).wait()
    before = driver.calls["cuPointerGetAttributes"]
    for turn in range(20):
        swapper.swap_out([turn % 4, (turn + 2) % 4], [3, 1]).wait()
        swapper.swap_in([turn % 4, (turn + 2) % 4], [3, 1]).wait()
    assert driver.calls["cuPointerGetAttributes"] == before


# ---- on a real device ----


@pytest.mark.cuda
@pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")
class TestOnCuda:
    @pytest.fixture
    def driver(self):
        driver = cuda_driver()
        with driver.activate(0):
            yield driver

    def array(self, address, shape=(4, 1024), owner=None):
        dtype = np.dtype(np.uint8)
        return CudaView(address, LayerView(0, shape, (shape[1], 1), dtype), owner)

    def memory(self, driver, kind, size_bytes=4096):
        return DriverMemory(driver, 0, size_bytes, kind)

    def cache(self, driver):
        return DeviceCache.allocate(driver, blocks=4, block_bytes=[1024])

    def host_refused(self, driver, address, words, blocks=4):
        layer = Layer(address, blocks, 1024, 1024, None, name="host layer 0")
        with pytest.raises(ValueError, match=f"host layer 0 at {address:#x} {words}"):
            Swapper(self.cache(driver), HostCache.of_layers([layer]))

    def test_pageable_freed_and_device_memory_as_host_memory(self, driver):
        pageable = np.zeros(8192, np.uint8)
        self.host_refused(driver, pageable.ctypes.data, "is not known to the driver .*pageable")
        memory = self.memory(driver, "host")
        address = memory.address
        memory.close()
        self.host_refused(driver, address, "is not known to the driver .*freed")
        device = self.memory(driver, "device")
        self.host_refused(driver, device.address, "is memory of device 0; expected pinned host memory")

    def test_registrations_side_by_side(self, driver):
        memory = aligned(2)
        start = memory.ctypes.data
        for piece in (start, start + PAGE):
            driver.host_register(piece, PAGE)
        try:
            words = (
                f"needs 5120 bytes for 5 blocks, found {PAGE} pinned bytes there; at {start + PAGE:#x} begins another"
            )
            self.host_refused(driver, start, words, blocks=5)
        finally:
            for piece in (start, start + PAGE):
                driver.host_unregister(piece)

    def test_freed_pageable_and_host_memory_as_a_device_array(self, driver):
        memory = self.memory(driver, "device")
        address = memory.address
        memory.close()
        pageable, pinned = np.zeros(8192, np.uint8), self.memory(driver, "host")
        for at, words in (
            (address, "not known to the driver .*freed"),
            (pageable.ctypes.data, "not known to the driver .*pageable"),
            (pinned.address, "pinned host memory"),
        ):
            with pytest.raises(ValueError, match=f"layer 0 at {at:#x} is {words}"):
                DeviceCache([self.array(at)])

    def test_a_device_array_that_is_too_short(self, driver):
        memory = self.memory(driver, "device", 1 << 20)
        with pytest.raises(ValueError, match=f"needs {(1 << 20) + 1024} bytes for 1025 blocks, found {1 << 20} device"):
            DeviceCache([self.array(memory.address, (1025, 1024), memory)])
        DeviceCache([self.array(memory.address, (1024, 1024), memory)])

    def test_memory_of_another_context(self, driver):
        from cuda.bindings import driver as cuda

        device = cuda.CUdevice(0)
        newer = hasattr(cuda, "CUctxCreateParams")  # the bindings of CUDA 13 take one argument more
        status, context = cuda.cuCtxCreate(None, 0, device) if newer else cuda.cuCtxCreate(0, device)
        assert int(status) == 0
        try:
            try:
                address = driver.device_alloc(4096)  # the new context is current
            finally:
                cuda.cuCtxPopCurrent()
            assert driver.pointer_info(address).context == "another"
            with pytest.raises(ValueError, match=r"of another context; expected .*primary context"):
                DeviceCache([self.array(address)])
        finally:
            cuda.cuCtxDestroy(context)

    def test_memory_of_the_primary_context_and_stream_ordered_memory(self, driver):
        from cuda.bindings import driver as cuda

        plain = self.memory(driver, "device")
        assert driver.pointer_info(plain.address).context == "primary"
        stream = cuda.CUstream(driver.stream_create())
        status, address = cuda.cuMemAllocAsync(4096, stream)
        assert int(status) == 0
        driver.stream_synchronize(int(stream))
        try:
            DeviceCache([self.array(int(address))])  # accepted
        finally:
            cuda.cuMemFreeAsync(address, stream)
            driver.stream_synchronize(int(stream))
            driver.stream_destroy(int(stream))

    def test_virtual_memory_in_two_mappings_and_its_unmapped_end(self, driver):
        """As torch's expandable segments: an array over both is accepted, one that reaches beyond is not."""
        from cuda.bindings import driver as cuda

        def call(function, *arguments):
            status, *results = function(*arguments)
            assert int(status) == 0, (function.__name__, status)
            return results[0] if results else None

        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = 0
        least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        piece = int(call(cuda.cuMemGetAllocationGranularity, properties, least))
        access = cuda.CUmemAccessDesc()
        access.location.type, access.location.id = properties.location.type, 0
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        start = int(call(cuda.cuMemAddressReserve, 4 * piece, 0, cuda.CUdeviceptr(0), 0))
        handles = []
        for index in range(2):
            handles.append(call(cuda.cuMemCreate, piece, properties, 0))
            call(cuda.cuMemMap, cuda.CUdeviceptr(start + index * piece), piece, 0, handles[-1], 0)
        call(cuda.cuMemSetAccess, cuda.CUdeviceptr(start), 2 * piece, [access], 1)
        try:
            info = driver.pointer_info(start + piece)
            assert (info.kind, info.context) == ("device", "none")
            assert driver.pointer_info(start + 2 * piece).kind == "unknown"
            DeviceCache([self.array(start, (2 * piece // 1024, 1024))])
            with pytest.raises(ValueError, match=f"found {2 * piece} device bytes"):
                DeviceCache([self.array(start, (2 * piece // 1024 + 1, 1024))])
        finally:
            call(cuda.cuMemUnmap, cuda.CUdeviceptr(start), 2 * piece)
            for handle in handles:
                call(cuda.cuMemRelease, handle)
            call(cuda.cuMemAddressFree, cuda.CUdeviceptr(start), 4 * piece)

    def test_a_cache_is_asked_about_once_an_allocation(self, driver, monkeypatch):
        memory, asked = self.memory(driver, "device", 64 * 4096), []
        kind, really = type(driver), driver.pointer_info
        monkeypatch.setattr(kind, "pointer_info", lambda _driver, address: (asked.append(address), really(address))[1])
        layers = [Layer(memory.address + 4096 * i, 4, 1024, 1024, None, owner=memory) for i in range(64)]
        device = DeviceCache.of_layers(layers, 0, driver)
        assert len(asked) == 1
        swapper = Swapper(device, HostCache.allocate(device, blocks=4), transport="copies")
        swapper.swap_out([0], [0]).wait()
        asked.clear()
        swapper.swap_out([0, 2], [1, 3]).wait()
        assert asked == []
