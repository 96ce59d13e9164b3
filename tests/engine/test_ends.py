"""How things end: pools closed under swaps, failing clean-ups, Ctrl-C, finalizers, pickles."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import signal
import threading
from collections import deque

import numpy as np
import pytest

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, Plan, Swapper, caches, swap_cache_all_layers
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.driver.in_flight import InFlight
from numba_kvswap.events import EventPair
from numba_kvswap.transports import copies

BLOCKS = 4


class Rig:
    def __init__(self, schedule=b"", blocks=BLOCKS, layers=1, transport="copies"):
        self.simulated = SimulatedDevice(schedule=schedule)
        self.driver = self.simulated.driver
        self.device_cache = DeviceCache.allocate(self.driver, blocks=blocks, block_bytes=[8] * layers)
        self.host_cache = HostCache.allocate(self.device_cache, blocks=blocks)
        self.swapper = Swapper(self.device_cache, self.host_cache, transport=transport)


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture(autouse=True)
def _ctrl_c_raises():
    """Also where the process was started in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_failing_question_about_one_transfer_is_no_matter_of_the_next_swap(rig):
    first, second = rig.simulated.stream(), rig.simulated.stream()
    rig.swapper.swap_out([0], [0], first)
    rig.driver.fail("cuEventQuery")
    rig.swapper.swap_out([1], [1], second)
    rig.host_cache.close()  # waits for both
    rig.simulated.synchronize()


def test_close_in_the_midst_of_a_submission_waits_for_it(rig, monkeypatch):
    submit, closer = copies.submit, threading.Thread(target=rig.host_cache.close)

    def close_meanwhile(*arguments):
        submission = submit(*arguments)
        closer.start()
        closer.join(0.2)
        assert closer.is_alive(), "it must wait until the transfer is submitted"
        return submission

    monkeypatch.setattr(copies, "submit", close_meanwhile)
    rig.swapper.swap_out([0], [0]).wait()
    closer.join()
    assert rig.host_cache.closed


def test_a_close_before_the_submission_is_seen(rig, monkeypatch):
    checked = rig.swapper.checked_plan("out", [0], [0])
    rig.host_cache.close()
    with pytest.raises(ValueError, match="closed"):
        rig.swapper.submit("out", checked)
    assert len(rig.driver.in_flight) == 0


