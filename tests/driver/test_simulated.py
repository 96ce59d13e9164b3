"""The simulated driver: it does what CUDA's ordering rules allow, all of it, and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading

import numpy as np
import pytest
from driver_bench import EAGER, LAZY, WORD, Bench
from hypothesis import find, given, settings
from hypothesis import strategies as st

from numba_kvswap.driver import KVSwapDriverError, PointerInfo, SimulatedDriver, SimulatedHang
from numba_kvswap.driver.simulated import CALLS
from numba_kvswap.driver.simulated_memory import ALIGNMENT_BYTES, FREED_BYTE, NEW_BYTE

TAPES = st.binary(max_size=40)


@pytest.fixture
def bench():
    bench = Bench()
    with bench.driver.activate(0):
        yield bench


# ---- order ----


def run_two(tape: bytes, *, fence: bool) -> str:
    """What two streams append to one list; with a fence, b's work comes after a's."""
    driver = SimulatedDriver(schedule=tape)
    order: list[str] = []
    with driver.activate(0):
        a, b, event = driver.stream_create(), driver.stream_create(), driver.event_create()
        driver.launch(a, lambda: order.append("a"))
        if fence:
            driver.event_record(event, a)
            driver.stream_wait_event(b, event)
        driver.launch(b, lambda: order.append("b"))
        driver.stream_synchronize(b)  # a lazy schedule would now run b alone, if nothing held it back
        driver.synchronize()
    return "".join(order)


@pytest.mark.parametrize("wanted", ["ab", "ba"])
def test_streams_without_a_fence_come_in_both_orders(wanted):
    find(TAPES, lambda tape: run_two(tape, fence=False) == wanted)


@given(TAPES)
def test_an_event_is_never_passed(tape):
    assert run_two(tape, fence=True) == "ab"


def interleaving(tape: bytes) -> str:
    driver = SimulatedDriver(schedule=tape)
    order: list[str] = []
    with driver.activate(0):
        streams = [driver.stream_create(), driver.stream_create()]
        for step in range(3):
            for stream, letter in zip(streams, "ab", strict=True):
                driver.launch(stream, lambda text=f"{letter}{step}": order.append(text))
        driver.synchronize()
    return " ".join(order)


@given(TAPES)
def test_a_stream_keeps_its_order(tape):
    order = interleaving(tape).split()
    assert [step for step in order if step[0] == "a"] == ["a0", "a1", "a2"]
    assert [step for step in order if step[0] == "b"] == ["b0", "b1", "b2"]


@pytest.mark.parametrize(
    ("tape", "order"),
    [
        (LAZY, "a0 a1 a2 b0 b1 b2"),
        (b"\0" * 12 + b"\1" * 3, "b0 b1 b2 a0 a1 a2"),
        (EAGER, "a0 b0 a1 b1 a2 b2"),
    ],
)
def test_the_extreme_interleavings_are_in_reach(tape, order):
    assert interleaving(tape) == order


def test_an_empty_tape_runs_nothing_until_somebody_waits_and_then_only_what_is_waited_for(bench):
    driver, ran = bench.driver, []
    a, b = driver.stream_create(), driver.stream_create()
    driver.launch(a, lambda: ran.append("a"))
    driver.launch(b, lambda: ran.append("b"))
    assert ran == []
    driver.stream_synchronize(b)
    assert ran == ["b"]
    driver.stream_synchronize(a)
    assert ran == ["b", "a"]


def test_an_eager_tape_runs_work_at_once():
    bench = Bench(EAGER)
    ran = []
    with bench.driver.activate(0):
        bench.driver.launch(bench.driver.stream_create(), lambda: ran.append("a"))
    assert ran == ["a"]


def legacy_order(tape: bytes, first: str, second: str) -> str:
    """Names of two pieces of work in the order they ran: "L"egacy, "B"locking, "N"on-blocking, "T"hread."""
    driver = SimulatedDriver(schedule=tape)
    order: list[str] = []
    with driver.activate(0):
        handles = {"L": 0, "B": driver.stream_create_blocking(), "N": driver.stream_create(), "T": 2}
        for name in (first, second):
            driver.launch(handles[name], lambda name=name: order.append(name))
        driver.synchronize()
    return "".join(order)


@pytest.mark.parametrize("pair", ["LB", "BL", "LT", "TL"])
@given(tape=TAPES)
def test_blocking_streams_and_the_legacy_stream_keep_the_order_of_submission(pair, tape):
    assert legacy_order(tape, *pair) == pair


@pytest.mark.parametrize("pair", ["LN", "NL", "BN", "BT"])
def test_other_pairs_may_change_places(pair):
    find(TAPES, lambda tape: legacy_order(tape, *pair) == pair[::-1])


def test_the_handle_1_is_the_legacy_stream(bench):
    bench.driver.launch(1, lambda: None)
    ran = []
    bench.driver.launch(0, lambda: ran.append(1))
    bench.driver.stream_synchronize(1)
    assert ran == [1]


def test_the_legacy_stream_waits_for_a_destroyed_blocking_stream(bench):
    driver, order = bench.driver, []
    blocking = driver.stream_create_blocking()
    driver.launch(blocking, lambda: order.append("blocking"))
    driver.stream_destroy(blocking)
    driver.launch(0, lambda: order.append("legacy"))
    driver.stream_synchronize(0)
    assert order == ["blocking", "legacy"]


def test_devices_have_legacy_streams_of_their_own():
    driver = SimulatedDriver(schedule=LAZY, devices=2)
    ran = []
    for device in (0, 1):
        with driver.activate(device):
            driver.launch(0, lambda device=device: ran.append(device))
    with driver.activate(1):
        driver.stream_synchronize(0)
    assert ran == [1]


def two_devices(schedule: bytes = LAZY):
    """A driver, and a stream of each of its two devices."""
    driver, streams = SimulatedDriver(schedule=schedule, devices=2), []
    for device in (0, 1):
        with driver.activate(device):
            streams.append(driver.stream_create())
    return driver, streams


def test_synchronize_waits_for_the_current_device_alone():
    driver, streams = two_devices()
    ran = []
    for stream in streams:
        driver.launch(stream, lambda stream=stream: ran.append(stream))
    with driver.activate(1):
        driver.synchronize()
        assert ran == streams[1:]
        driver.synchronize_all()
    assert ran == streams[::-1]


@pytest.mark.parametrize("comes_after", [False, True])
def test_a_failure_is_told_to_the_devices_whose_work_it_is_or_came_before(comes_after):
    driver, streams = two_devices()
    with driver.activate(0):
        event = driver.event_create()
        driver.launch(streams[0], lambda: 1 / 0)
        driver.event_record(event, streams[0])
    if comes_after:
        driver.stream_wait_event(streams[1], event)
    driver.launch(streams[1], lambda: None)
    for device, told in ((1, comes_after), (0, not comes_after)):
        with driver.activate(device), pytest.raises(ZeroDivisionError) if told else contextlib.nullcontext():
            driver.synchronize()


@given(TAPES)
def test_a_stream_waits_for_an_event_of_another_device(tape):
    driver, streams = two_devices(tape)
    order = []
    with driver.activate(0):
        event = driver.event_create()
        driver.launch(streams[0], lambda: order.append(0))
        driver.event_record(event, streams[0])
    with driver.activate(1):
        driver.stream_wait_event(streams[1], event)
        driver.launch(streams[1], lambda: order.append(1))
        driver.synchronize()
    assert order == [0, 1]


def launch_kernel(driver, kernel, stream: int) -> int:
    entry_point = ctypes.CFUNCTYPE(ctypes.c_int32, *[WORD] * 11)(driver.entry_points.launch_kernel)
    value = np.array([5], np.uint64)
    places = np.array([value.ctypes.data], np.uint64)
    return entry_point(kernel, 1, 1, 1, 32, 1, 1, 0, stream, places.ctypes.data, 0)


def test_a_kernel_on_another_device_s_stream_is_refused():
    driver, streams = two_devices()
    ran = []
    kernel = driver.add_kernel(lambda values, blocks, threads: ran.append((values, blocks, threads)), 1)
    with driver.activate(0):
        assert launch_kernel(driver, kernel, streams[1]) == 400
        assert "activate its device" in driver.last_refusal
        assert launch_kernel(driver, kernel, streams[0]) == 0
    driver.synchronize_all()
    assert ran == [([5], 1, 32)]


def test_a_kernel_does_not_reach_another_device_s_memory():
    driver, streams = two_devices()
    with driver.activate(1):
        device, host = driver.device_alloc(8), driver.host_alloc(8)
    for stream, address, reached in ((0, device, False), (1, device, True), (0, host, True)):
        driver.launch(streams[stream], lambda address=address: driver.refuse_untouchable(address, 8))
        if reached:
            driver.synchronize_all()
        else:
            with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*mapped where it runs"):
                driver.synchronize_all()


# ---- events ----


def test_a_wait_takes_the_record_of_its_own_time(bench):
    """Recorded again later, the event does not hold back those who waited before."""
    driver, ran = bench.driver, []
    a, b, event = driver.stream_create(), driver.stream_create(), driver.event_create()
    driver.event_record(event, a)
    driver.stream_wait_event(b, event)
    latch = driver.latch(a)
    driver.event_record(event, a)
    driver.launch(b, lambda: ran.append("b"))
    driver.stream_synchronize(b)
    assert ran == ["b"]
    assert not driver.event_done(event)
    latch.open()
    driver.event_synchronize(event)
    assert driver.event_done(event)


def test_waiting_for_an_unrecorded_event_is_nothing(bench):
    driver = bench.driver
    event = driver.event_create()
    stream = driver.stream_create()
    driver.stream_wait_event(stream, event)
    driver.stream_synchronize(stream)
    driver.event_synchronize(event)
    assert driver.event_done(event)


def test_event_seconds(bench):
    driver = bench.driver
    start, end = driver.event_create(), driver.event_create()
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_HANDLE"):
        driver.event_seconds(start, end)
    driver.event_record(start, 0)
    driver.event_record(end, 0)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_NOT_READY"):
        driver.event_seconds(start, end)
    driver.event_synchronize(end)
    assert 0 <= driver.event_seconds(start, end) < 10


def test_seconds_of_events_that_are_not_timed_or_of_two_devices_are_refused():
    driver, streams = two_devices()
    events = []
    for device, timed in ((0, True), (0, False), (1, True)):
        with driver.activate(device):
            event = driver.event_create(timed=timed)
            driver.event_record(event, streams[device])
            driver.event_synchronize(event)
            events.append(event)
    assert driver.event_seconds(events[0], events[0]) == 0
    for other in events[1:]:
        with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_INVALID_HANDLE.*timed, and of one device"):
            driver.event_seconds(events[0], other)


def test_a_wait_with_flags_is_refused(bench):
    wait = ctypes.CFUNCTYPE(ctypes.c_int32, WORD, WORD, WORD)(bench.driver.entry_points.stream_wait_event)
    event = bench.driver.event_create()
    assert wait(0, event, 1) == 1
    assert wait(0, event, 0) == 0


def test_an_event_of_another_device_is_refused():
    driver = SimulatedDriver(schedule=LAZY, devices=2)
    with driver.activate(1):
        event = driver.event_create()
    with driver.activate(0), pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_HANDLE"):
        driver.event_record(event, driver.stream_create())


# ---- latches ----


def test_a_latch_holds_its_stream_and_no_other(bench):
    driver, ran = bench.driver, []
    a, b = driver.stream_create(), driver.stream_create()
    latch = driver.latch(a)
    driver.launch(a, lambda: ran.append("a"))
    driver.launch(b, lambda: ran.append("b"))
    driver.stream_synchronize(b)
    with pytest.raises(SimulatedHang, match=f"latch on stream {a:#x}"):
        driver.stream_synchronize(a)
    assert ran == ["b"] and not latch.is_open
    latch.open()
    latch.open()
    driver.stream_synchronize(a)
    assert ran == ["b", "a"]


def test_a_hang_behind_an_event_names_the_latch(bench):
    driver = bench.driver
    a, b, event = driver.stream_create(), driver.stream_create(), driver.event_create()
    driver.latch(a)
    driver.event_record(event, a)
    driver.stream_wait_event(b, event)
    with pytest.raises(SimulatedHang, match=f"{b:#x}.*latch on stream {a:#x}"):
        driver.stream_synchronize(b)
    with pytest.raises(SimulatedHang):
        driver.synchronize()


def test_a_latch_opened_by_another_thread():
    bench = Bench(hang_seconds=10)
    driver = bench.driver
    with driver.activate(0):
        stream = driver.stream_create()
        latch = driver.latch(stream)
        thread = threading.Timer(0.05, latch.open)
        thread.start()
        driver.stream_synchronize(stream)
    thread.join()


# ---- copies ----


@pytest.mark.parametrize("tape", [LAZY, EAGER])
def test_a_copy_moves_its_bytes_and_no_others(tape):
    bench = Bench(tape)
    with bench.driver.activate(0):
        bench.bytes_at(bench.host)[:] = np.arange(256)
        assert bench.copy(bench.device + 10, bench.host + 20, 30) == 0
        bench.driver.stream_synchronize(0)
    expected = np.full(256, NEW_BYTE, dtype=np.uint8)
    expected[10:40] = np.arange(20, 50)
    assert np.array_equal(bench.bytes_at(bench.device), expected)


def test_a_copy_reads_its_source_when_it_runs(bench):
    bench.copy(bench.device, bench.host, 256)
    bench.bytes_at(bench.host)[:] = 9
    bench.driver.stream_synchronize(0)
    assert (bench.bytes_at(bench.device) == 9).all()


@pytest.mark.parametrize(
    ("target", "source", "size"),
    [(0, 0, 257), (1, 0, 256), (0, 1, 256), (-1, 0, 1), (0, -1, 1), (256, 0, 1), (0, 0, 1 << 63)],
)
def test_a_copy_that_leaves_its_allocation_is_refused(bench, target, source, size):
    assert bench.copy(bench.device + target, bench.host + source, size) == 1
    assert bench.driver.last_refusal
    bench.driver.stream_synchronize(0)
    assert (bench.bytes_at(bench.device) == NEW_BYTE).all()


def test_pageable_memory_is_refused_in_an_asynchronous_copy_and_taken_by_copy_now(bench):
    array = np.arange(256, dtype=np.uint8)
    assert bench.copy(bench.device, array.ctypes.data, 256) == 1
    bench.driver.copy_now(bench.device, array.ctypes.data, 256)
    assert np.array_equal(bench.bytes_at(bench.device), array)
    with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
        bench.driver.copy_now(bench.device, 0, 256)
    with pytest.raises(KVSwapDriverError, match="1 bytes past"):
        bench.driver.copy_now(bench.device + 1, array.ctypes.data, 256)


def test_copies_of_nothing(bench):
    assert bench.copy(0, 0, 0) == 0
    assert bench.rows(width=0, tdevice=0) == 0
    assert bench.rows(rows=0, tdevice=0) == 0


def test_a_copy_on_an_unknown_or_destroyed_stream_is_refused(bench):
    assert bench.copy(bench.device, bench.host, 1, 12345) == 400
    stream = bench.driver.stream_create()
    bench.driver.stream_destroy(stream)
    assert bench.copy(bench.device, bench.host, 0, stream) == 400
    assert bench.rows(stream=stream) == 400


def test_rows_are_copied_and_the_gaps_left(bench):
    bench.bytes_at(bench.host)[:] = np.arange(256)
    assert bench.rows(sx=2, sy=1, spitch=20, tx=3, ty=2) == 0
    bench.driver.stream_synchronize(0)
    expected = np.full((8, 32), NEW_BYTE, dtype=np.uint8)
    for row in range(4):
        expected[2 + row, 3:19] = np.arange(16) + 22 + 20 * row
    assert np.array_equal(bench.bytes_at(bench.device), expected.ravel())


def test_rows_of_unified_memory_and_padding_after_the_type(bench):
    assert bench.rows(stype=4, sdevice=bench.host, shost=0, ttype=2 | 77 << 32) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"spitch": 15},
        {"tpitch": 15},
        {"sx": 1},
        {"rows": 9},
        {"ty": 5},
        {"tx": 17},
        {"stype": 3},
        {"ttype": 0},
        {"stype": 2, "tdevice": 0},
        {"tpitch": 1 << 31},
        {"tpitch": 64, "rows": 5},
    ],
)
def test_rows_that_do_not_fit_are_refused(bench, wrong):
    assert bench.rows(**wrong) == 1
    bench.driver.stream_synchronize(0)
    assert (bench.bytes_at(bench.device) == NEW_BYTE).all()


def test_the_memory_type_must_be_the_memory_s_own(bench):
    assert bench.rows(stype=2, sdevice=bench.host) == 1
    assert bench.rows(ttype=1, thost=bench.device) == 1
    assert "host memory given" in bench.driver.last_refusal or "device memory given" in bench.driver.last_refusal


def test_rows_over_two_allocations_are_refused():
    """Each row lies in live memory; the span from first to last does not lie in one allocation."""
    bench = Bench()
    driver = bench.driver
    with driver.activate(0):
        low, high = sorted([driver.device_alloc(64), driver.device_alloc(64)])
        assert bench.rows(tdevice=low, tpitch=high - low, rows=2) == 1


def test_the_pitch_limit_is_the_drivers():
    bench = Bench(pitch_bytes_max=31)
    with bench.driver.activate(0):
        assert bench.rows() == 1
        assert bench.rows(tpitch=31) == 0


def test_a_null_struct_is_refused(bench):
    assert bench._rows(0, 0) == 1


# ---- memory ----


def test_allocations_are_aligned_and_poisoned(bench):
    for address in (bench.device, bench.host):
        assert address % ALIGNMENT_BYTES == 0
        assert (bench.bytes_at(address) == NEW_BYTE).all()


def test_freed_memory_is_poisoned(bench):
    memory = bench.bytes_at(bench.device)
    bench.driver.device_free(bench.device)
    assert (memory == FREED_BYTE).all()


def test_pointer_info(bench):
    driver = bench.driver
    at = bench.device + 255
    assert driver.pointer_info(at) == PointerInfo("device", bench.device, 256, 0, at)
    assert driver.pointer_info(bench.host) == PointerInfo("host", bench.host, 256, 0, bench.host)
    driver.allocation_at(bench.host).mapped = False
    assert driver.pointer_info(bench.host) == PointerInfo("host", bench.host, 256, 0, 0)
    for address in (0, bench.device + 256, np.zeros(1).ctypes.data):
        assert driver.pointer_info(address) == PointerInfo("unknown", 0, 0, -1)
    driver.device_free(bench.device)
    assert driver.pointer_info(bench.device).kind == "unknown"


def test_what_is_no_allocation_cannot_be_freed(bench):
    driver = bench.driver
    for free, address in [
        (driver.device_free, bench.host),
        (driver.host_free, bench.device),
        (driver.device_free, bench.device + 1),
        (driver.device_free, 0),
    ]:
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
            free(address)
    driver.device_free(bench.device)
    with pytest.raises(KVSwapDriverError, match="freed already"):
        driver.device_free(bench.device)


def test_memory_comes_to_an_end():
    driver = SimulatedDriver(memory_bytes_max=1000)
    with driver.activate(0):
        first = driver.device_alloc(600)
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            driver.device_alloc(600)
        driver.host_alloc(1000)
        driver.device_free(first)
        driver.device_alloc(600)
    with driver.activate(0), pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_VALUE"):
        driver.host_alloc(0)


def test_a_copy_of_memory_freed_meanwhile_touches_nothing_and_is_reported_once(bench):
    driver = bench.driver
    stream = driver.stream_create()
    freed = bench.bytes_at(bench.device)
    assert bench.copy(bench.device, bench.host, 256, stream) == 0
    driver.device_free(bench.device)
    with pytest.raises(KVSwapDriverError, match="cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        driver.stream_synchronize(stream)
    assert (freed == FREED_BYTE).all()
    driver.stream_synchronize(stream)
    driver.synchronize()


def test_rows_of_memory_freed_meanwhile_touch_nothing(bench):
    driver = bench.driver
    target = bench.bytes_at(bench.device)
    assert bench.rows() == 0
    driver.host_free(bench.host)
    with pytest.raises(KVSwapDriverError, match="cuMemcpy2DAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
        driver.stream_synchronize(0)
    assert (target == NEW_BYTE).all()


def test_an_allocation_met_before_is_not_trusted_after_it_was_freed(bench):
    assert bench.copy(bench.device, bench.host, 256) == 0
    bench.driver.synchronize()
    bench.driver.device_free(bench.device)
    assert bench.copy(bench.device, bench.host, 256) == 1
    bench.driver.host_free(bench.host)
    assert bench.copy(bench.host, bench.host, 256) == 1


# ---- failures of queued work ----


@given(TAPES)
def test_a_failure_is_told_to_those_who_come_after_it_and_to_nobody_else(tape):
    driver = SimulatedDriver(schedule=tape)
    with driver.activate(0):
        a, b, c = (driver.stream_create() for _ in range(3))
        before, after = driver.event_create(), driver.event_create()
        driver.event_record(before, a)
        driver.launch(a, lambda: 1 / 0)
        driver.event_record(after, a)
        driver.stream_wait_event(b, after)
        driver.launch(c, lambda: None)
        driver.event_synchronize(before)
        driver.stream_synchronize(c)
        with pytest.raises(ZeroDivisionError):
            driver.stream_synchronize(b)
        for ask in (driver.event_synchronize, driver.event_done):
            with pytest.raises(ZeroDivisionError):
                ask(after)  # an event's failure is for whoever asks about the event
        driver.stream_synchronize(a)
        driver.synchronize()
        driver.event_record(after, a)
        driver.event_synchronize(after)


def test_a_query_of_a_failed_event_tells_it(bench):
    driver = bench.driver
    event, stream = driver.event_create(), driver.stream_create()
    driver.launch(stream, lambda: 1 / 0)
    driver.event_record(event, stream)
    driver.launch(0, lambda: None)
    assert not driver.event_done(event)
    for ask in (lambda: driver.stream_synchronize(stream), lambda: driver.event_done(event)):
        with pytest.raises(ZeroDivisionError):
            ask()
    driver.stream_synchronize(stream)


def test_two_failures_are_told_one_by_one(bench):
    driver = bench.driver
    for error in (KeyError, OSError):
        driver.launch(0, lambda error=error: (_ for _ in ()).throw(error()))
    with pytest.raises(KeyError):
        driver.synchronize()
    with pytest.raises(OSError):
        driver.synchronize()
    driver.synchronize()


def test_a_launched_function_may_not_synchronize(bench):
    bench.driver.launch(0, bench.driver.synchronize)
    bench.driver.launch(0, lambda: None)
    with pytest.raises(RuntimeError, match="itself work"):
        bench.driver.stream_synchronize(0)


def test_a_launched_function_may_call_the_driver_and_starts_no_other_work():
    bench = Bench(EAGER)
    driver, steps = bench.driver, []
    with driver.activate(0):
        a, b = driver.stream_create(), driver.stream_create()
        latch = driver.latch(a)
        driver.launch(a, lambda: steps.extend(["in", driver.event_create() and "out"]))
        driver.launch(a, lambda: steps.append("next"))
        driver.stream_synchronize(b)
        latch.open()
        driver.synchronize()
    assert steps == ["in", "out", "next"]


def test_an_exception_in_a_callback_comes_back_at_the_next_verb(bench, monkeypatch):
    def broken(*_):
        raise LookupError("planted")

    monkeypatch.setattr(bench.driver, "_put", broken)
    assert bench.copy(bench.device, bench.host, 1) == 999
    with pytest.raises(LookupError, match="planted"):
        bench.driver.event_create()
    bench.driver.event_create()


# ---- faults on order ----


@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("cuMemcpy") or name == "cuMemcpy"])
def test_every_verb_can_be_told_to_fail(bench, name):
    driver = bench.driver
    stream, start, end = driver.stream_create(), driver.event_create(), driver.event_create()
    for event in (start, end):
        driver.event_record(event, 0)
        driver.event_synchronize(event)

    registered, more = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    driver.host_register(registered.ctypes.data, 64)

    def activate():
        with driver.activate(0):
            pass

    verbs = {
        "cuCtxGetDevice": driver.current_device,
        "cuCtxSetCurrent": activate,
        "cuCtxSynchronize": driver.synchronize,
        "cuEventCreate": driver.event_create,
        "cuEventDestroy": lambda: driver.event_destroy(start),
        "cuEventElapsedTime": lambda: driver.event_seconds(start, end),
        "cuEventQuery": lambda: driver.event_done(start),
        "cuEventRecord": lambda: driver.event_record(start, stream),
        "cuEventSynchronize": lambda: driver.event_synchronize(start),
        "cuLaunchKernel": lambda: driver.launch(stream, lambda: None),
        "cuMemAlloc": lambda: driver.device_alloc(1),
        "cuMemFree": lambda: driver.device_free(bench.device),
        "cuMemFreeHost": lambda: driver.host_free(bench.host),
        "cuMemHostAlloc": lambda: driver.host_alloc(1),
        "cuMemHostRegister": lambda: driver.host_register(more.ctypes.data, 64),
        "cuMemHostUnregister": lambda: driver.host_unregister(registered.ctypes.data),
        "cuMemcpy": lambda: driver.copy_now(bench.device, bench.host, 1),
        "cuPointerGetAttributes": lambda: driver.pointer_info(bench.device),
        "cuStreamCreate": driver.stream_create,
        "cuStreamDestroy": lambda: driver.stream_destroy(stream),
        "cuStreamSynchronize": lambda: driver.stream_synchronize(stream),
        "cuStreamWaitEvent": lambda: driver.stream_wait_event(stream, start),
    }
    live = (driver.live_allocations(), driver.live_events(), driver.live_streams())
    used = driver.calls[name]
    driver.fail(name, status=719)
    with pytest.raises(KVSwapDriverError) as caught:
        verbs[name]()
    assert (caught.value.call, caught.value.result_name) == (name, "CUDA_ERROR_LAUNCH_FAILED")
    assert (driver.live_allocations(), driver.live_events(), driver.live_streams()) == live
    verbs[name]()
    assert driver.calls[name] == used + 2


def test_the_call_to_fail_is_counted_from_now(bench):
    assert bench.copy(bench.device, bench.host, 1) == 0
    bench.driver.fail("cuMemcpyAsync", at=2, times=2, status=719)
    assert [bench.copy(bench.device, bench.host, 1) for _ in range(6)] == [0, 0, 719, 719, 0, 0]
    bench.driver.fail("cuMemcpy2DAsync", times=None, status=1)
    assert [bench.rows() for _ in range(3)] == [1, 1, 1]


def test_a_failed_copy_moves_nothing(bench):
    bench.driver.fail("cuMemcpyAsync")
    assert bench.copy(bench.device, bench.host, 256) == 999
    bench.bytes_at(bench.host)[:] = 1
    bench.driver.synchronize()
    assert (bench.bytes_at(bench.device) == NEW_BYTE).all()


@pytest.mark.parametrize("wrong", [{"call": "cuMemcpyAsink"}, {"at": -1}, {"times": -1}, {"status": 0}])
def test_faults_that_make_no_sense_are_refused(bench, wrong):
    with pytest.raises(ValueError):
        bench.driver.fail(**({"call": "cuMemcpyAsync"} | wrong))


# ---- faults by chance ----


def faults_of(seed: int, rate: float, schedule: bytes | None = None) -> tuple[str, list[str]]:
    """Which of 200 records failed, as a word of 0s and 1s, and the order in which three streams' work ran."""
    driver, order = SimulatedDriver(seed, schedule), []
    with driver.activate(0):
        streams, event = [driver.stream_create() for _ in range(3)], driver.event_create()
        driver.fault_rate = rate
        failed = ""
        for turn in range(200):
            try:
                driver.event_record(event, streams[turn % 3])
                failed += "0"
            except KVSwapDriverError as error:
                assert (error.call, error.result_name) == ("cuEventRecord", "CUDA_ERROR_UNKNOWN")
                failed += "1"
        assert driver.faults["cuEventRecord"] == failed.count("1")
        driver.fault_rate = 0.0
        for stream in streams:
            for step in range(4):
                driver.launch(stream, lambda stream=stream, step=step: order.append((stream, step)))
        driver.synchronize()
    return failed, order


