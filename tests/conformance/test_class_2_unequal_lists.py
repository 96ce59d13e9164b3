"""Class 2: lists of different length, and a -1 that wraps to 2^64 - 1 in the middle of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from plain_model import assert_images, images_before, small_case

from numba_kvswap.testing import run_case


def call_with(engine, case, device_ids, host_ids):
    """The case's call with these lists, of any length: a case itself always has pairs."""
    from numba_kvswap.testing import conformance

    call_of = conformance.call_of

    def with_lists(*arguments):
        return dataclasses.replace(call_of(*arguments), device_ids=device_ids, host_ids=host_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformance, "call_of", with_lists)
        return run_case(engine, case)


LISTS = [
    ([0, 1, 2], [5, 6]),
    ([5, 6], [0, 1, 2]),
    ([0], []),
    ([], [0]),
    (np.arange(3), np.arange(2, dtype=np.int32)),
]


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("entry", ["op", "swapper"])
@pytest.mark.parametrize(("device_ids", "host_ids"), LISTS)
def test_lists_of_different_length_are_refused(engine, entry, direction, device_ids, host_ids):
    case = small_case([], [], entry=entry, direction=direction, blocks=(8, 8))
    outcome = call_with(engine, case, device_ids, host_ids)
    assert type(outcome.error) is ValueError
    assert str(len(device_ids)) in str(outcome.error) and str(len(host_ids)) in str(outcome.error)
    assert_images(outcome, images_before(case))


@pytest.mark.parametrize("side", ["device", "host"])
@pytest.mark.parametrize("entry", ["op", "swapper"])
def test_minus_one_in_an_int64_array_does_not_wrap(engine, entry, side):
    wrapped, fine = np.array([0, -1, 2]), np.array([0, 1, 2])
    case = small_case([], [], entry=entry, blocks=(8, 8))
    outcome = call_with(engine, case, *((wrapped, fine) if side == "device" else (fine, wrapped)))
    assert type(outcome.error) is IndexError
    assert "position 1" in str(outcome.error) and "-1" in str(outcome.error)
    assert_images(outcome, images_before(case))


def test_a_uint64_id_beyond_63_bits_is_named_as_it_came(engine):
    case = small_case([], [], blocks=(8, 8))
    outcome = call_with(engine, case, np.array([2**64 - 1], np.uint64), [0])
    assert type(outcome.error) is IndexError
    assert str(2**64 - 1) in str(outcome.error)
    assert_images(outcome, images_before(case))