@pytest.mark.parametrize("attempt", range(20))
def test_swaps_and_closes_of_many_threads_end_well(attempt, monkeypatch):
    rig, started, failures = Rig(schedule=bytes([attempt, 1, 0, 1] * 40)), threading.Barrier(3), []
    monkeypatch.setattr(threading, "excepthook", lambda caught: failures.append(caught.exc_value))

    def swap():
        started.wait()
        for _ in range(20):
            try:
                rig.swapper.swap_out([0, 2], [1, 3]).wait()
            except ValueError as error:
                assert "closed" in str(error)

    def close():
        started.wait()
        rig.host_cache.close()

    threads = [threading.Thread(target=work) for work in (swap, close, close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rig.simulated.synchronize()  # would tell of a copy into freed memory


def test_a_pool_closed_by_a_finalizer_in_the_midst_of_a_swap_does_not_hang(rig):
    class Pool:
        def __init__(self):
            self.itself = self
            self.cache = HostCache.allocate(rig.device_cache, blocks=2)

        def __del__(self):
            self.cache.close()

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(40):
            Pool()
            rig.swapper.swap_out([1], [1])
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("call", ["cuMemFreeHost", "cuCtxSetCurrent", "cuEventSynchronize"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_close_that_fails_may_be_called_again(rig, call, at):
    rig.swapper.swap_out([0], [0])
    before = rig.driver.live_allocations()
    rig.driver.fail(call, at=at)
    try:
        rig.host_cache.close()
    except KVSwapDriverError:
        rig.host_cache.close()
    assert rig.driver.live_allocations() == before - 1
    rig.simulated.synchronize()


def test_a_close_in_doubt_raises_what_the_driver_failed_with(rig):
    stream = rig.simulated.stream()
    latch = stream.latch()
    rig.swapper.swap_out([0], [0], stream)
    rig.driver.fail("cuEventSynchronize", status=719)
    with pytest.raises(KVSwapDriverError, match="cuEventSynchronize failed with CUDA_ERROR_LAUNCH_FAILED"):
        rig.host_cache.close()
    assert rig.host_cache._memory.address, "a transfer may still use it"
    latch.open()
    rig.host_cache.close()
    rig.simulated.synchronize()


def test_an_end_that_cannot_be_recorded_is_waited_for_another_way(rig):
    rig.driver.fail("cuEventRecord", at=1)
    rig.driver.fail("cuStreamSynchronize")
    with pytest.raises(KVSwapDriverError, match="cuEventRecord"):
        rig.swapper.swap_out([0], [0])
    rig.host_cache.close()
    rig.simulated.synchronize()


def test_waiting_is_linear_in_what_is_pending(rig):
    """Held by a latch, each further swap asks about the oldest alone."""
    stream = rig.simulated.stream()
    latch = stream.latch()
    transfers = [rig.swapper.swap_out([0], [0], stream) for _ in range(50)]
    before = rig.driver.calls["cuEventQuery"]
    transfers.append(rig.swapper.swap_out([0], [0], stream))
    assert rig.driver.calls["cuEventQuery"] - before <= 2
    latch.open()
    transfers[-1].wait()
    assert len(rig.driver.in_flight) == 0


def test_a_transfer_that_was_waited_for_holds_no_memory(rig):
    transfer = rig.swapper.swap_out([0], [0])
    transfer.wait()
    assert not transfer.uses(rig.host_cache.layers[0].owner)
    assert "done in" in repr(transfer)


def test_ctrl_c_in_a_swap_loses_no_copy():
    rig = Rig(blocks=4000)
    plan = Plan(range(0, 4000, 2), range(2000))
    rig.swapper.swap_out(plan).wait()
    calls = rig.driver.calls["cuMemcpyAsync"] + rig.driver.calls["cuMemcpy2DAsync"]
    enqueue, seen = rig.driver._put, []

    def interrupt_once(operation):
        if not seen:
            seen.append(signal.raise_signal(signal.SIGINT))
        enqueue(operation)

    rig.driver._put = interrupt_once
    with pytest.raises(KeyboardInterrupt):
        rig.swapper.swap_out(plan)
    assert rig.driver.calls["cuMemcpyAsync"] + rig.driver.calls["cuMemcpy2DAsync"] == calls + 2000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_under_way_is_not_hidden_by_a_living_view(rig):
    with pytest.raises(LookupError, match="mine"), rig.host_cache as cache:
        view = cache.layer(0)
        raise LookupError("mine")
    assert view.shape == (BLOCKS, 8)


def test_errors_travel_between_processes():
    where = {"layer": 3, "run": 1, "undefined_targets": (4, 0)}
    error = KVSwapDriverError("cuMemcpyAsync", "CUDA_ERROR_UNKNOWN", advice="Look up", **where)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_of_a_plan_are_as_immutable(again):
    plan = Plan([3, 1, 1], [0, 2, 0], sides=("device", "host"))
    twin = again(plan)
    assert twin == plan
    assert (twin.sides, twin.runs) == (plan.sides, plan.runs)
    with pytest.raises(ValueError, match="read-only"):
        twin.run_source[0] = 9


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"blocks": -1, "block_bytes": [8]}, ValueError),
        ({"blocks": 2.5, "block_bytes": [8]}, TypeError),
        ({"blocks": 1, "block_bytes": [0]}, ValueError),
        ({"blocks": 1, "block_bytes": [8.0]}, TypeError),
        ({"blocks": 1, "block_bytes": []}, ValueError),
        ({"blocks": 1, "block_bytes": [8], "dtype": "int4"}, TypeError),
    ],
)
def test_device_caches_that_cannot_be(rig, arguments, kind):
    with pytest.raises(kind):
        DeviceCache.allocate(rig.driver, **arguments)


