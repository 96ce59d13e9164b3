"""Class 5: merging over a stride that is not the copied size. Pad bytes stay as they were."""

from __future__ import annotations

import pytest
from plain_model import assert_images, images_after, small_case

from numba_kvswap.testing import LayerShape, run_case


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("entry", ["op", "swapper"])
@pytest.mark.parametrize(("device_pad", "host_pad"), [(0, 5), (5, 0), (3, 3), (1, 8), (0, 4096)])
@pytest.mark.parametrize("ids", [[0, 1, 2], [1, 0], [3]])
def test_a_run_over_padded_rows_leaves_the_pads_alone(engine, layers, direction, entry, device_pad, host_pad, ids):
    shape = LayerShape((1, 2, 4), "uint8", device_pad, host_pad)
    case = small_case(ids, ids, entry=entry, direction=direction, layers=[shape] * layers)
    outcome = run_case(engine, case)
    assert outcome.error is None
    assert_images(outcome, images_after(case))


@pytest.mark.parametrize("direction", ["out", "in"])
def test_blocks_beside_each_other_in_a_block_major_pool_keep_their_neighbours(engine, direction):
    layers = [LayerShape((1, 2, 4), "uint8"), LayerShape((1, 3), "uint8"), LayerShape((2, 2), "float16")]
    case = small_case([0, 1, 2], [1, 2, 3], direction=direction, layers=layers, host_layout="block_major")
    outcome = run_case(engine, case)
    assert outcome.error is None
    assert_images(outcome, images_after(case))
