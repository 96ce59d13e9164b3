"""Class 7: what cuMemcpyBatchAsync does not take, or does not promise.

Never the legacy default stream; no copies of no bytes; absent before CUDA 12.8; slow beyond some hundreds of copies;
and no order among the copies of one call.
"""

from __future__ import annotations

import numpy as np
import pytest
from plain_model import assert_images, images_after, small_case

from numba_kvswap import Swapper
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.driver.simulated import LEGACY_STREAM, PER_THREAD_STREAM
from numba_kvswap.submit import BATCH_COPIES
from numba_kvswap.testing import LayerShape
from numba_kvswap.testing.conformance import run_case
from numba_kvswap.testing.engines import SimulatedEngine

SIZES = (8, 5)
ORDERS = (b"", b"\x01" * 4000, *(bytes([n, 255 - n, 3 * n % 256]) * 900 for n in (1, 7, 100, 201)))


class Rig:
    def __init__(self, random_block, blocks=16, sizes=SIZES, transport="batch", **options):
        self.simulated = SimulatedDevice(**({"schedule": b""} | options))
        self.driver = self.simulated.driver
        self.device = [self.simulated.device_array((blocks, size), np.uint8) for size in sizes]
        self.host = [self.simulated.pinned_array((blocks, size), np.uint8) for size in sizes]
        for seed, (device, host) in enumerate(zip(self.device, self.host, strict=True)):
            device.fill_from(random_block(device.shape, seed))
            host[:] = 0
        self.swapper = Swapper(self.device, self.host, transport=transport)
        self.batches = []  # of each call, the sizes of its copies
        put = self.driver._put

        def noting(operation):
            if hasattr(operation, "copies"):
                self.batches.append([copy.size_bytes for copy in operation.copies])
            put(operation)

        self.driver._put = noting

    def assert_out(self, device_ids, host_ids):
        for device, host in zip(self.device, self.host, strict=True):
            np.testing.assert_array_equal(host[host_ids], device.to_numpy()[device_ids])


IDS = ([0, 2, 4, 6, 7], [1, 3, 5, 7, 8])  # four runs


@pytest.mark.parametrize("stream", [None, 0, LEGACY_STREAM, PER_THREAD_STREAM, "own", "blocking"])
def test_a_swap_on_any_stream_is_made_in_batches(random_block, stream):
    """The simulated device refuses one on the legacy stream, as CUDA does."""
    rig = Rig(random_block)
    if isinstance(stream, str):
        stream = rig.simulated.stream(blocking=stream == "blocking")
    rig.swapper.swap_out(*IDS, stream).wait()
    assert len(rig.batches) == 1
    rig.assert_out(*IDS)


@pytest.mark.parametrize("transport", ["batch", "ring"])
def test_no_copy_of_a_batch_is_empty(random_block, transport):
    rig = Rig(random_block, transport=transport)
    for count in range(6):
        rig.swapper.swap_out(IDS[0][:count], IDS[1][:count]).wait()
    assert rig.batches and all(min(sizes) > 0 for sizes in rig.batches)
    rig.assert_out(IDS[0], IDS[1])


@pytest.mark.parametrize("transport", ["auto", "batch", "ring"])
@pytest.mark.parametrize("stream", [None, "own"])
def test_an_older_driver_is_given_the_same_copies_one_by_one(random_block, transport, stream):
    rig = Rig(random_block, transport=transport, has_batch=False)
    rig.swapper.swap_out(*IDS, rig.simulated.stream() if stream else None).wait()
    assert rig.driver.calls["cuMemcpyBatchAsync"] == 0
    rig.assert_out(*IDS)


@pytest.mark.parametrize("runs", [1, 2, BATCH_COPIES - 1, BATCH_COPIES, BATCH_COPIES + 1, 2 * BATCH_COPIES, 1300])
@pytest.mark.parametrize("layers", [1, 3])
def test_no_batch_has_more_copies_than_are_fast_and_together_they_are_all(random_block, runs, layers):
    rig = Rig(random_block, blocks=2 * runs, sizes=(4,) * layers)
    ids = (list(range(0, 2 * runs, 2)), list(range(2 * runs - 1, runs - 1, -1)))
    rig.swapper.swap_out(*ids).wait()
    lengths = [len(sizes) for sizes in rig.batches]
    full, rest = divmod(runs * layers, BATCH_COPIES)
    assert lengths == [BATCH_COPIES] * full + [rest] * (rest > 1)
    assert rig.driver.calls["cuMemcpyAsync"] == (rest == 1)
    rig.assert_out(*ids)


def test_a_slot_of_more_stretches_than_a_batch_has_copies(random_block):
    runs = BATCH_COPIES + 90
    rig = Rig(random_block, blocks=2 * runs, sizes=(4, 4), transport="ring", ring_slot_bytes=1 << 20)
    ids = (list(range(runs)), list(range(0, 2 * runs, 2)))
    rig.swapper.swap_out(*ids).wait()
    assert [len(sizes) for sizes in rig.batches] == [BATCH_COPIES, BATCH_COPIES, 2 * 90]
    rig.assert_out(*ids)


@pytest.mark.parametrize("schedule", ORDERS, ids=range(len(ORDERS)))
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("transport", ["batch", "ring"])
def test_the_order_within_a_batch_does_not_show(transport, direction, schedule):
    """Also where pairs repeat, of which only the last counts."""
    layers = [LayerShape((1, 3), "uint8", 2, 0), LayerShape((1, 2, 4), "uint8", 0, 3), LayerShape((1, 1), "int32")]
    sources, targets = [0, 1, 2, 7, 6, 5, 3, 3], [3, 4, 5, 5, 4, 3, 0, 1]
    ids = (sources, targets) if direction == "out" else (targets, sources)
    case = small_case(*ids, entry="swapper", direction=direction, blocks=(8, 8), layers=layers, schedule=schedule)
    outcome = run_case(SimulatedEngine(transport), case)
    assert outcome.error is None
    assert_images(outcome, images_after(case))