def test_faults_by_chance_come_at_their_rate_and_a_seed_brings_them_again():
    failed = [faults_of(seed, 0.25)[0] for seed in range(10)]
    assert failed == [faults_of(seed, 0.25)[0] for seed in range(10)]
    assert len(set(failed)) == 10
    assert 350 < "".join(failed).count("1") < 650  # 500 of 2,000 expected, give or take 8 standard deviations
    assert faults_of(0, 1.0)[0] == "1" * 200
    assert faults_of(0, 0.0)[0] == "0" * 200


def test_a_rate_too_low_to_bring_a_fault_leaves_the_order_as_it_is():
    assert all(faults_of(seed, 0.0) == faults_of(seed, 1e-12) for seed in range(12))


def test_every_use_of_a_call_may_fail_by_chance_entry_points_too(bench):
    bench.driver.fault_rate = 1.0
    with pytest.raises(KVSwapDriverError, match="cuMemAlloc failed with CUDA_ERROR_UNKNOWN"):
        bench.driver.device_alloc(1)
    assert bench.copy(bench.device, bench.host, 1) == 999
    assert bench.batch([(bench.device, bench.host, 1)], 2) == 999
    assert set(bench.driver.faults.items()) == {("cuMemAlloc", 1), ("cuMemcpyAsync", 1), ("cuMemcpyBatchAsync", 1)}


