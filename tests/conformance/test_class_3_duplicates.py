"""Class 3: repeated ids. A target holds what its last pair wrote, whatever runs and timing were."""

from __future__ import annotations

import pytest
from plain_model import assert_images, images_after, small_case

from numba_kvswap.testing import LayerShape, run_case

PAIRS = {
    "two sources, one target": ([1, 2], [0, 0]),
    "fan-out of one source": ([0, 0, 1], [0, 1, 2]),
    "both repeat, the second time shifted": ([1, 2, 1, 2], [0, 1, 0, 1]),
    "two runs that overlap by a target": ([0, 1, 2, 5, 6, 7], [0, 1, 2, 2, 3, 4]),
    "interleaved runs": ([0, 4, 1, 5, 2, 6], [0, 4, 1, 5, 2, 6]),
    "interleaved runs over the same targets": ([0, 4, 1, 5, 2, 6], [0, 0, 1, 1, 2, 2]),
    "a run overwritten block by block from behind": ([0, 1, 2, 7, 6, 5], [3, 4, 5, 5, 4, 3]),
    "descending": ([5, 4, 3, 2], [5, 4, 3, 2]),
    "one target, many times": ([0, 1, 2, 3, 4, 5, 6, 7], [3] * 8),
}
# The laziest and the most eager order, and three in between.
SCHEDULES = (b"", b"\x01" * 400, b"\x01\x00" * 200, bytes(range(256)), bytes(range(255, -1, -1)))


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("entry", ["op", "swapper"])
def test_the_last_pair_of_a_target_wins(engine, entry, name, direction):
    sources, targets = PAIRS[name]
    ids = (sources, targets) if direction == "out" else (targets, sources)
    layers = [LayerShape((1, 2, 4), "uint8"), LayerShape((1, 3), "uint8"), LayerShape((1, 3), "uint8")]
    for schedule in SCHEDULES:
        case = small_case(*ids, entry=entry, direction=direction, blocks=(8, 8), layers=layers, schedule=schedule)
        outcome = run_case(engine, case)
        assert outcome.error is None
        assert_images(outcome, images_after(case))
