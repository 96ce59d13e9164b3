"""Each driver call of each transport fails once: what is raised, what stays as it was, and that the next swap moves.

On the simulated device alone: a real one gives no such errors that leave its context usable.
"""

from __future__ import annotations

import gc

import pytest
from transport_rig import EAGER, LAZY, Rig, assert_same, swap

from numba_kvswap import KVSwapDriverError, host_memory
from numba_kvswap.driver.simulated import CALLS
from numba_kvswap.driver.statuses import INVALID_VALUE
from numba_kvswap.submit import BATCH_COPIES

DIRECTIONS = ("out", "in")
IDS = ([3, 4, 5, 9, 1, 0, 12, 13, 14, 2, 7], [0, 1, 2, 8, 7, 6, 15, 14, 13, 4, 5])
# What finalizers call, which have nobody to tell, and tidying up, which asks again.
UNHEARD = ("cuEventDestroy", "cuEventQuery", "cuMemFree", "cuMemFreeHost", "cuMemHostUnregister")
#: By transport: calls that a swap of IDS makes once all is made.
SUBMITTING = {
    "copies": ("cuEventRecord", "cuMemcpy2DAsync", "cuMemcpyAsync"),
    "batch": ("cuEventRecord", "cuMemcpyBatchAsync"),
    "kernel": ("cuEventRecord", "cuLaunchKernel", "cuMemcpyAsync"),
    "ring": ("cuEventRecord", "cuLaunchKernel", "cuMemcpyAsync", "cuMemcpyBatchAsync", "cuStreamWaitEvent"),
}
ON_A_STREAM_ASIDE = ("cuEventRecord", "cuMemcpyBatchAsync", "cuStreamWaitEvent")
PLACES = ("first", "middle", "last")


@pytest.fixture(scope="module", autouse=True)
def _collect_only_what_is_new():
    """Of the hundreds of collections here each would go through all that Numba has made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def rig_of(transport, **options):
    layout = "layer_major" if transport == "ring" else "block_major"  # so that a slot takes several copies
    return Rig(transport, layout=layout, ring_blocks=3, **options)


def used_by(rig, function):
    before = dict(rig.driver.calls)
    function()
    gc.collect()
    rig.driver.live_events()
    return {
        call: count - before.get(call, 0) for call, count in rig.driver.calls.items() if count > before.get(call, 0)
    }


def at(place, uses):
    return {"first": 0, "middle": uses // 2, "last": uses - 1}[place]


@pytest.mark.parametrize("transport", SUBMITTING)
def test_a_swap_makes_the_calls_that_fail_below(transport):
    rig = rig_of(transport)
    swapper, stream = rig.swapper(), rig.simulated.stream()
    swapper.swap_out(*IDS, stream).wait()
    used = used_by(rig, lambda: swapper.swap_out(*IDS, stream))
    assert set(SUBMITTING[transport]) <= set(used)
    submitting = {call for call in used if call.startswith(("cuMemcpy", "cuLaunch", "cuEventRecord", "cuStreamWait"))}
    assert submitting == set(SUBMITTING[transport])


def assert_only_targets_differ(rig, direction, before, targets):
    """Whatever `targets` hold, all else is as it was."""
    found = rig.images()
    for layer, (one, other) in enumerate(zip(found, before, strict=True)):
        on_device = layer < len(rig.sizes)
        is_target = on_device == (direction == "in")
        named = set(targets) if is_target else set()
        others = [block for block in range(rig.blocks) if block not in named]
        assert_same([one[others]], [other[others]])


def fail_and_go_on(rig, direction, call, use, stream):
    """A warm swap whose `use`th use of `call` fails, then one that must move all; the first one's error."""
    swapper, before = rig.swapper(), rig.images()
    swap(swapper, direction, *IDS, stream).wait()
    used = used_by(rig, lambda: swap(swapper, direction, *IDS, stream))[call]
    rig.simulated.synchronize()
    for index, layer in enumerate((*rig.device_layers(), *rig.host_layers())):
        layer[...] = before[index]
    rig.driver.in_flight.wait_for(rig.host.layers[0].owner)
    gc.collect()
    live = rig.live()
    rig.driver.fail(call, at=at(use, used), status=INVALID_VALUE)
    with pytest.raises(KVSwapDriverError) as caught:
        swap(swapper, direction, *IDS, stream)
    error = caught.value
    rig.driver.in_flight.wait_for(rig.host.layers[0].owner)
    assert len(rig.driver.in_flight) == 0
    settled = rig.images()
    targets = IDS[1 if direction == "out" else 0]
    assert error.undefined_targets == (() if "Nothing was copied" in str(error) else tuple(targets))
    assert_only_targets_differ(rig, direction, before, error.undefined_targets)
    rig.simulated.synchronize()
    assert_same(rig.images(), settled)  # what was on any stream was over once it was waited for
    swap(swapper, direction, *IDS, stream).wait()
    sides = rig.expected(direction, *IDS, before)
    assert_same(rig.images(), sides)
    message = str(error)
    del caught, error
    rig.driver.in_flight.wait_for(rig.host.layers[0].owner)
    gc.collect()
    assert rig.live() == live
    return message