def test_what_was_told_to_fail_is_among_the_faults(bench):
    bench.driver.fail("cuMemcpyAsync", at=1, times=2, status=719)
    assert [bench.copy(bench.device, bench.host, 1) for _ in range(4)] == [0, 719, 719, 0]
    assert bench.driver.faults == {"cuMemcpyAsync": 2}


def test_what_finalizers_give_back_may_fail_by_chance_too_and_is_given_back_later(bench):
    driver = bench.driver
    stream, event = driver.stream_create(), driver.event_create()
    driver.fault_rate = 1.0
    driver.discard_event(event)
    driver.discard_stream(stream)
    driver.discard_allocation(bench.device)
    assert (driver.live_allocations(), driver.live_events(), driver.live_streams()) == (2, 1, 1)
    assert driver.faults == {"cuEventDestroy": 1, "cuStreamDestroy": 1, "cuMemFree": 1}
    driver.fault_rate = 0.0
    assert driver.not_freed() == ()
    assert (driver.live_allocations(), driver.live_events(), driver.live_streams()) == (1, 0, 0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_fault_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(ValueError, match="expected a probability"):
        SimulatedDriver(fault_rate=rate)


# ---- contexts and handles ----


def test_what_needs_a_context_says_so():
    bench = Bench()
    driver = bench.driver
    assert driver.current_device() is None
    alloc, pin = (lambda: driver.device_alloc(1)), (lambda: driver.host_alloc(1))
    for verb in (alloc, pin, driver.event_create, driver.stream_create):
        with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_INVALID_CONTEXT.*activate"):
            verb()
    assert bench.copy(bench.device, bench.host, 1) == 201
    assert bench.rows() == 201


def test_activate_nests_restores_and_is_a_threads_own():
    driver = SimulatedDriver(devices=2)
    with driver.activate(1):
        with pytest.raises(ZeroDivisionError), driver.activate(0):
            raise ZeroDivisionError
        assert driver.current_device() == 1
        seen = []
        thread = threading.Thread(target=lambda: seen.append(driver.current_device()))
        thread.start()
        thread.join()
        assert seen == [None]
        assert driver.pointer_info(driver.device_alloc(1)).device == 1
    assert driver.current_device() is None


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_a_device_that_is_not_there(ordinal):
    driver = SimulatedDriver(devices=2)
    with pytest.raises(KVSwapDriverError, match=r"CUDA_ERROR_INVALID_DEVICE.*0 to 1"), driver.activate(ordinal):
        pass


def test_handles_kept_too_long_are_found_out(bench):
    driver = bench.driver
    stream, event = driver.stream_create(), driver.event_create()
    driver.stream_destroy(stream)
    driver.event_destroy(event)
    assert driver.stream_create() != stream
    assert driver.event_create() != event
    for verb in (
        lambda: driver.stream_destroy(stream),
        lambda: driver.stream_synchronize(stream),
        lambda: driver.event_destroy(event),
        lambda: driver.event_done(event),
        lambda: driver.event_record(event, 0),
        lambda: driver.stream_wait_event(0, event),
        lambda: driver.launch(stream, lambda: None),
    ):
        with pytest.raises(KVSwapDriverError, match="CUDA_ERROR_INVALID_HANDLE"):
            verb()


# ---- seeds, threads, lifetime ----


def seeded(seed: int) -> str:
    driver = SimulatedDriver(seed)
    order: list[str] = []
    with driver.activate(0):
        streams = [driver.stream_create() for _ in range(3)]
        for step in range(4):
            for number, stream in enumerate(streams):
                driver.launch(stream, lambda text=f"{number}{step}": order.append(text))
        driver.synchronize()
    return " ".join(order)


def test_a_seed_gives_one_order_and_seeds_give_many():
    assert all(seeded(seed) == seeded(seed) for seed in range(20))
    assert len({seeded(seed) for seed in range(20)}) > 5


def test_seeds_reach_both_extremes():
    done_at_once = set()
    for seed in range(30):
        driver = SimulatedDriver(seed)
        ran: list[int] = []
        with driver.activate(0):
            stream = driver.stream_create()
            for _ in range(20):
                driver.launch(stream, lambda ran=ran: ran.append(1))
        done_at_once.add(len(ran))
    assert {0, 20} <= done_at_once


@pytest.mark.parametrize("seed", range(4))
def test_many_threads(seed):
    bench = Bench(None, seed)
    driver = bench.driver
    failures = []

    def work(number: int) -> None:
        try:
            with driver.activate(0):
                host, stream, event = driver.host_alloc(64), driver.stream_create(), driver.event_create()
                driver.allocation_at(host).memory[:] = number
                for _ in range(200):
                    assert bench.copy(bench.device + number * 16, host, 16, stream) == 0
                driver.event_record(event, stream)
                driver.event_synchronize(event)
                assert (bench.bytes_at(bench.device)[number * 16 : number * 16 + 16] == number).all()
                driver.host_free(host)
                driver.stream_destroy(stream)
                driver.event_destroy(event)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (driver.live_allocations(), driver.live_events(), driver.live_streams()) == (2, 0, 0)


def test_each_thread_has_a_per_thread_stream(bench):
    driver, ran = bench.driver, []
    driver.launch(2, lambda: ran.append("mine"))

    def other() -> None:
        with driver.activate(0):
            driver.launch(2, lambda: ran.append("other"))
            driver.stream_synchronize(2)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert ran == ["other"]


def test_a_thread_inherits_no_stream_of_an_earlier_one_and_the_legacy_stream_waits_for_both(monkeypatch):
    """Identifiers of threads are used again."""
    monkeypatch.setattr(threading, "get_ident", lambda: 7)
    driver, ran, seen = SimulatedDriver(schedule=LAZY), [], []

    def work(name: str) -> None:
        with driver.activate(0):
            driver.launch(2, lambda: ran.append(name))
            if name == "second":
                driver.stream_synchronize(2)
                seen.extend(ran)

    for name in ("first", "second"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    assert seen == ["second"]
    with driver.activate(0):
        driver.launch(0, lambda: ran.append("legacy"))
        driver.stream_synchronize(0)
        assert ran == ["second", "first", "legacy"]
        driver.launch(0, lambda: None)
    assert not driver._blocking[0]  # nothing is kept of threads that are over


def test_a_driver_is_collected_with_its_callbacks():
    import weakref

    gone = weakref.ref(Bench().driver)
    gc.collect()
    assert gone() is None


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 240), st.integers(0, 240), st.integers(0, 16)), max_size=30), TAPES)
def test_copies_on_one_stream_are_a_loop_of_copies(copies, tape):
    bench = Bench(tape)
    expected = np.full(256, NEW_BYTE, dtype=np.uint8)
    with bench.driver.activate(0):
        stream = bench.driver.stream_create()
        bench.bytes_at(bench.host)[:] = np.arange(256)
        for target, source, size in copies:
            assert bench.copy(bench.device + target, bench.host + source, size, stream) == 0
            expected[target : target + size] = np.arange(source, source + size)
        bench.driver.stream_synchronize(stream)
    assert np.array_equal(bench.bytes_at(bench.device), expected)


# ---- the event_record entry point ----


def test_the_event_record_entry_point_is_the_verb(bench):
    driver = bench.driver
    record = ctypes.CFUNCTYPE(ctypes.c_int32, WORD, WORD)(driver.entry_points.event_record)
    stream, event = driver.stream_create(), driver.event_create()
    latch = driver.latch(stream)
    assert record(event, stream) == 0
    assert not driver.event_done(event)
    latch.open()
    driver.event_synchronize(event)
    assert driver.event_done(event)
    assert record(event + 1, stream) == 400
    driver.fail("cuEventRecord", status=719)
    assert record(event, stream) == 719
    assert driver.event_done(event), "a failed record leaves the last one standing"
