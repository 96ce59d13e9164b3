"""Which transport "auto" takes, what it says of that, and where its figures come from."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_rig import BLOCKS, SIZES, Rig

from numba_kvswap import Plan, calibration, choice, disk_cache
from numba_kvswap import device_tools as device_tools_module
from numba_kvswap.choice import Chooser
from numba_kvswap.costs import CURVES, MODELLED, CostModel, Costs, Curve, h200_costs
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import KVSwapDriverError, SimulatedDriver
from numba_kvswap.testing.strategies import id_pairs

seconds = st.floats(1e-7, 1e-3)


@st.composite
def some_costs(draw):
    ways = [{name: Curve(draw(seconds), [64], [draw(seconds)]) for name in CURVES} for _ in range(2)]
    return Costs("a made machine", *ways, {name: draw(st.floats(0.5, 3.0)) for name in CURVES})


def chooser(rig, favor, costs):
    pair = rig.swapper("copies").pair
    with rig.driver.activate(0):
        return Chooser(pair, favor, costs), pair


# ---- the choice ----


NO_LONGER = dict.fromkeys(CURVES, 1.0)


def only_cheap(name):
    ways = [{each: Curve(1e-6 if each == name else 1e-3, [1], [1e-9 if each == name else 1e-4]) for each in CURVES}]
    return Costs("a made machine", *ways, *ways, NO_LONGER)


def ring_and_batch(ring_s, batch_s, both_ways=NO_LONGER):
    """What a block takes by each of the two, whatever its bytes; all others take longer."""
    piece_s = {"ring": ring_s, "batch": batch_s / len(SIZES)}  # a block of a block-major pool; a layer of it
    way = {name: Curve(1e-9, [1 << 20], [piece_s.get(name, 1.0)]) for name in CURVES}
    return Costs("a made machine", way, way, both_ways)


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_swap_goes_by_what_is_chosen_for_it(monkeypatch, transport, direction):
    costs = ring_and_batch(1.0, 0.5) if transport == "split" else only_cheap(transport)
    monkeypatch.setattr("numba_kvswap.choice.costs_of", lambda driver, device: costs)
    swapper = Rig().swapper(favor="compute" if transport == "split" else "swap")
    if transport == "split":
        swapper._whole.chooser.exclude("batch", "planted")
    transfer = (swapper.swap_out if direction == "out" else swapper.swap_in)([1, 3], [2, 0])
    transfer.wait()
    assert transfer.transport == transport


def test_the_two_ways_have_their_own_costs(monkeypatch):
    ring = only_cheap("ring")
    both = Costs("a made machine", ring.out, only_cheap("batch").out, ring.both_ways)
    monkeypatch.setattr("numba_kvswap.choice.costs_of", lambda driver, device: both)
    swapper = Rig().swapper()
    assert swapper.swap_out([1, 3], [2, 0]).transport == "ring"
    assert swapper.swap_in([1, 3], [2, 0]).transport == "batch"


def test_favor_compute_never_takes_the_kernel_and_says_why(monkeypatch):
    monkeypatch.setattr("numba_kvswap.choice.costs_of", lambda driver, device: only_cheap("kernel"))
    swapper = Rig().swapper(favor="compute")
    transfer = swapper.swap_out([1, 3], [2, 0])
    transfer.wait()
    assert transfer.transport != "kernel"
    explained = swapper.explain(Plan([1], [2]))
    assert explained.favor == "compute"
    assert "favor is 'compute'" in explained.why_not["kernel"]


@pytest.mark.parametrize("direction", ["out", "in"])
def test_beside_kernels_the_ring_must_win_by_more_than_its_wait_for_them(direction):
    wait_s = choice._WAIT_BESIDE_KERNELS_S
    for favor, lead_s, expected in [("swap", 0.9, "ring"), ("compute", 0.9, "batch"), ("compute", 1.1, "ring")]:
        chosen, _ = chooser(Rig(), favor, ring_and_batch(1.0 - lead_s * wait_s, 1.0))
        chosen.exclude("split", "planted")
        assert chosen.choose(Plan([3], [5]), direction) == expected
        assert chosen.explain(Plan([3], [5]), direction).chosen == expected


@pytest.mark.parametrize("direction", ["out", "in"])
def test_beside_kernels_a_swap_is_split_where_batches_hide_more_of_a_wait_than_they_cost(direction):
    """A block of two waits for as long as it takes by batches."""
    rig, plan = Rig(), Plan([3, 8], [5, 9])
    rig.driver.split_batch_bytes = sum(SIZES)
    wait_s = choice._WAIT_BESIDE_KERNELS_S
    costs = ring_and_batch(0.9 * wait_s, wait_s)
    expected = {"swap": "ring", "compute": "split"}
    for favor in ("swap", "compute"):
        chosen, _ = chooser(rig, favor, costs)
        assert chosen.choose(plan, direction) == expected[favor]
    copy_s = choice._COPY_BESIDE_KERNELS_S
    assert chosen.explain(plan, direction).expected_s["split"] == pytest.approx(1.9 * wait_s + 4 * copy_s)
    assert chosen.explain(plan, direction).expected_s["ring"] == pytest.approx(2.8 * wait_s + 2 * copy_s)
    assert chosen.explain(plan, direction).expected_s["batch"] == pytest.approx(2.0 * wait_s + 6 * copy_s)


@pytest.mark.parametrize(
    ("kernel_s", "batch_s", "expected"),
    [
        (95e-6, 90e-6, "kernel"),
        (99.5e-6, 90e-6, "batch"),  # by more than a tenth
        (1015e-6, 1e-3, "kernel"),
        (1025e-6, 1e-3, "batch"),  # by more than 20 us
    ],
)
def test_where_the_kernel_is_expected_next_to_as_soon_it_is_taken(kernel_s, batch_s, expected):
    way = {name: Curve({"kernel": kernel_s, "batch": batch_s}.get(name, 1.0), [1], [1e-12]) for name in CURVES}
    chosen, _ = chooser(Rig(), "swap", Costs("a made machine", way, way, NO_LONGER))
    for ids in ([3], [5]), ([3, 1], [5, 9]):
        assert chosen.choose(Plan(*ids), "out") == expected
    soon = "next to as soon" in repr(chosen.explain(Plan([3], [5]), "out"))
    assert soon == (expected == "kernel")
    chosen.exclude("kernel", "planted")
    assert chosen.choose(Plan([3], [5]), "out") == "batch"


@pytest.mark.parametrize("ids", [([3], [5]), ([3, 1], [5, 9])])
def test_what_bears_both_ways_at_once_is_chosen_for_them_alone(ids):
    costs = ring_and_batch(0.9, 1.0, NO_LONGER | {"ring": 2.0, "batch": 1.5})
    chosen, _ = chooser(Rig(), "swap", costs)
    for both_ways, expected in [(False, "ring"), (True, "batch"), (False, "ring")]:
        assert chosen.choose(Plan(*ids), "out", both_ways=both_ways) == expected
        assert chosen.explain(Plan(*ids), "out", both_ways=both_ways).chosen == expected


def test_a_swap_that_meets_one_the_other_way_is_chosen_for_both(monkeypatch):
    costs = ring_and_batch(0.9, 1.0, NO_LONGER | {"ring": 2.0})
    monkeypatch.setattr("numba_kvswap.choice.costs_of", lambda driver, device: costs)
    rig = Rig()
    swapper, streams = rig.swapper(), [rig.simulated.stream() for _ in range(2)]
    assert swapper.swap_out([1], [2], streams[0]).transport == "ring"
    assert swapper.swap_in([3], [4], streams[0]).transport == "ring"
    assert swapper.swap_in([5], [6], streams[1]).transport == "batch"


@given(costs=some_costs(), ids=id_pairs(BLOCKS, BLOCKS), direction=st.sampled_from(("out", "in")), data=st.data())
def test_the_least_expected_time_is_chosen_of_those_that_may_be_used(costs, ids, direction, data):
    rig, favor, plan = Rig(), data.draw(st.sampled_from(("swap", "compute"))), Plan(*ids)
    chosen, pair = chooser(rig, favor, costs)
    both_ways = data.draw(st.booleans())
    times = costs.both_ways if both_ways else None
    waits_s = (choice._WAIT_BESIDE_KERNELS_S, choice._COPY_BESIDE_KERNELS_S) if favor == "compute" else (0.0, 0.0)
    model = CostModel(costs, pair, direction, times, *waits_s)
    usable = {"copies", "batch", "ring", "kernel" if favor == "swap" else "split"}
    for name in data.draw(st.permutations(MODELLED)):
        expected = dict(zip(MODELLED, model.expected(plan).tolist(), strict=True))
        assert chosen.explain(plan, direction, both_ways=both_ways).expected_s == expected
        best = chosen.choose(plan, direction, both_ways=both_ways)
        assert best in usable
        least = min(expected[each] for each in usable)
        tie = "kernel" in usable and expected["kernel"] <= least + min(20e-6, 0.1 * least)
        assert best == "kernel" if tie else expected[best] == least
        if name in usable:
            assert chosen.exclude(name, "planted") == (len(usable) > 1)
            if len(usable) > 1:
                usable.remove(name)
    assert chosen.choose(plan, direction, both_ways=both_ways) in usable  # the last one is never given up


@pytest.mark.parametrize("direction", ["out", "in"])
def test_what_was_chosen_before_says_nothing_of_other_sizes(direction):
    """By batches each plan of two runs takes as long; for the ring, two blocks a slot, blocks and stretches count."""
    way = {name: Curve(1e-9, [1 << 20], [{"ring": 0.6, "batch": 1.0}.get(name, 9.0)]) for name in CURVES}
    chosen, _ = chooser(Rig(layout="layer_major"), "swap", Costs("a made machine", way, way, NO_LONGER))
    expected = [
        (([0, 3], [8, 5]), "ring"),
        (([0, 3, 4, 5, 6], [8, 1, 2, 3, 4]), "batch"),
        (([0, 1, 5, 6], [2, 3, 8, 9]), "batch"),
        (([0, 1, 5, 6], [2, 3, 4, 5]), "ring"),
    ]
    for ids, name in (*expected, *expected):
        assert chosen.choose(Plan(*(ids if direction == "out" else ids[::-1])), direction) == name


# ---- what is said of it ----


def test_the_table_lists_every_transport_by_its_time_with_what_keeps_it_out():
    rig = Rig(ring_slot_bytes=5)
    swapper, plan = rig.swapper(favor="compute"), Plan([0, 1, 5], [3, 4, 2])
    for direction in ("out", "in"):
        explained = swapper.explain(plan, direction)
        text = repr(explained)
        head, *lines = text.splitlines()
        assert head.startswith(f"{explained.chosen}: swap {direction} of {3 * sum(rig.sizes):,} bytes, favor='compute'")
        assert "while swaps go the other way" in repr(swapper.explain(plan, direction, both_ways=True))
        assert h200_costs().machine in head
        names = [line.split()[0] for line in lines]
        assert names == sorted(MODELLED, key=explained.expected_s.__getitem__)
        notes = dict(zip(names, lines, strict=True))
        assert notes[explained.chosen].endswith("chosen")
        assert "a slot of the ring holds 5" in notes["ring"]
        assert "multiprocessors" in notes["kernel"]
        assert all("GB/s" in line and " us " in line for line in lines)


def test_an_empty_plan_can_be_explained():
    assert "0 bytes" in repr(Rig().swapper().explain(Plan([], [])))


def test_a_swapper_with_a_transport_of_its_own_says_what_auto_would_take():
    explained = Rig("copies").swapper().explain(Plan([0, 2], [1, 0]))
    assert explained.chosen == Rig().swapper().explain(Plan([0, 2], [1, 0])).chosen
    assert explained.bytes == 2 * sum(Rig().sizes)


# ---- where the figures come from ----


class Machine(SimulatedDriver):
    """A simulated device that passes for a real one."""

    name = "cuda"

    def __init__(self, **facts):
        super().__init__(schedule=b"", devices=2)
        self.facts = facts

    def describe(self):
        first = {"device_name": "one", "compute_capability": (9, 0), "memory_bytes": 1, "multiprocessors": 132}
        return {"driver_version": "13.0", **first, "device_1": {**first, "device_name": "two"}} | self.facts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "_known", {})
    return tmp_path


@pytest.fixture
def measured(monkeypatch, cache):
    """Who asked for a measurement; each finds other costs."""
    asked = []

    def measure(driver, device):
        asked.append((driver, device))
        return only_cheap("ring") if len(asked) == 1 else h200_costs()

    monkeypatch.setattr(calibration, "measured", measure)
    return asked


def test_a_machine_is_measured_once_and_later_processes_read_it(measured, monkeypatch):
    driver = Machine()
    assert calibration.costs_of(driver, 0) is calibration.costs_of(driver, 0)
    for _ in range(2):
        monkeypatch.setattr(calibration, "_known", {})  # another process
        assert calibration.costs_of(Machine(), 0) == only_cheap("ring")
    assert len(measured) == 1


def test_calibrate_measures_anew_and_is_read_from_then_on(measured, monkeypatch):
    driver = Machine()
    assert calibration.costs_of(driver, 0) == only_cheap("ring")
    assert calibration.calibrate(driver, 0) == h200_costs()
    assert calibration.costs_of(driver, 0) == h200_costs()
    monkeypatch.setattr(calibration, "_known", {})
    assert calibration.costs_of(Machine(), 0) == h200_costs()
    assert len(measured) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1]", h200_costs().to_json().encode()[:-9]])
def test_a_file_that_is_no_costs_is_measured_and_written_anew(measured, cache, content):
    driver = Machine()
    disk_cache.store(calibration.costs_file(driver, 0), content)
    assert calibration.costs_of(driver, 0) == only_cheap("ring")
    assert Costs.from_json(disk_cache.load(calibration.costs_file(driver, 0)).decode()) == only_cheap("ring")


@pytest.mark.parametrize(
    "facts", [{"driver_version": "13.1"}, {"device_name": "other"}, {"multiprocessors": 4}, {"memory_bytes": 2}]
)
def test_another_machine_is_another_file(facts):
    assert calibration.costs_file(Machine(), 0) != calibration.costs_file(Machine(**facts), 0)
    assert calibration.costs_file(Machine(), 0) == calibration.costs_file(Machine(), 0)


def test_so_is_another_device_of_it_another_host_another_version_and_other_code(monkeypatch):
    files = {calibration.costs_file(Machine(), device) for device in (0, 1)}
    monkeypatch.setattr(calibration, "platform", SimpleNamespace(node=lambda: "elsewhere", machine=lambda: "x"))
    files.add(calibration.costs_file(Machine(), 0))
    monkeypatch.setattr(calibration, "__version__", "99")
    files.add(calibration.costs_file(Machine(), 0))
    monkeypatch.setattr(calibration, "_MEASURED", calibration._MEASURED[1:])  # as if other code had been measured
    files.add(calibration.costs_file(Machine(), 0))
    assert len(files) == 5


@pytest.mark.parametrize("missing", ["why_no_kernels", "why_no_ring"])
def test_what_was_measured_without_all_transports_is_not_kept(measured, cache, monkeypatch, missing):
    driver = Machine()
    tools = device_tools(driver, 0)
    monkeypatch.setitem(vars(tools), missing, "planted")
    assert calibration.costs_of(driver, 0) == only_cheap("ring")
    assert list(cache.iterdir()) == []
    assert calibration.costs_of(driver, 0) == only_cheap("ring")  # by this process it is
    assert len(measured) == 1
    monkeypatch.setitem(vars(tools), missing, "")
    assert calibration.calibrate(driver, 0) == h200_costs()
    assert [path.name for path in cache.iterdir()] == [calibration.costs_file(driver, 0)]


def test_where_nothing_can_be_measured_the_h200_stands_in_and_is_not_kept(monkeypatch, cache):
    def fail(driver, device):
        raise KVSwapDriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(calibration, "measured", fail)
    driver = Machine()
    assert calibration.costs_of(driver, 0) == h200_costs()
    assert list(cache.iterdir()) == []
    with pytest.raises(KVSwapDriverError):
        calibration.calibrate(driver, 0)


def test_two_threads_measure_once(measured):
    driver, found = Machine(), []
    threads = [threading.Thread(target=lambda: found.append(calibration.costs_of(driver, 0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measured) == 1
    assert found == [only_cheap("ring")] * 4


def test_every_curve_is_measured_and_everything_given_back(monkeypatch):
    """On the simulated device, in a small arena."""
    for name, value in {
        "_SWAP_BYTES": 1 << 18,
        "_ARENA_BYTES": 1 << 20,
        "_PIECES_MAX": dict.fromkeys(calibration._PIECES_MAX, 8),
        "_SIZES": (512, 4096),
        "_ROW_LAYERS": 4,
        "_ROW_SIZES": (512, 4096),
        "_FEW_BYTES": 512,
        "_BOTH_WAYS_BYTES": 512,
        "_REPEATS": 1,
        "_SHORT_REPEATS": 2,
    }.items():
        assert hasattr(calibration, name)
        monkeypatch.setattr(calibration, name, value)
    monkeypatch.setattr(device_tools_module, "_COPIES_MAX", 1)  # of earlier pairs, whose addresses may come again
    driver = SimulatedDriver(seed=3, ring_slot_bytes=1 << 17)
    with driver.activate(0):
        calibration.measured(driver, 0)  # makes what transports have once a device
        live = driver.live_allocations(), driver.live_streams(), driver.live_events()
        found = calibration.measured(driver, 0)
        assert (driver.live_allocations(), driver.live_streams(), driver.live_events()) == live
    assert Costs.from_json(found.to_json()) == found  # whole, ascending, positive
    assert found.machine == "simulated device, measured"
    assert list(found.out["ring"].bytes) == [512, 4096, 1 << 17]
    assert set(found.both_ways) == set(CURVES)
    driver.fail("cuMemHostAlloc")
    with driver.activate(0), pytest.raises(KVSwapDriverError, match="cuMemHostAlloc"):
        calibration.measured(driver, 0)
    assert driver.live_allocations() == live[0]


def test_the_simulated_device_is_an_h200(measured):
    assert calibration.costs_of(SimulatedDriver(), 0) == h200_costs()
    assert measured == []


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((Plan([500], [1]),), IndexError, "id 500; expected 0 <= id <"),
        (([1],), TypeError, "expected the host's block ids, or a Plan"),
        ((Plan([1], [1]), "sideways"), ValueError, "direction is 'sideways'; expected 'out' or 'in'"),
    ],
)
def test_what_could_not_be_swapped_is_not_explained(arguments, error, words):
    with pytest.raises(error, match=words):
        Rig().swapper().explain(*arguments)
