"""How processes end, and begin by a fork: what a forked child may not use, and interpreters that end in the midst."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_rig import LAZY, Rig

from numba_kvswap import DeviceCache, HostCache, KVSwapDriverError, Plan, SimulatedDevice, Swapper, cuda_driver
from numba_kvswap.driver import Driver, SimulatedDriver, cuda, forked, why_no_cuda
from numba_kvswap.driver.simulated import _collections_put_off
from numba_kvswap.host_memory import PinnedPool

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # threads are what these tests are about
]
SECONDS_MAX = 30
_CUDA = pytest.param(
    "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")]
)


def in_a_child(work) -> str:
    """What `work` returned, or raised, in a forked child; a child that hangs is ended by an alarm and said so."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS_MAX)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"ended with status {status} after {said!r}"


def says_forked(said: str) -> bool:
    return said.startswith("KVSwapDriverError: ") and "a forked child cannot use it" in said and "'spawn'" in said


class Parent:
    """A driver with a cache on either side, a held stream where it can be, and a transfer under way."""

    def __init__(self, kind="simulated"):
        self.driver = SimulatedDriver(schedule=LAZY) if kind == "simulated" else cuda_driver()
        self.device = DeviceCache.allocate(self.driver, blocks=4, block_bytes=[8])
        self.host = HostCache.allocate(self.device, blocks=4)
        self.swapper = Swapper(self.device, self.host, transport="copies")
        self.transfer = self.swapper.swap_out([0, 2], [0, 2])

    def goes_on(self):
        self.transfer.wait()
        self.swapper.swap_in([1, 3], [0, 2]).wait()
        self.host.close()


@pytest.fixture(params=["simulated", _CUDA])
def parent(request):
    return Parent(request.param)


# ---- forked children ----

VERBS = {
    "activate": (0,),
    "copy_now": (0, 0, 0),
    "current_device": (),
    "describe": (),
    "device_alloc": (8,),
    "device_free": (0,),
    "event_create": (),
    "event_destroy": (0,),
    "event_done": (0,),
    "event_record": (0, 0),
    "event_seconds": (0, 0),
    "event_synchronize": (0,),
    "host_alloc": (8,),
    "host_free": (0,),
    "host_register": (4096, 4096),
    "host_unregister": (4096,),
    "not_freed": (),
    "pointer_info": (0,),
    "stream_create": (),
    "stream_destroy": (0,),
    "stream_synchronize": (0,),
    "stream_wait_event": (0, 0),
    "synchronize": (),
    "unregister_if_registered": (4096,),
}


def test_the_verbs_are_all_there_are():
    found = {name for name in vars(Driver) if not name.startswith(("_", "discard_"))} - {"result_name", "uninterrupted"}
    assert {name for name in found if callable(getattr(Driver, name))} == set(VERBS)


def test_every_verb_of_a_parents_driver_says_so_in_a_child(parent):
    def work():
        said = []
        for verb, arguments in VERBS.items():
            try:
                getattr(parent.driver, verb)(*arguments)
            except KVSwapDriverError as error:
                said.append((verb, says_forked(f"KVSwapDriverError: {error}")))
        return [verb for verb in VERBS if (verb, True) not in said]

    assert in_a_child(work) == "[]"
    parent.goes_on()


USES = {
    "swap_out": lambda parent: parent.swapper.swap_out([0], [0]),
    "explain": lambda parent: parent.swapper.why_not("copies"),
    "a new Swapper": lambda parent: Swapper(parent.device, parent.host),
    "a new cache": lambda parent: DeviceCache.allocate(parent.driver, blocks=1, block_bytes=[8]),
    "a new pool": lambda parent: HostCache.allocate(parent.device, blocks=1),
    "wait": lambda parent: parent.transfer.wait(),
    "done": lambda parent: parent.transfer.done(),
    "wait_on": lambda parent: parent.transfer.wait_on(0),
    "close": lambda parent: parent.host.close(),
}


@pytest.mark.parametrize("use", USES)
def test_so_does_everything_that_is_made_of_it(parent, use):
    assert says_forked(in_a_child(lambda: USES[use](parent)))
    parent.goes_on()


def test_a_child_of_multiprocessing_too(parent):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work():
        try:
            parent.swapper.swap_out([0], [0])
        except KVSwapDriverError as error:
            sender.send(f"KVSwapDriverError: {error}")

    child = context.Process(target=work)
    child.start()
    assert receiver.poll(SECONDS_MAX) and says_forked(receiver.recv())
    child.join()
    assert child.exitcode == 0
    parent.goes_on()


def test_a_childs_child_says_it_too():
    parent = Parent()
    assert says_forked(in_a_child(lambda: in_a_child(lambda: parent.swapper.swap_out([0], [0]))))


def test_simulated_arrays_streams_and_latches_say_it():
    simulated = SimulatedDevice(schedule=LAZY)
    array, stream = simulated.device_array(4, np.uint8), simulated.stream()
    latch = stream.latch()
    for use in (
        array.to_numpy,
        array.free,
        stream.synchronize,
        stream.latch,
        latch.open,
        simulated.synchronize,
    ):
        assert says_forked(in_a_child(use)), use
    latch.open()
    stream.synchronize()


