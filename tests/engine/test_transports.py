"""What each transport takes and refuses, what it needs once, and how "auto" goes on without one."""

from __future__ import annotations

import gc
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import BLOCKS, LAZY, SIZES, Rig, assert_same, random_bytes, swap

from numba_kvswap import HostCache, KVSwapDriverError, Plan, Swapper, host_memory
from numba_kvswap import device_tools as device_tools_module
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.id_tables import IdTables
from numba_kvswap.layers import Layer, overlapping_layers
from numba_kvswap.testing.strategies import id_pairs
from numba_kvswap.transports.named import TRANSPORTS
from numba_kvswap.transports.ring import pieces_of

IDS = ([3, 4, 5, 9, 1, 0, 12, 13, 14, 2, 7], [0, 1, 2, 8, 7, 6, 15, 14, 13, 4, 5])
DIRECTIONS = ("out", "in")
WITHOUT_ORDER = ("batch", "kernel", "ring", "split")


# ---- any plan, any caches ----


@settings(max_examples=max(20, settings().max_examples // 4))
@given(
    ids=id_pairs(BLOCKS, BLOCKS),
    direction=st.sampled_from(DIRECTIONS),
    layout=st.sampled_from(("layer_major", "block_major")),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    ring_blocks=st.integers(1, 5),
    has_batch=st.booleans(),
    schedule=st.binary(max_size=40),
)
def test_layers_of_any_sizes_move_by_any_transport(
    transport, ids, direction, layout, sizes, ring_blocks, has_batch, schedule
):
    rig = Rig(transport, sizes=sizes, layout=layout, ring_blocks=ring_blocks, has_batch=has_batch, schedule=schedule)
    before = rig.images()
    sources, targets = ids
    transfer = swap(rig.swapper(), direction, *((sources, targets) if direction == "out" else (targets, sources)))
    transfer.wait()
    assert transfer.transport == transport
    last = dict(zip(targets, sources, strict=True))
    device_ids, host_ids = list(last.values()), list(last)
    if direction == "in":
        device_ids, host_ids = host_ids, device_ids
    assert_same(rig.images(), rig.expected(direction, device_ids, host_ids, before))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_pairs_at_all(transport_or_auto, direction):
    rig = Rig(transport_or_auto)
    before = rig.images()
    stream = rig.simulated.stream()
    latch = stream.latch()
    transfer = swap(rig.swapper(), direction, [], [], stream)
    assert not transfer.done()
    latch.open()
    transfer.wait()
    assert_same(rig.images(), before)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["layer_major", "block_major"])
def test_pools_of_several_registrations(monkeypatch, transport_or_auto, direction, layout):
    """No copy crosses from one into the next, which the simulated device refuses."""
    page = host_memory.SYSTEM_BLOCK_BYTES
    monkeypatch.setattr(host_memory, "POOL_BYTES_MIN", 1)
    monkeypatch.setattr(host_memory, "PIECE_BYTES_MAX", 4 * page)
    rig = Rig(transport_or_auto, sizes=[page // 2] * 3, layout=layout, blocks=8, ring_blocks=7)
    swapper = rig.swapper()
    assert len(rig.host.pieces) > 1
    assert swapper.pair.host_cuts.size == (3 if layout == "block_major" else 0)  # else each layer has a piece
    before = rig.images()
    ids = ([0, 1, 2, 3, 4, 5, 7], [1, 2, 3, 4, 5, 6, 7])
    swap(swapper, direction, *ids).wait()
    assert_same(rig.images(), rig.expected(direction, *ids, before))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layers_of_one_block_in_adjacent_registrations(transport_or_auto, direction):
    """They lie side by side as a block-major pool's do, but no copy may hold both."""
    simulated, size = SimulatedDevice(schedule=LAZY), 4096
    room = np.zeros(3 * size, np.uint8)
    memory = room[-room.ctypes.data % size :][: 2 * size]
    memory[:] = random_bytes(memory.shape, 1)
    with simulated.driver.activate(0):
        for part in (memory[:size], memory[size:]):
            simulated.driver.host_register(part.ctypes.data, size)
    device = [simulated.device_array((1, size), np.uint8) for _ in range(2)]
    for seed, layer in enumerate(device):
        layer.fill_from(random_bytes((1, size), seed))
    host = [memory[:size].reshape(1, -1), memory[size:].reshape(1, -1)]
    swap(Swapper(device, host, transport=transport_or_auto), direction, [0], [0]).wait()
    for layer, expected in zip(device, host, strict=True):
        np.testing.assert_array_equal(layer.to_numpy(), expected)


# ---- what is refused ----


def test_a_name_that_is_none_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'teleport'.*auto.*copies, batch, kernel, ring"):
        Rig("teleport").swapper()
    with pytest.raises(ValueError, match=r"'teleport'.*copies, batch, kernel, ring"):
        Rig().swapper().why_not("teleport")
    with pytest.raises(ValueError, match=r"favor is 'speed'.*'swap' or 'compute'"):
        Rig().swapper(favor="speed")


def unmapped(simulated, layers=3):
    device = [simulated.device_array((BLOCKS, 8), np.uint8) for _ in range(layers)]
    host = [simulated.pinned_array((BLOCKS, 8), np.uint8, mapped=index != 1) for index in range(layers)]
    for index, layer in enumerate(device):
        layer.fill_from(random_bytes(layer.shape, index))
    return device, host


def test_a_kernel_refuses_memory_that_it_does_not_reach_and_says_which():
    device, host = unmapped(SimulatedDevice(schedule=LAZY))
    with pytest.raises(ValueError, match=r"'kernel'.*host layer 1 is pinned but not mapped"):
        Swapper(device, host, transport="kernel")
    swapper = Swapper(device, host)
    assert "host layer 1" in swapper.why_not("kernel")
    assert not any(swapper.why_not(name) for name in ("copies", "batch", "ring"))
    assert "host layer 1" in swapper.explain(Plan([0], [0])).why_not["kernel"]


@pytest.mark.parametrize("name", ["auto", "copies", "batch", "ring"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_memory_that_no_kernel_reaches_moves_by_the_others(name, direction):
    """The ring's kernel stays on the device, the engines go to the host."""
    device, host = unmapped(SimulatedDevice(schedule=LAZY))
    for layer in host:
        layer[...] = random_bytes(layer.shape, 9)
    swap(Swapper(device, host, transport=name), direction, *IDS).wait()
    for layer, on_host in zip(device, host, strict=True):
        np.testing.assert_array_equal(layer.to_numpy()[IDS[0]], on_host[IDS[1]])


def test_a_block_longer_than_a_slot_is_refused_by_what_takes_the_ring_alone():
    rig = Rig(ring_slot_bytes=sum(SIZES) - 1)
    with pytest.raises(ValueError, match=f"a block has {sum(SIZES)} bytes.*a slot of the ring holds {sum(SIZES) - 1}"):
        rig.swapper("ring")
    before = rig.images()
    swapper = rig.swapper()
    assert [name for name in TRANSPORTS if swapper.why_not(name)] == ["ring", "split"]
    swapper.swap_out(*IDS).wait()
    assert_same(rig.images(), rig.expected("out", *IDS, before))


@pytest.mark.parametrize("side", ["device", "host"])
def test_layers_that_share_bytes_are_copied_in_order(side):
    """The second layer lies one byte into the first: what both write, the second one wins."""
    simulated = SimulatedDevice(schedule=LAZY)
    apart = (2, BLOCKS, 8)
    if side == "host":
        pinned = simulated.pinned_array(BLOCKS * 8 + 1, np.uint8)
        pinned[:] = 0
        host = [pinned[at : at + BLOCKS * 8].reshape(BLOCKS, 8) for at in (0, 1)]
        device = [simulated.device_array(apart[1:], np.uint8) for _ in range(2)]
        for seed, layer in enumerate(device):
            layer.fill_from(random_bytes(layer.shape, seed))
    else:
        pool = simulated.device_array(BLOCKS * 8 + 1, np.uint8)
        device = [pool.view(at, (BLOCKS, 8), np.uint8) for at in (0, 1)]
        host = [simulated.pinned_array(apart[1:], np.uint8) for _ in range(2)]
        for seed, layer in enumerate(host):
            layer[...] = random_bytes(layer.shape, seed)
    for name in WITHOUT_ORDER:
        with pytest.raises(ValueError, match=f"{side} layer 0 and {side} layer 1 may share bytes"):
            Swapper(device, host, transport=name)
    swapper = Swapper(device, host)
    every = list(range(BLOCKS))
    transfer = swap(swapper, "out" if side == "host" else "in", every, every)
    transfer.wait()
    assert transfer.transport == "copies"
    assert sorted(swapper.explain(Plan([0], [0])).why_not) == sorted(WITHOUT_ORDER)
    np.testing.assert_array_equal(host[1], device[1].to_numpy())


def bytes_of(layer):
    starts = (layer.address + block * layer.block_stride_bytes for block in range(layer.blocks))
    return {start + at for start in starts for at in range(layer.block_bytes)}


@st.composite
def some_layers(draw):
    """Of one number of blocks, at equal strides mostly, so near each other that many share bytes and many do not."""
    blocks, stride = draw(st.integers(0, 4)), draw(st.integers(1, 24))
    layers = []
    for index in range(draw(st.integers(0, 5))):
        own = draw(st.sampled_from((stride, stride, stride, stride + 3)))
        size = draw(st.integers(1, min(own, 8)))
        address = 1000 + draw(st.integers(0, 120))
        layers.append(Layer(address, blocks, size, own, None, name=str(index)))
    return layers


@settings(max_examples=10 * settings().max_examples)
@given(layers=some_layers())
def test_layers_that_share_bytes_are_found(layers):
    found = overlapping_layers(layers)
    spans = [bytes_of(layer) for layer in layers]
    sharing = any(a & b for at, a in enumerate(spans) for b in spans[:at])
    if sharing:
        assert all(found)
    if all(found):
        one, other = (layers[int(name)] for name in found)
        assert one is not other
        # They share bytes, or would were there more blocks, or lie across each other at strides of their own.
        many = [Layer(layer.address, 60, layer.block_bytes, layer.block_stride_bytes, None) for layer in (one, other)]
        assert one.block_stride_bytes != other.block_stride_bytes or bytes_of(many[0]) & bytes_of(many[1])


@settings(max_examples=10 * settings().max_examples)
@given(layers=some_layers())
def test_layers_whose_stretches_lie_apart_are_not_taken_for_sharing(layers):
    ends = sorted((layer.address, layer.address + layer.extent_bytes) for layer in layers if layer.blocks)
    if all(end <= start for (_, end), (start, _) in pairwise(ends)):
        assert overlapping_layers(layers) == ("", "")


@pytest.mark.parametrize("layout", ["layer_major", "block_major"])
def test_pools_of_ours_share_no_bytes(layout):
    rig = Rig(layout=layout, sizes=(8, 5, 16, 1))
    assert [rig.swapper().why_not(name) for name in TRANSPORTS] == [""] * len(TRANSPORTS)


# ---- the ring's memory ----


def ring_is_chosen(rig):
    """An "auto" that takes the ring wherever it may."""
    swapper = rig.swapper("auto")
    chooser = swapper._whole.chooser
    chooser.choose = lambda plan, direction, **_: "ring" if "ring" in chooser._usable else "copies"
    return swapper


def fill_the_device(rig):
    """Arrays that leave it room for tables, and none for a ring."""
    rig.driver.memory_bytes_max = rig.driver._memory.live_bytes("device", 0) + 3 * 65536


@pytest.mark.parametrize("want", ["memory", "events", "streams", "the second stream", "the third stream"])
def test_auto_goes_on_without_a_ring_that_is_not_to_be_had(want):
    rig = Rig(ring_slot_bytes=1 << 20)
    before = rig.images()
    swapper = ring_is_chosen(rig)
    if want == "memory":
        fill_the_device(rig)
    elif want == "events":
        rig.driver.fail("cuEventCreate")
    else:
        # The first stream is that of the table's upload.
        rig.driver.fail("cuStreamCreate", at={"streams": 1, "the second stream": 2, "the third stream": 3}[want])
    transfer = swapper.swap_out(*IDS)
    transfer.wait()
    assert transfer.transport == "copies"
    assert_same(rig.images(), rig.expected("out", *IDS, before))
    swapper.swap_in(*IDS).wait()
    assert swapper.explain(Plan([0], [0])).why_not["ring"]


@pytest.mark.parametrize(
    ("fault", "at"),
    [("cuMemAlloc", 0), ("cuMemAlloc", 1), ("cuMemAlloc", 2), *(("cuEventCreate", at) for at in range(6))]
    + [("cuStreamCreate", at) for at in range(4)],
)
def test_a_ring_that_was_not_to_be_had_is_asked_for_again_by_who_names_it(fault, at):
    rig = Rig("ring")
    before = rig.images()
    swapper = rig.swapper()
    rig.driver.fail(fault, at=at)
    live = rig.live()
    with pytest.raises(KVSwapDriverError, match=fault):
        swapper.swap_out(*IDS)
    gc.collect()
    # What was made before stays for the next time: the upload's stream, the tables; of a half made ring nothing does.
    assert rig.live()[2] <= live[2] + 1
    swapper.swap_out(*IDS).wait()
    rig.swapper("ring").swap_out(*IDS).wait()  # also a new one
    assert_same(rig.images(), rig.expected("out", *IDS, before))


def test_a_new_auto_does_not_ask_in_vain_again_and_does_once_there_is_a_ring():
    rig = Rig(ring_slot_bytes=1 << 20)
    explicit = rig.swapper("ring")
    fill_the_device(rig)
    with pytest.raises(KVSwapDriverError, match="cuMemAlloc"):
        explicit.swap_out(*IDS)
    asked = rig.driver.calls["cuMemAlloc"]
    assert "3145728 bytes of device memory for a ring" in rig.swapper().explain(Plan([0], [0])).why_not["ring"]
    assert rig.driver.calls["cuMemAlloc"] == asked
    rig.driver.memory_bytes_max = 1 << 30
    explicit.swap_out(*IDS).wait()
    assert "ring" not in rig.swapper().explain(Plan([0], [0])).why_not


def test_a_ring_is_made_once_a_device_and_way_however_many_swappers_there_are():
    rig = Rig("ring", ring_slot_bytes=1 << 20)
    before = rig.driver._memory.live_bytes("device", 0)
    kept = [rig.swapper() for _ in range(5)]
    for swapper in kept:
        swapper.swap_out(*IDS).wait()
        swapper.swap_in(*IDS).wait()
    ring_bytes = rig.driver.ring_slots * rig.driver.ring_slot_bytes
    tables = rig.driver._memory.live_bytes("device", 0) - before - 2 * ring_bytes
    assert 0 < tables < 1 << 18  # tables of layers, and of ids


# ---- what a call takes once all is made ----


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_is_allocated_in_the_steady_state(transport_or_auto, direction):
    rig = Rig(transport_or_auto)
    rig.driver.idle_events_max = 8
    swapper = rig.swapper()
    counted = ("cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister", "cuEventCreate", "cuStreamCreate", "cuMemFree")

    def calls():
        gc.collect()
        rig.driver.live_allocations()  # lets go of what finalizers gave up
        return [rig.driver.calls[name] for name in counted]

    def swaps():
        for count in range(20):
            swap(swapper, direction, IDS[0][: count % 11 + 1], IDS[1][: count % 11 + 1]).wait()

    swaps()
    before = calls()
    swaps()
    assert calls() == before


def test_swaps_leave_nothing_behind(transport_or_auto):
    rig = Rig(transport_or_auto)

    def rounds():
        for direction, layout in product(DIRECTIONS, range(3)):
            swap(rig.swapper(), direction, *IDS, rig.simulated.stream() if layout else None).wait()
        gc.collect()
        return rig.live()

    assert rounds() == rounds()


@pytest.mark.parametrize("transport", ["kernel", "ring"])
def test_of_pairs_that_are_gone_only_the_last_tables_are_kept(monkeypatch, transport):
    monkeypatch.setattr(device_tools_module, "_COPIES_MAX", 2)
    rig = Rig(transport)
    live, kept = [], []
    for _ in range(6):
        kept.append(HostCache.allocate(rig.device, blocks=BLOCKS))  # each elsewhere
        Swapper(rig.device, kept[-1], transport=transport).swap_out(*IDS).wait()
        gc.collect()
        live.append(rig.live())
    allocations = [one[0] for one in live]
    # A host pool a round, and a table of layers until two are kept; the ring's knows nothing of the host.
    first = 2 if transport == "kernel" else 1
    assert [after - before for before, after in pairwise(allocations)] == [first, 1, 1, 1, 1]


@pytest.mark.parametrize("transport", ["kernel", "ring"])
def test_a_swapper_made_anew_for_the_same_caches_allocates_nothing(transport):
    rig = Rig(transport)
    rig.swapper().swap_out(*IDS).wait()
    calls = rig.driver.calls.copy()
    for _ in range(3):
        rig.swapper().swap_out(*IDS).wait()
    assert all(rig.driver.calls[call] == calls[call] for call in ("cuMemAlloc", "cuMemHostAlloc"))


@pytest.mark.parametrize("words", [1, 4096, 4097, 100_000])
def test_a_table_has_room_for_what_was_asked_for(words):
    rig = Rig("kernel")
    with rig.driver.activate(0):
        table = IdTables(rig.driver, 0).lend(words)
    assert table.words.size >= words
    assert rig.driver.pointer_info(int(table.words_at)).bytes >= 8 * words
    assert rig.driver.pointer_info(int(table.device_at)).bytes >= 8 * words


def test_a_table_that_dies_in_a_cycle_comes_back_whole():
    """Its finalizer gives its memory back, in the midst of a collection that finalizes all that only it holds."""
    rig = Rig("kernel")
    tables = IdTables(rig.driver, 0)
    with rig.driver.activate(0):
        cycle = {"table": tables.lend(10)}
        cycle["itself"] = cycle
        del cycle
        gc.collect()
        again = tables.lend(10)
    for address in (int(again.device_at), again.words.ctypes.data):
        assert rig.driver.pointer_info(address).bytes == again.words.nbytes


# ---- how layers travel through a ring ----


def test_the_layers_of_a_block_major_pool_are_one_piece_and_those_of_a_layer_major_one_each():
    block_major, layer_major = (Rig(layout=layout).host.layers for layout in ("block_major", "layer_major"))
    assert len(pieces_of(block_major, 1000).words) == 1
    assert len(pieces_of(layer_major, 1000).words) == len(SIZES)


@given(
    layout=st.sampled_from(("layer_major", "block_major")),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    room=st.integers(0, 200),
)
def test_a_slot_holds_all_its_rows_and_no_two_share_a_byte(layout, sizes, room):
    layers = Rig(sizes=sizes, layout=layout, blocks=3).host.layers
    slot_bytes = sum(sizes) + room
    pieces = pieces_of(layers, slot_bytes)
    assert pieces.rows == slot_bytes // sum(sizes)
    taken = sorted(
        (start + row * stride, size)
        for (start, stride), size in zip(pieces.offsets, sizes, strict=True)
        for row in range(pieces.rows)
    )
    assert all(a + size <= b for (a, size), (b, _) in zip(taken, [*taken[1:], (slot_bytes, 0)], strict=True))