@pytest.mark.parametrize("schedule", [LAZY, EAGER, bytes(range(256)) * 8], ids=["lazy", "eager", "mixed"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("use", PLACES)
@pytest.mark.parametrize(("transport", "call"), [(name, call) for name, calls in SUBMITTING.items() for call in calls])
def test_a_call_that_fails_is_raised_by_that_swap_and_by_no_other(transport, call, use, direction, schedule):
    rig = rig_of(transport, schedule=schedule)
    message = fail_and_go_on(rig, direction, call, use, rig.simulated.stream())
    assert f"{call} failed with CUDA_ERROR_INVALID_VALUE" in message


@pytest.mark.parametrize("schedule", [LAZY, EAGER], ids=["lazy", "eager"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("use", PLACES)
@pytest.mark.parametrize("call", ON_A_STREAM_ASIDE)
def test_so_is_one_of_a_batch_on_the_legacy_stream(call, use, direction, schedule):
    message = fail_and_go_on(rig_of("batch", schedule=schedule), direction, call, use, None)
    assert f"{call} failed with CUDA_ERROR_INVALID_VALUE" in message


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("transport", SUBMITTING)
def test_a_call_that_fails_while_a_first_swap_makes_what_it_needs_is_raised_and_made_again(transport, direction):
    """Whatever a cold swap calls, found by counting."""
    count = rig_of(transport)
    swapper, stream = count.swapper(), count.simulated.stream()
    used = used_by(count, lambda: swap(swapper, direction, *IDS, stream).wait())
    assert {"cuCtxSetCurrent", "cuEventCreate"} <= set(used)
    for call, uses in used.items():
        if call in UNHEARD:
            continue
        for use in {0, uses // 2, uses - 1}:
            rig = rig_of(transport)
            swapper, stream, before = rig.swapper(), rig.simulated.stream(), rig.images()
            rig.driver.fail(call, at=use)
            with pytest.raises(KVSwapDriverError, match=call):
                swap(swapper, direction, *IDS, stream).wait()
            swap(swapper, direction, *IDS, stream).wait()
            assert_same(rig.images(), rig.expected(direction, *IDS, before))
            rig.simulated.synchronize()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("failing", [(0, 0), (0, 7), (1, 3), (2, 10)], ids=str)
def test_a_failing_batch_names_the_layer_and_the_run_of_the_copy_that_the_driver_names(direction, failing):
    rig = Rig("batch", layout="layer_major")
    swapper = rig.swapper()
    layer, run = failing
    runs = swapper.checked_plan(direction, *IDS).runs
    run = min(run, runs - 1)
    refuse_copy(rig, layer * runs + run)
    with pytest.raises(KVSwapDriverError, match=f"layer {layer}, run {run}") as caught:
        swap(swapper, direction, *IDS, rig.simulated.stream())
    assert (caught.value.layer, caught.value.run) == (layer, run)


def refuse_copy(rig, index):
    """Let the driver refuse the copy of that index, as it does one that leaves its allocation."""
    find, seen = rig.driver._target_span, []

    def refusing(address, size_bytes):
        seen.append(address)
        return find(0 if len(seen) == index + 1 else address, size_bytes)

    rig.driver._target_span = refusing


def test_a_failure_in_a_later_batch_is_named_by_its_own_layer_and_run():
    """The copies before it filled one batch and more."""
    blocks = BATCH_COPIES + 40
    rig = Rig("batch", sizes=(4, 4), blocks=2 * blocks, layout="layer_major")
    swapper = rig.swapper()
    refuse_copy(rig, blocks + 5)
    with pytest.raises(KVSwapDriverError, match="layer 1, run 5"):
        swapper.swap_out(range(0, 2 * blocks, 2), range(blocks), rig.simulated.stream())


@pytest.mark.parametrize("transport", ["copies", "batch", "split"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_run_cut_where_a_registration_ends_is_named_as_the_plan_has_it(monkeypatch, transport, direction):
    page = host_memory.SYSTEM_BLOCK_BYTES
    monkeypatch.setattr(host_memory, "POOL_BYTES_MIN", 1)
    monkeypatch.setattr(host_memory, "PIECE_BYTES_MAX", 4 * page)
    rig = Rig(transport, sizes=[page // 2] * 3, blocks=8, ring_blocks=7, has_batch=False)
    rig.driver.split_batch_bytes = 100 * page
    swapper, ids, runs = rig.swapper(), ([0, 1, 2, 3, 4, 6, 7], [0, 1, 2, 3, 4, 5, 6]), set()
    plan = swapper.checked_plan(direction, *ids)
    assert plan.runs == 2 and swapper.pair.runs(plan, direction)[0].size > 3
    swap(swapper, direction, *ids).wait()
    used = used_by(rig, lambda: swap(swapper, direction, *ids).wait())
    for call in used.keys() & {"cuMemcpyAsync", "cuMemcpy2DAsync"}:
        for use in range(used[call]):
            rig.driver.fail(call, at=use)
            with pytest.raises(KVSwapDriverError) as caught:
                swap(swapper, direction, *ids)
            runs.add(caught.value.run)
    assert runs - {None} == {0, 1}


def test_every_call_is_one_that_can_be_made_to_fail():
    assert {call for calls in SUBMITTING.values() for call in calls} <= set(CALLS)