LOCKS = {
    "the driver's": lambda parent: parent.driver._lock,
    "that of work in flight": lambda parent: parent.driver.in_flight._lock,
    "a transfer's submission": lambda parent: parent.transfer.submitting,
    "a Swapper's": lambda parent: parent.swapper._overlaps.lock,
    "a pool's": lambda parent: parent.host._memory._closing,
    "that of collections put off": lambda parent: _collections_put_off._lock,
    "none, while collections are put off": lambda parent: _collections_put_off,
    "that of the device's tools": lambda parent: sys.modules["numba_kvswap.device_tools"]._lock,
    "that of the calibration": lambda parent: sys.modules["numba_kvswap.calibration"]._lock,
}


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_that_another_thread_holds_at_the_fork_hangs_the_child(lock):
    parent = Parent()
    held, enough = threading.Event(), threading.Event()

    def hold():
        with LOCKS[lock](parent):
            held.set()
            enough.wait(SECONDS_MAX)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def work():
        refused = 0
        for use in ("swap_out", "wait", "a new Swapper", "a new pool", "close"):
            try:
                USES[use](parent)
            except KVSwapDriverError:
                refused += 1
        parent.__dict__.clear()
        gc.collect()
        modules = ("numba_kvswap.device_tools", "numba_kvswap.calibration")
        free = all(sys.modules[name]._lock.acquire(timeout=5) for name in modules)
        return refused, free, swaps_anew(), gc.isenabled()

    said = in_a_child(work)
    enough.set()
    thread.join()
    assert said == "(5, True, True, True)"
    parent.goes_on()


def swaps_anew() -> bool:
    """Whether a device made here and now works, with the choice among the transports."""
    rig = Rig("auto", schedule=LAZY)
    before = rig.images()
    rig.swapper().swap_out([3, 5], [1, 2]).wait()
    return all(
        (host[[1, 2]] == device[[3, 5]]).all() for device, host in zip(before[:3], rig.host_layers(), strict=True)
    )


def test_before_python_3_12_no_cached_property_keeps_its_lock(monkeypatch):
    class Kind:
        class _Property(forked.cached_property):
            pass

        slow = _Property(lambda self: 7)

    Kind.slow.lock = threading.Lock()
    forked.fresh_locks_in_children(Kind)
    with Kind.slow.lock:
        assert in_a_child(lambda: Kind.slow.lock.acquire(timeout=1)) == "True"


def test_what_is_dropped_in_a_child_frees_nothing_of_the_parents(monkeypatch):
    parent = Parent()
    pool = PinnedPool(parent.driver, 0, 1 << 16, 1 << 16)
    calls, freed = parent.driver.calls, []
    monkeypatch.setattr(sys, "unraisablehook", freed.append)

    def work():
        nonlocal pool
        before = dict(calls)
        driver, gone = parent.driver, weakref.ref(parent.transfer)
        parent.__dict__.clear()
        pool = None
        gc.collect()
        return gone(), freed, dict(calls) == before, len(driver._discarded)

    assert in_a_child(work) == "(None, [], True, 0)"
    pool.close()
    parent.goes_on()


def test_a_pool_that_ends_in_a_child_unmaps_nothing_there():
    """The child has not got the pool's addresses: other memory may lie there."""
    driver = SimulatedDriver()
    pool = PinnedPool(driver, 0, 1 << 16, 1 << 16)
    start = pool.address

    def work():
        nonlocal pool
        libc = forked_libc()
        fixed, private_anonymous, read_write = 0x10, 0x22, 3
        assert libc.mmap(start, 1 << 16, read_write, private_anonymous | fixed, -1, 0) == start
        mine = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (1 << 16)).from_address(start))
        mine[:] = 7
        pool = None
        gc.collect()
        return int(mine.sum())

    assert in_a_child(work) == str(7 << 16)
    pool.close()


def forked_libc():
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return libc


def test_cuda_that_was_started_before_the_fork_does_not_start_again(monkeypatch):
    monkeypatch.setattr(cuda, "_in_forked_child", True)
    with pytest.raises(KVSwapDriverError, match=r"cuInit .*a forked child cannot use it"):
        cuda.CudaDriver(cuda)


@pytest.mark.cuda
@pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "has CUDA")
def test_cuda_driver_and_cuda_available_say_it_in_a_child():
    cuda_driver()
    assert says_forked(in_a_child(cuda_driver))
    assert in_a_child(cuda.cuda_available) == "False"
    assert in_a_child(swaps_anew) == "True"


# ---- an interpreter's end ----