def test_layers_that_overlap_keep_their_order():
    """Interleaved so that layer 1's block b overlaps layer 0's block b + 1: each layer must end before the next."""
    simulated = SimulatedDevice(0)
    device = simulated.device_array((2, 2, 4), np.uint8)
    device.fill_from(np.arange(1, 17, dtype=np.uint8).reshape(2, 2, 4))
    pinned = simulated.pinned_array(18, np.uint8)
    pinned[:] = 0
    host = [np.ndarray((2, 4), np.uint8, pinned.data, layer * 6, (8, 1)) for layer in range(2)]
    Swapper(device, host).swap_out([1, 0], [0, 1]).wait()
    expected = np.zeros(18, np.uint8)
    for layer in range(2):
        for source, target in ((1, 0), (0, 1)):
            at = layer * 6 + target * 8
            expected[at : at + 4] = device.to_numpy()[layer, source]
    np.testing.assert_array_equal(pinned, expected)


def interrupt_the_next_copy(driver):
    """Ctrl-C arrives while the next copy is put on its stream."""
    enqueue, seen = driver._put, []

    def interrupt_once(operation):
        if not seen:
            seen.append(signal.raise_signal(signal.SIGINT))
        enqueue(operation)

    driver._put = interrupt_once


@pytest.mark.parametrize("per_thread", [False, True])
def test_an_interrupted_swap_is_waited_for_by_a_close_in_another_thread(rig, per_thread):
    interrupt_the_next_copy(rig.driver)
    with pytest.raises(KeyboardInterrupt):
        rig.swapper.swap_out([0], [0], 2 if per_thread else None)
    closer = threading.Thread(target=rig.host_cache.close)
    closer.start()
    closer.join()
    rig.simulated.synchronize()  # would tell of a copy into freed memory


def test_after_an_interrupted_swap_nothing_piles_up(rig):
    interrupt_the_next_copy(rig.driver)
    with pytest.raises(KeyboardInterrupt):
        rig.swapper.swap_out([0, 2], [0, 3])
    rig.simulated.synchronize()
    for _ in range(20):
        rig.swapper.swap_out([1], [1]).wait()
    driver = rig.driver
    rig.device_cache = rig.host_cache = rig.swapper = None
    gc.collect()
    rig.simulated.synchronize()
    assert (driver.live_allocations(), driver.live_events(), len(driver.in_flight)) == (0, 0, 0)


def test_an_end_that_nothing_marks_does_not_stand_in_the_way_of_others(rig):
    rig.driver.fail("cuEventRecord", at=1, times=2)
    rig.driver.fail("cuCtxSynchronize")
    with pytest.raises(KVSwapDriverError, match="cuEventRecord"):
        rig.swapper.swap_out([0], [0])
    for _ in range(20):
        rig.swapper.swap_out([1], [1]).wait()
    assert rig.driver.live_events() <= 4
    rig.host_cache.close()
    rig.simulated.synchronize()
    gc.collect()
    assert len(rig.driver.in_flight) == 0


def test_a_failure_is_its_own_transfers_whoever_is_waited_for_first(rig):
    stream = rig.simulated.stream()
    device, pinned = rig.simulated.device_array((8, 8), np.uint8), rig.simulated.pinned_array((8, 8), np.uint8)
    failing = Swapper([device], [pinned]).swap_out([0], [0], stream)
    device.free()
    behind = rig.swapper.swap_out([0], [0], stream)
    with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
        behind.wait()
    for _ in range(2):
        with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
            failing.wait()
    rig.swapper.swap_out([0], [0], stream).wait()  # and none of what comes later


def test_failed_transfers_are_let_go(rig):
    stream = rig.simulated.stream()
    device, pinned = rig.simulated.device_array((8, 8), np.uint8), rig.simulated.pinned_array((8, 8), np.uint8)
    failing = Swapper([device], [pinned]).swap_out([0], [0], stream)
    device.free()
    with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
        failing.wait()
    for _ in range(20):
        rig.swapper.swap_out([0], [0], stream)
    rig.simulated.synchronize()
    rig.swapper.swap_out([0], [0], stream).wait()
    assert len(rig.driver.in_flight) == 0
    assert rig.driver.live_events() <= 4
    with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
        failing.wait()


