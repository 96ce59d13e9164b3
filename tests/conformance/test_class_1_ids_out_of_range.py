"""Class 1: the first id, or the range, is not checked. Nothing may move, guard bytes least of all."""

from __future__ import annotations

import pytest
from plain_model import assert_images, images_before, small_case

from numba_kvswap.testing import run_case

OUTSIDE = (4, -1, 5, 2**31, 2**32, 2**63, -(2**63), 2**64 - 1)


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("entry", ["op", "swapper"])
@pytest.mark.parametrize("block", OUTSIDE)
@pytest.mark.parametrize("side", ["device", "host"])
def test_the_only_id_of_a_list_is_checked(engine, entry, direction, side, block):
    ids = ([block], [0]) if side == "device" else ([0], [block])
    case = small_case(*ids, entry=entry, direction=direction, blocks=(4, 4))
    outcome = run_case(engine, case)
    assert type(outcome.error) is IndexError
    assert "position 0" in str(outcome.error) and str(block) in str(outcome.error)
    assert_images(outcome, images_before(case))


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("side", ["device", "host"])
def test_an_id_at_its_bound_is_refused_wherever_it_stands(engine, side, position):
    bad = [0, 1, 2]
    bad[position] = 4
    case = small_case(*((bad, [0, 1, 2]) if side == "device" else ([0, 1, 2], bad)), blocks=(4, 4))
    outcome = run_case(engine, case)
    assert type(outcome.error) is IndexError
    assert f"position {position}" in str(outcome.error) and "< 4" in str(outcome.error)
    assert_images(outcome, images_before(case))


def test_each_side_has_its_own_bound(engine):
    outcome = run_case(engine, small_case([3], [7], blocks=(4, 8)))
    assert outcome.error is None
    outcome = run_case(engine, small_case([7], [3], blocks=(4, 8)))
    assert type(outcome.error) is IndexError