BEGIN = """
import gc, sys, threading
import numpy as np
from numba_kvswap import DeviceCache, HostCache, SimulatedDevice, Swapper, cuda_driver

simulated = None if sys.argv[1] == "cuda" else SimulatedDevice(schedule=b"")
driver = cuda_driver() if simulated is None else simulated.driver
device = DeviceCache.allocate(driver, blocks=64, block_bytes=[4096] * 4)
host = HostCache.allocate(device, blocks=64)
swapper = Swapper(device, host, transport="copies")
ids = list(range(0, 64, 2))
"""
ENDS = {
    "transfers under way": ("transfers = [swapper.swap_out(ids, ids) for _ in range(20)]", 0),
    "transfers under way that nobody holds": ("for _ in range(20): swapper.swap_out(ids, ids)", 0),
    "an exit with a status": ("swapper.swap_out(ids, ids); sys.exit(7)", 7),
    "views of a pool": ("view = host.layer(0); swapper.swap_in(ids, ids)", 0),
    "a cycle": (
        "class Session: pass\nit = Session(); it.it, it.all = it, (device, host, swapper); del device, host",
        0,
    ),
    "a finalizer that closes": (
        "class Session:\n    def __del__(self, host=host): host.close()\nit = Session(); swapper.swap_out(ids, ids)",
        0,
    ),
    "a daemon thread that swaps": (
        "def swap():\n    while True: swapper.swap_out(ids, ids).wait()\n"
        "swapper.swap_out(ids, ids).wait()\n"
        "threading.Thread(target=swap, daemon=True).start()\nimport time; time.sleep(0.1)",
        0,
    ),
    "an error in a with block": (
        "try:\n    with host:\n        swapper.swap_out(ids, ids)\n        raise LookupError\n"
        "except LookupError:\n    assert host.closed",
        0,
    ),
}
SIMULATED_ENDS = {
    "a held stream": (
        "stream = simulated.stream(); latch = stream.latch(); it = swapper.swap_out(ids, ids, stream)",
        0,
    ),
    "arrays, streams and events": (
        "things = [simulated.device_array(9, np.uint8), simulated.pinned_array(9, np.uint8), simulated.stream()]\n"
        "things.append(simulated.event())",
        0,
    ),
}


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        *[("simulated", end) for end in (*ENDS, *SIMULATED_ENDS)],
        *[pytest.param("cuda", end, marks=_CUDA.marks) for end in ENDS],
    ],
)
def test_an_interpreter_ends_as_the_program_says_and_says_nothing(kind, end):
    code, status = (ENDS | SIMULATED_ENDS)[end]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + code, kind],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (status, "", "")


# ---- the garbage collector, in any order ----

FEWER = settings(max_examples=max(20, settings().max_examples // 4))
THINGS = ("device", "host", "swapper", "transfer", "stream", "simulated", "view")


@FEWER
@given(order=st.permutations(THINGS), together=st.integers(0, len(THINGS)), tape=st.binary(max_size=30), data=st.data())
def test_whatever_is_dropped_first_while_transfers_are_under_way_nothing_is_said_or_left(order, together, tape, data):
    transport = data.draw(st.sampled_from(("copies", "kernel", "ring")))
    gc.freeze()  # what was there before would make each collection long
    simulated = SimulatedDevice(schedule=tape)
    driver, told = simulated.driver, []
    device = DeviceCache.allocate(driver, blocks=4, block_bytes=[8, 8])
    host = HostCache.allocate(device, blocks=4)
    swapper, stream = Swapper(device, host, transport=transport), simulated.stream()
    transfer = swapper.swap_out([0, 2], [0, 2], stream)
    held = dict(zip(THINGS, (device, host, swapper, transfer, stream, simulated, host.layer(0)), strict=True))
    hook, sys.unraisablehook = sys.unraisablehook, told.append
    del device, host, swapper, transfer, stream, simulated
    try:
        cycle = [held.pop(name) for name in order[:together]]
        cycle.append(cycle)
        del cycle
        gc.collect()
        for name in order[together:]:
            del held[name]
            gc.collect()
        driver.synchronize()  # would tell of a copy into freed memory
        driver.tools.clear()
        driver.in_flight.prune((0, 0, 0))
        for queue in list(driver.in_flight._by_stream):
            driver.in_flight.prune(queue)
        gc.collect()
        assert driver.live_allocations() == 0
    finally:
        sys.unraisablehook = hook
        gc.unfreeze()
    assert told == []


def test_an_error_in_a_pools_with_block_comes_out_and_the_pool_is_closed_behind_its_transfers():
    rig = Rig("copies", schedule=LAZY)
    with pytest.raises(LookupError, match="mine"), rig.host:
        transfer = rig.swapper().swap_out([0, 2], [1, 3])
        raise LookupError("mine")
    assert rig.host.closed and transfer.done()
    rig.simulated.synchronize()


def test_what_is_closed_says_so():
    rig = Rig("copies", schedule=LAZY)
    swapper = rig.swapper()
    transfer = swapper.swap_out([0], [0])
    rig.host.close()
    for use in (
        lambda: rig.host.layer(0),
        lambda: rig.host.layers,
        rig.host.__enter__,
        lambda: swapper.swap_out([0], [0]),
        lambda: swapper.explain(Plan([0], [0])),
        lambda: Swapper(rig.device, rig.host),
    ):
        with pytest.raises(ValueError, match="this HostCache is closed; allocate another"):
            use()
    transfer.wait()  # it has landed, and says so
    assert transfer.done() and "closed" in repr(rig.host)
    rig.host.close()
