"""Operations in steps: what may be seen, and may come, in between; and what may not."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest
from driver_bench import EAGER, LAZY, Bench
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from numba_kvswap import DeviceCache, HostCache, Swapper
from numba_kvswap.driver import KVSwapDriverError, SimulatedDevice, SimulatedDriver
from numba_kvswap.driver.simulated_memory import FREED_BYTE, NEW_BYTE
from numba_kvswap.driver.simulated_pieces import in_drawn_order, in_steps, stretches_of
from numba_kvswap.driver.simulated_schedule import Choices
from numba_kvswap.layers import LayerBytes

TAPES = st.binary(max_size=60)
OLD, NEW = 1, 2
KINDS = ("copy", "rows", "batch")
#: One step of work right after it was queued, and then none.
ONE_STEP = b"\1"


def found(wanted):
    """A tape of which `wanted` is true, not made small; fails where there seems to be none."""
    options = settings(max_examples=2000, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    return find(TAPES, wanted, settings=options)


class Moving:
    """64 bytes on their way from the host, which holds OLD, to the device; the event marks their end."""

    def __init__(self, kind: str, tape: bytes | None, seed: int = 0):
        self.bench = Bench(tape, seed)
        self.driver = driver = self.bench.driver
        self.source, target = (self.bench.bytes_at(at)[:64] for at in (self.bench.host, self.bench.device))
        self.source[:] = OLD
        at_host, at_device = self.bench.host, self.bench.device
        with driver.activate(0):
            self.stream, self.event = driver.stream_create(), driver.event_create()
            if kind == "copy":
                assert self.bench.copy(at_device, at_host, 64, self.stream) == 0
            elif kind == "rows":
                assert self.bench.rows(tpitch=16, stream=self.stream) == 0
            else:
                copies = [(at_device + i, at_host + i, 16) for i in range(0, 64, 16)]
                assert self.bench.batch(copies, self.stream) == 0
            driver.event_record(self.event, self.stream)
        self.target = target

    def landed(self) -> np.ndarray:
        return self.target != NEW_BYTE

    def halves(self) -> list[bool]:
        return [bool(half.all()) for half in np.split(self.landed(), 2)]

    def torn(self) -> bool:
        return self.landed().any() and not self.landed().all()


# ---- what may be seen ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("halves", [[True, False], [False, True]])
def test_either_half_may_land_first(kind, halves):
    found(lambda tape: Moving(kind, tape).halves() == halves)


def test_a_copy_is_cut_anywhere():
    # One step of it, a cut one, not read early, with one cut, which is there.
    landed = [Moving("copy", ONE_STEP + bytes([1, 0, 0, where])).landed() for where in range(63)]
    assert [list(np.flatnonzero(each)) for each in landed] == [list(range(cut)) for cut in range(1, 64)]


def test_a_row_and_a_copy_of_a_batch_are_cut_too():
    for kind in ("rows", "batch"):
        found(lambda tape, kind=kind: Moving(kind, tape).landed().sum() % 16)


def test_two_copies_of_a_batch_are_under_way_at_once():
    def both(tape):
        rows = Moving("batch", tape).landed().reshape(4, 16)
        return sum(row.any() and not row.all() for row in rows) >= 2

    found(both)


@pytest.mark.parametrize("kind", ["copy", "batch"])
@pytest.mark.parametrize("came", [{OLD}, {NEW}, {OLD, NEW}], ids=["early", "late", "both"])
def test_a_source_changed_under_way_is_read_before_or_after_it(kind, came):
    def arrived(tape):
        moving = Moving(kind, tape)
        over = moving.landed().all()
        moving.source[:] = NEW
        moving.driver.event_synchronize(moving.event)
        return set(moving.target.tolist()) == came and not over

    found(arrived)


@pytest.mark.parametrize("kind", KINDS)
@given(tape=TAPES)
def test_an_event_that_is_done_or_waited_for_says_that_all_of_it_has_landed(kind, tape):
    moving = Moving(kind, tape)
    for _ in range(20):
        if moving.driver.event_done(moving.event):
            assert moving.landed().all()
    moving.driver.event_synchronize(moving.event)
    assert (moving.target == OLD).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tape", [LAZY, ONE_STEP, b"\1\0\1\0"])
def test_the_simplest_choice_is_one_go(kind, tape):
    assert not Moving(kind, tape).torn()


@pytest.mark.parametrize("kind", KINDS)
def test_what_alone_can_go_on_is_not_cut(kind, monkeypatch):
    moving = Moving(kind, LAZY)
    monkeypatch.setattr(Choices, "cuts", lambda _: pytest.fail("it was asked whether to cut"))
    moving.driver.event_synchronize(moving.event)


def test_some_seeds_cut_and_some_never_do():
    def ever_torn(seed):
        bench, torn = Bench(None, seed), False
        device = bench.bytes_at(bench.device)
        with bench.driver.activate(0):
            stream = bench.driver.stream_create()
            for value in range(60):
                bench.driver.synchronize()
                bench.bytes_at(bench.host)[:] = value
                bench.copy(bench.device, bench.host, 256, stream)
                torn |= len(np.unique(device)) > 1
        return torn

    assert any(ever_torn(seed) for seed in range(40))
    cutting = [any(choices.cuts() for _ in range(300)) for choices in (Choices(seed, None) for seed in range(40))]
    assert 5 < cutting.count(False) < 35


# ---- kernels ----


def steps_of(driver: SimulatedDriver, name: str, order: list[str]):
    def function():
        for step in range(3):
            order.append(f"{name}{step}")
            yield

    with driver.activate(0):
        stream = driver.stream_create()
        driver.launch(stream, function)
        driver.launch(stream, lambda: order.append(f"{name} after"))
    return stream


def interleaved(tape: bytes) -> list[str]:
    driver, order = SimulatedDriver(schedule=tape), []
    for name in "ab":
        steps_of(driver, name, order)
    driver.synchronize_all()
    return order


def test_steps_of_launched_functions_interleave():
    found(lambda tape: interleaved(tape)[:4] == ["a0", "b0", "b1", "a1"])


@given(TAPES)
def test_a_stream_keeps_the_order_of_its_steps(tape):
    order = interleaved(tape)
    for name in "ab":
        mine = [step for step in order if step.startswith(name)]
        assert mine == [f"{name}0", f"{name}1", f"{name}2", f"{name} after"]


def test_an_empty_tape_does_a_function_s_steps_without_a_break():
    assert interleaved(LAZY) == ["a0", "a1", "a2", "a after", "b0", "b1", "b2", "b after"]


@given(TAPES)
def test_a_step_that_fails_is_the_last_and_is_told_as_any_failure(tape):
    driver, ran = SimulatedDriver(schedule=tape), []

    def fails():
        ran.append(1)
        yield
        raise LookupError("in the midst")
        yield ran.append(2)

    with driver.activate(0):
        stream = driver.stream_create()
        driver.launch(stream, fails)
        driver.launch(stream, lambda: ran.append(3))
        with pytest.raises(LookupError, match="midst"):
            driver.stream_synchronize(stream)
        driver.stream_synchronize(stream)
    assert ran == [1, 3]


def test_a_launched_function_s_rest_is_let_go_with_its_stream():
    driver, order = SimulatedDriver(schedule=ONE_STEP), []
    steps_of(driver, "a", order)
    assert order == ["a0"]
    driver.synchronize_all()
    assert order[-1] == "a after"


class Swapping:
    """A swap out of eight blocks by one kernel."""

    def __init__(self, tape: bytes | None, seed: int = 0):
        self.simulated = SimulatedDevice(seed, tape)
        self.device = DeviceCache.allocate(self.simulated.driver, blocks=8, block_bytes=[16, 16])
        self.host = HostCache.allocate(self.device, blocks=8)
        for side, value in ((self.device, OLD), (self.host, NEW)):
            for layer in side.layers:
                np.asarray(LayerBytes(layer))[:] = value
        swapper = Swapper(self.device, self.host, transport="kernel")
        self.transfer = swapper.swap_out([0, 2, 4, 6, 1, 3, 5, 7], list(range(8)), self.simulated.stream())

    def landed(self):
        return np.concatenate([np.asarray(LayerBytes(layer)) == OLD for layer in self.host.layers])


def test_a_kernel_lands_in_part_and_its_later_workers_may_be_the_first():
    def torn_from_the_end(tape):
        landed = Swapping(tape).landed()
        return landed[7].all() and not landed[0].any()

    swapping = Swapping(found(torn_from_the_end))
    swapping.transfer.wait()
    assert swapping.landed().all()


@given(TAPES)
def test_a_kernel_that_is_done_has_landed(tape):
    swapping = Swapping(tape)
    for _ in range(8):
        if swapping.transfer.done():
            assert swapping.landed().all()
    swapping.transfer.wait()
    assert swapping.landed().all()


# ---- memory freed between two steps ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["target", "source"])
def test_memory_freed_between_two_steps_is_found(kind, side, monkeypatch):
    moving = Moving(kind, found(lambda tape: Moving(kind, tape).torn()))
    monkeypatch.setattr(Choices, "goes_on", lambda _: False)  # nor is it finished before it is freed
    driver, target = moving.driver, moving.target.copy()
    if side == "target":
        driver.device_free(moving.bench.device)
    else:
        driver.host_free(moving.bench.host)
    with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*freed before the copy was done"):
        driver.event_synchronize(moving.event)
    expected = np.full(64, FREED_BYTE) if side == "target" else target
    np.testing.assert_array_equal(moving.target, expected)


def test_memory_freed_between_two_steps_of_a_kernel_is_found(monkeypatch):
    swapping = Swapping(found(lambda tape: 0 < Swapping(tape).landed().mean() < 1))
    monkeypatch.setattr(Choices, "goes_on", lambda _: False)
    driver = swapping.simulated.driver
    driver.host_free(swapping.host.layers[0].address)
    with pytest.raises(KVSwapDriverError, match=r"cuLaunchKernel failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        swapping.transfer.wait()


# ---- batches and the order in which their sources are read ----


def batch_after_a_change(order: int, tape: bytes) -> set[int]:
    """What a batch brings whose source is changed, by its stream, before it and, by the host, after its submission."""
    bench = Bench(tape)
    driver, source = bench.driver, bench.bytes_at(bench.host)
    source[:] = OLD
    with driver.activate(0):
        stream = driver.stream_create()
        latch = driver.latch(stream)
        assert bench.batch([(bench.device + i, bench.host + i, 8) for i in (0, 8)], stream, order) == 0
        source[:] = NEW
        latch.open()
        driver.stream_synchronize(stream)
    return set(bench.bytes_at(bench.device)[:16].tolist())


@given(TAPES)
def test_a_batch_reads_its_sources_in_the_stream_s_order_or_while_it_is_submitted(tape):
    assert batch_after_a_change(1, tape) == {NEW}
    assert batch_after_a_change(2, tape) == {OLD}


@pytest.mark.parametrize("came", [OLD, NEW])
def test_a_batch_whose_source_access_order_is_any_reads_them_sooner_or_later(came):
    found(lambda tape: batch_after_a_change(3, tape) == {came})


def test_what_a_batch_has_read_may_be_freed():
    bench = Bench(LAZY)
    with bench.driver.activate(0):
        stream = bench.driver.stream_create()
        bench.bytes_at(bench.host)[:] = OLD
        bench.batch([(bench.device, bench.host, 8)], stream, 2)
        bench.driver.host_free(bench.host)
        bench.driver.stream_synchronize(stream)
        assert (bench.bytes_at(bench.device)[:8] == OLD).all()


# ---- fences ----


@pytest.mark.parametrize("first", ["legacy", "blocking"])
@given(tape=TAPES)
def test_the_legacy_stream_and_a_blocking_one_come_in_between_no_steps_of_each_other(first, tape):
    driver, order = SimulatedDriver(schedule=tape), []

    def three(name):
        for step in range(3):
            order.append(f"{name}{step}")
            yield

    with driver.activate(0):
        streams = {"legacy": 0, "blocking": driver.stream_create_blocking()}
        names = [first, *(name for name in streams if name != first), first]
        for turn, name in enumerate(names):
            driver.launch(streams[name], lambda text=f"{turn}": three(text))
        driver.synchronize()
    assert order == [f"{turn}{step}" for turn in range(3) for step in range(3)]


@given(TAPES)
def test_work_behind_an_event_starts_after_the_last_step(tape):
    driver, order = SimulatedDriver(schedule=tape), []
    with driver.activate(0):
        one, event, other = driver.stream_create(), driver.event_create(), driver.stream_create()

        def three():
            for step in range(3):
                order.append(step)
                yield

        driver.launch(one, three)
        driver.event_record(event, one)
        driver.stream_wait_event(other, event)
        driver.launch(one, lambda: None)
        driver.event_record(event, one)  # again, while it is waited for
        driver.event_destroy(event)
        driver.stream_destroy(one)
        driver.launch(other, lambda: order.append("other"))
        driver.stream_synchronize(other)
    assert order == [0, 1, 2, "other"]


# ---- one seed, one run ----


def a_run(seed: int, tape: bytes | None) -> list[bytes]:
    """All bytes after every call of a busy program, and the order in which its functions' steps ran."""
    bench, seen = Bench(tape, seed, devices=2), []
    driver, order = bench.driver, []
    memory = [bench.bytes_at(at) for at in (bench.device, bench.host)]
    memory[1][:] = np.arange(256)
    with driver.activate(0):
        streams, event = [driver.stream_create() for _ in range(3)], driver.event_create()
        for turn in range(6):
            for number, stream in enumerate(streams):
                at, source = 48 * number, bench.host + 48 * number + turn
                calls = [
                    lambda at=at, source=source, stream=stream: bench.copy(bench.device + at, source, 40, stream),
                    lambda stream=stream: bench.rows(stream=stream),
                    lambda at=at, stream=stream: bench.batch(
                        [(bench.host + at + i, bench.device + 8 + at + i, 5) for i in (0, 7, 14)], stream, 3
                    ),
                    lambda number=number, stream=stream: driver.launch(
                        stream, lambda: (order.append(number) for _ in range(3))
                    ),
                    lambda stream=stream: driver.event_record(event, stream),
                    lambda number=number: driver.stream_wait_event(streams[number - 1], event),
                ]
                calls[(turn + number) % len(calls)]()
                seen.append(b"".join(each.tobytes() for each in memory) + bytes(order))
        driver.stream_synchronize(streams[1])
        seen.append(bytes(order))
        driver.synchronize()
    return [*seen, *(each.tobytes() for each in memory), bytes(order)]