def test_a_finalizer_that_closes_a_pool_while_another_transfer_is_let_go(rig, monkeypatch):
    class Session:
        def __init__(self):
            self.itself = self
            self.pool = HostCache.allocate(rig.device_cache, blocks=2)

        def __del__(self):
            self.pool.close()

    rig.swapper.swap_out([0], [0]).wait()
    gc.collect()
    gc.disable()
    try:
        rig.swapper.swap_out([0], [0])
        rig.simulated.synchronize()
        Session()
        discard = rig.driver.discard_event
        monkeypatch.setattr(rig.driver, "discard_event", lambda event: (gc.collect(), discard(event)))
        rig.swapper.swap_out([0], [0])
    finally:
        gc.enable()


def test_the_op_interrupted_leaves_nothing_running():
    simulated = SimulatedDevice(schedule=b"")
    device, pinned = simulated.device_array((4, 1, 8), np.uint8), simulated.pinned_array((4, 1, 8), np.uint8)
    interrupt_the_next_copy(simulated.driver)
    with pytest.raises(KeyboardInterrupt):
        swap_cache_all_layers([device], [pinned.ctypes.data], 4, [0], [0], 0, 0)
    assert len(simulated.driver.in_flight) == 0
    assert not simulated.driver._legacy[0].queue


def test_a_free_that_succeeds_is_not_repeated_when_leaving_the_context_fails(rig, monkeypatch):
    freed, free = [], rig.driver.host_free
    monkeypatch.setattr(rig.driver, "host_free", lambda address: (freed.append(address), free(address)))
    activate = rig.driver.activate

    @contextlib.contextmanager
    def fails_on_leaving(device):
        with activate(device):
            yield
        raise KVSwapDriverError("cuCtxSetCurrent", "CUDA_ERROR_UNKNOWN")

    memory = rig.host_cache._memory
    with monkeypatch.context() as patched:
        patched.setattr(rig.driver, "activate", fails_on_leaving)
        with pytest.raises(KVSwapDriverError):
            memory.close()
    memory.close()
    assert len(freed) == 1


def test_a_view_made_while_the_pool_closes_is_refused(rig, monkeypatch):
    made = caches.LayerBytes

    def close_between(layer):
        closer = threading.Thread(target=rig.host_cache.close)
        closer.start()
        closer.join()
        return made(layer)

    monkeypatch.setattr(caches, "LayerBytes", close_between)
    with pytest.raises(ValueError, match="closed"):
        rig.host_cache.layer(0)


def test_work_is_kept_though_its_stream_is_pruned_while_it_is_added():
    """As a finalizer may do it between any two lines."""

    class Work:
        unmarked = False

        def __init__(self, *, has_landed):
            self.has_landed = has_landed

        def landed(self):
            return self.has_landed

    class PrunedOnTheWay(deque):
        def append(self, work):
            in_flight.prune("a stream")
            super().append(work)

    in_flight = InFlight()
    in_flight.add(old := Work(has_landed=False), "a stream")
    in_flight._by_stream["a stream"] = PrunedOnTheWay([old])
    old.has_landed = True
    in_flight.add(Work(has_landed=False), "a stream")
    assert len(in_flight) == 1


def test_work_that_is_marked_while_it_is_pruned_is_kept_until_it_landed():
    class Work:
        asked, has_landed, was_settled = 0, False, False

        @property
        def unmarked(self):
            self.asked += 1
            return self.asked == 1

        def landed(self):
            return self.has_landed

        def uses(self, memory):
            return True

        def settle(self, timeout_s=None):
            self.was_settled = True

    in_flight, work = InFlight(), Work()
    in_flight.add(work, "a stream")
    in_flight.prune("a stream")
    assert len(in_flight) == 1
    in_flight.wait_for(None)
    assert work.was_settled
    assert len(in_flight) == 1, "it says itself whether it has landed"
    work.has_landed = True
    in_flight.wait_for(None)
    assert in_flight._pending() == []


