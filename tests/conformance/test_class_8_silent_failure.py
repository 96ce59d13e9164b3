"""Class 8: a copy's error goes unread, or is read by the next call. It is raised by that very call, and once.

On the simulated device alone: a real one gives no copy error that leaves its context usable.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from numba_kvswap import KVSwapDriverError, Swapper, swap_cache_all_layers
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.driver.simulated import CALLS
from numba_kvswap.driver.statuses import ILLEGAL_ADDRESS, INVALID_VALUE

BLOCKS, SIZE = 8, 16
EAGER = b"\x01" * 4000  # a schedule under which everything runs as soon as it may


class Rig:
    """Separate layers, whose sizes differ, so that each run of each layer is a copy of its own."""

    def __init__(self, random_block, sizes=(SIZE, SIZE + 1, SIZE + 2), schedule=b"", transport="copies"):
        self.simulated = SimulatedDevice(schedule=schedule)
        self.driver = self.simulated.driver
        self.device = [self.simulated.device_array((BLOCKS, 1, size), np.uint8) for size in sizes]
        self.host = [self.simulated.pinned_array((BLOCKS, 1, size), np.uint8) for size in sizes]
        for seed, (device, host) in enumerate(zip(self.device, self.host, strict=True)):
            device.fill_from(random_block(device.shape, seed))
            host[:] = random_block(host.shape, 100 + seed)
        self.swapper = Swapper(self.device, self.host, transport=transport)

    def assert_swapped_out(self, device_ids, host_ids):
        for device, host in zip(self.device, self.host, strict=True):
            np.testing.assert_array_equal(host[host_ids], device.to_numpy()[device_ids])


@pytest.fixture
def rig(random_block):
    return Rig(random_block)


IDS = ([0, 2, 4, 6], [1, 3, 5, 7])  # four runs


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("run", [0, 2, 3])
def test_a_failing_copy_raises_there_and_then_and_says_where(rig, direction, layer, run):
    swap = rig.swapper.swap_out if direction == "out" else rig.swapper.swap_in
    rig.driver.fail("cuMemcpyAsync", at=layer * 4 + run, status=INVALID_VALUE)
    with pytest.raises(KVSwapDriverError) as caught:
        swap(*IDS)
    error = caught.value
    assert (error.call, error.result_name) == ("cuMemcpyAsync", "CUDA_ERROR_INVALID_VALUE")
    assert (error.layer, error.run) == (layer, run)
    assert f"layer {layer}, run {run}" in str(error)


def test_no_copy_is_submitted_after_the_failing_one(rig):
    rig.driver.fail("cuMemcpyAsync", at=5)
    with pytest.raises(KVSwapDriverError):
        rig.swapper.swap_out(*IDS)
    assert rig.driver.calls["cuMemcpyAsync"] == 6


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_failing_2d_copy_names_the_first_layer_of_its_group_and_its_run(random_block, direction):
    simulated = SimulatedDevice(schedule=b"")
    device = simulated.device_array((7, BLOCKS, SIZE), np.uint8)
    host = simulated.pinned_array((7, BLOCKS, SIZE), np.uint8)
    # One layer of another size, then six of one size at one distance: two groups, the second copied by rows.
    layers = [device.view(0, (BLOCKS, SIZE // 2), np.uint8, (SIZE, 1))]
    layers += [device.view(i * BLOCKS * SIZE, (BLOCKS, SIZE), np.uint8) for i in range(1, 7)]
    swapper = Swapper(layers, [host[0, :, : SIZE // 2], *host[1:]], transport="copies")
    simulated.driver.fail("cuMemcpy2DAsync", at=2, status=ILLEGAL_ADDRESS)
    with pytest.raises(KVSwapDriverError) as caught:
        (swapper.swap_out if direction == "out" else swapper.swap_in)(*IDS)
    error = caught.value
    assert (error.call, error.result_name) == ("cuMemcpy2DAsync", "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert (error.layer, error.run) == (1, 2)


@pytest.mark.parametrize("entry", ["op", "swapper"])
def test_the_next_call_works_and_reads_no_old_error(rig, entry):
    rig.driver.fail("cuMemcpyAsync", at=3)
    pinned = rig.host
    for attempt in range(2):
        try:
            if entry == "op":
                swap_cache_all_layers(rig.device, pinned, BLOCKS, *IDS, 0, 0, transport="copies")
            else:
                rig.swapper.swap_out(*IDS).wait()
        except KVSwapDriverError:
            assert attempt == 0
        else:
            assert attempt == 1
    rig.assert_swapped_out(*IDS)


SWAP_CALLS = ("cuCtxSetCurrent", "cuEventCreate", "cuEventRecord", "cuMemcpyAsync")


@pytest.mark.parametrize("call", SWAP_CALLS)
@pytest.mark.parametrize("at", [0, 1])
def test_every_driver_call_of_a_swap_that_fails_is_raised_by_that_swap(rig, call, at):
    before = rig.driver.calls[call]
    rig.swapper.swap_out(*IDS).wait()
    if rig.driver.calls[call] - before <= at:
        pytest.skip(f"a swap uses {call} less often")
    rig.driver.fail(call, at=at)
    with pytest.raises(KVSwapDriverError, match=call):
        rig.swapper.swap_out(*IDS).wait()
    rig.swapper.swap_out(*IDS).wait()
    rig.assert_swapped_out(*IDS)


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("cuEventQuery", lambda transfer, other: transfer.done()),
        ("cuEventSynchronize", lambda transfer, other: transfer.wait()),
        ("cuStreamWaitEvent", lambda transfer, other: transfer.wait_on(other)),
        ("cuEventElapsedTime", lambda transfer, other: (transfer.wait(), transfer.seconds)),
    ],
)
def test_every_driver_call_of_a_transfer_that_fails_is_raised_once(rig, call, ask):
    other = rig.simulated.stream()
    transfer = rig.swapper.swap_out(*IDS)
    rig.driver.fail(call)
    with pytest.raises(KVSwapDriverError, match=call):
        ask(transfer, other)
    ask(transfer, other)
    transfer.wait()
    rig.assert_swapped_out(*IDS)


def test_every_driver_call_of_the_op_that_fails_is_raised_by_that_op(rig):
    """Whatever the op calls, found by counting, not by a list that could grow old."""
    used = dict(rig.driver.calls)
    swap_cache_all_layers(rig.device, rig.host, BLOCKS, *IDS, 0, 0, transport="copies")
    calls = [call for call in CALLS if rig.driver.calls[call] > used.get(call, 0)]
    for unheard in ("cuEventDestroy", "cuEventQuery"):  # a destructor has nobody to tell; nor has tidying up
        if unheard in calls:
            calls.remove(unheard)
    assert {"cuMemcpyAsync", "cuEventRecord", "cuEventSynchronize", "cuPointerGetAttributes"} <= set(calls)
    for call in calls:
        rig.driver.fail(call)
        with pytest.raises(KVSwapDriverError, match=call):
            swap_cache_all_layers(rig.device, rig.host, BLOCKS, *IDS, 0, 0, transport="copies")
        swap_cache_all_layers(rig.device, rig.host, BLOCKS, *IDS, 0, 0, transport="copies")
    rig.assert_swapped_out(*IDS)


def test_a_failure_on_the_device_is_raised_by_the_wait_for_that_transfer(rig):
    stream = rig.simulated.stream()
    latch = stream.latch()
    transfer = rig.swapper.swap_out(*IDS, stream)
    assert transfer.undefined_targets == tuple(IDS[1])
    rig.device[1].free()  # under the queued copies, as only a user's mistake can
    latch.open()
    with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
        transfer.wait()
    assert transfer.undefined_targets == tuple(IDS[1])


def test_a_transfer_that_landed_has_no_undefined_targets(rig):
    transfer = rig.swapper.swap_out(*IDS)
    transfer.wait()
    assert transfer.undefined_targets == ()


def fail_on_the_device(rig):
    """A transfer whose copies have run, and failed, while nobody looked."""
    stream = rig.simulated.stream()
    latch = stream.latch()
    transfer = rig.swapper.swap_out([0], [0], stream)
    rig.device[1].free()
    latch.open()
    return transfer


def unrelated_swapper(rig):
    other = rig.simulated.device_array((BLOCKS, SIZE), np.uint8)
    return Swapper([other], [rig.simulated.pinned_array((BLOCKS, SIZE), np.uint8)])


def test_a_failed_transfer_is_not_read_by_the_next_swap(random_block):
    rig = Rig(random_block, schedule=EAGER)
    fail_on_the_device(rig)
    unrelated_swapper(rig).swap_out([0], [0]).wait()


def test_a_failed_transfer_tells_whoever_waits_for_it_whatever_came_between(random_block):
    rig = Rig(random_block, schedule=EAGER)
    failed = fail_on_the_device(rig)
    with contextlib.suppress(KVSwapDriverError):
        unrelated_swapper(rig).swap_out([0], [0]).wait()
    for _ in range(2):  # and however often it is asked
        with pytest.raises(KVSwapDriverError, match="ILLEGAL_ADDRESS"):
            failed.wait()


def test_the_op_leaves_nothing_running_after_a_failing_copy(rig):
    rig.driver.fail("cuMemcpyAsync", at=6)
    with pytest.raises(KVSwapDriverError):
        swap_cache_all_layers(
            rig.device, [host.ctypes.data for host in rig.host], BLOCKS, *IDS, 0, 0, transport="copies"
        )
    assert len(rig.driver.in_flight) == 0