def test_a_seed_replays_a_run_and_seeds_differ():
    runs = [a_run(seed, None) for seed in range(20)]
    assert runs == [a_run(seed, None) for seed in range(20)]
    assert len({tuple(run) for run in runs}) > 10


@given(TAPES)
def test_a_tape_replays_a_run(tape):
    assert a_run(0, tape) == a_run(1, tape)


# ---- the pieces themselves ----


@given(st.integers(2, 100_000), TAPES)
def test_stretches_are_all_of_it_in_their_order(count, tape):
    stretches = stretches_of(count, Choices(0, tape).below)
    assert 2 <= len(stretches) <= 3
    assert stretches[0][0] == 0 and stretches[-1][1] == count
    assert all(first < end for first, end in stretches)
    assert all(one[1] == other[0] for one, other in pairwise(stretches))


@pytest.mark.parametrize("end", [1, 99_999])
def test_a_byte_of_a_tape_reaches_both_ends_of_a_long_stretch(end):
    assert any(stretches_of(100_000, Choices(0, bytes([0, byte])).below)[0][1] == end for byte in range(256))


@given(st.integers(1, 40), TAPES)
def test_steps_do_every_piece_once_and_check_each_time_that_others_may_have_come(count, tape):
    done = []
    pieces = [lambda number=number: done.append(number) for number in range(count)]
    breaks = 0
    for _ in in_steps(pieces, Choices(0, tape).below, lambda: done.append("check")):
        breaks += 1
    assert sorted(each for each in done if each != "check") == list(range(count))
    assert done.count("check") == breaks + 1 <= 8
    assert done[0] == "check"
    assert (breaks == 0) == (count == 1)


def test_the_simplest_order_is_their_own():
    assert list(in_drawn_order("abcd", Choices(0, LAZY).below)) == list("abcd")
    assert next(in_drawn_order("abcd", Choices(0, b"\3").below)) == "d"


def test_a_driver_dropped_in_the_midst_of_an_operation_is_collected():
    import weakref

    moving = Moving("copy", found(lambda tape: Moving("copy", tape).torn()))
    gone = weakref.ref(moving.driver)
    del moving
    gc.collect()
    assert gone() is None


def test_an_eager_tape_still_does_everything_at_once():
    assert Moving("batch", EAGER).landed().all()