def test_events_whose_making_is_interrupted_are_given_up(rig, monkeypatch):
    rig.driver.idle_events_max = 8
    before = rig.driver.live_events()

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("numba_kvswap.events.np.array", interrupted)
    with pytest.raises(KeyboardInterrupt), rig.driver.activate(0):
        EventPair(rig.driver, 0)
    monkeypatch.undo()
    gc.collect()
    rig.simulated.synchronize()
    assert rig.driver.live_events() == before
    assert not rig.driver.idle_events.get(0)


def test_a_failed_swap_leaves_no_cycle(rig):
    driver = rig.driver
    gc.collect()
    gc.disable()
    try:
        driver.fail("cuMemcpyAsync")
        with pytest.raises(KVSwapDriverError):
            rig.swapper.swap_out([0], [0])
        rig.simulated.synchronize()
        rig.device_cache = rig.host_cache = rig.swapper = None
        SimulatedDevice(0)  # another driver: nothing of it touches the first
        driver.in_flight.prune((0, 0, 0))  # device, stream, thread
        assert driver.live_allocations() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda rig: Swapper(rig.host_cache, rig.device_cache), "expected the device's cache first"),
        (lambda rig: HostCache.allocate([], blocks=1), "like is list; expected a DeviceCache"),
        (lambda rig: rig.swapper.swap_out(Plan([0], [0]), rig.simulated.stream()), "name a stream: stream="),
        (lambda rig: rig.swapper.swap_out([0], rig.simulated.stream()), "host ids are .*expected a one-dimensional"),
        (lambda rig: rig.swapper.swap_out(1, 2), "device ids are 1; expected a one-dimensional"),
        (lambda rig: rig.swapper.swap_out(np.array([True, False]), [0, 1]), "of a mask take numpy.flatnonzero"),
        (lambda rig: rig.swapper.swap_out(np.array([[0, 1]]), [0]), "expected a one-dimensional sequence"),
    ],
)
def test_easy_mistakes_are_told_apart(rig, call, words):
    with pytest.raises(TypeError, match=words):
        call(rig)


def test_a_layer_that_there_is_not(rig):
    with pytest.raises(IndexError, match="layer 9; expected 0 <= layer < 1"):
        rig.host_cache.layer(9)


@pytest.mark.parametrize("asked", ["wait", "done"])
def test_what_a_signal_handler_raises_in_the_midst_of_a_question_is_no_failure_of_the_work(monkeypatch, asked):
    """A time limit set by SIGALRM, say: the copies still run, and what they touch must stay."""
    simulated = SimulatedDevice(schedule=b"")
    device = DeviceCache.allocate(simulated.driver, blocks=4, block_bytes=[8])
    host = HostCache.allocate(device, blocks=4)
    stream = simulated.stream()
    latch = stream.latch()
    transfer = Swapper(device, host, transport="copies").swap_out([0], [1], stream)
    verb = "event_synchronize" if asked == "wait" else "event_done"
    really, late = getattr(simulated.driver, verb), [True]

    def interrupted(*arguments, **options):
        if late:
            late.clear()
            raise TimeoutError("a handler's")
        return really(*arguments, **options)

    monkeypatch.setattr(simulated.driver, verb, interrupted)
    with pytest.raises(TimeoutError):
        getattr(transfer, asked)()
    assert len(simulated.driver.in_flight) == 1
    latch.open()
    transfer.wait()
    assert transfer.done()
    host.close()


def test_landed_work_is_let_go_whatever_another_threads_stream_of_the_same_handle_holds():
    simulated = SimulatedDevice(schedule=b"")
    driver = simulated.driver
    device = DeviceCache.allocate(driver, blocks=4, block_bytes=[8])
    latches, held = [], []

    def hold():
        with driver.activate(0):
            latches.append(driver.latch(2))
            host = HostCache.allocate(device, blocks=4)
            held.append(Swapper(device, host, transport="copies").swap_out([0], [1], 2))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    live = []
    for _ in range(5):
        host = HostCache.allocate(device, blocks=4)
        Swapper(device, host, transport="copies").swap_out([0], [1], 2).wait()
        del host
        gc.collect()
        live.append(driver.live_allocations())
    assert len(set(live)) == 1
    latches[0].open()
    held[0].wait()
