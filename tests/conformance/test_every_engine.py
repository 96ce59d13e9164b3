"""One suite, every engine: the bytes and the errors of design's section on what a swap means."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from plain_model import assert_images, images_after, images_before, small_case

from numba_kvswap.testing import (
    FAULTS,
    OP_FAULTS,
    assert_conforms,
    compare,
    engine_named,
    make_case,
    run_case,
    snippet,
)
from numba_kvswap.testing.cases import layer_views
from numba_kvswap.testing.engines import SimulatedEngine
from numba_kvswap.testing.strategies import swap_cases

_TYPE_ERRORS = {
    "device id True",
    "host id 0.0",
    "host id None",
    "device id '0'",
    "structured device dtype",
    "structured host dtype",
    "mode None",
    "mode True",
    "rank 0.0",
    "bound '4'",
    "address 1.5",
    "address None",
}
_INDEX_ERRORS = {
    "device id at its bound",
    "host id at its bound",
    "device id -1",
    "host id -1",
    "device id 2**31",
    "device id 2**63",
    "host id 2**64 - 1",
    "device id -2**70",
}
_OF_HOST_ARRAYS = {"another host dtype", "structured host dtype", "larger host blocks"}

# Of examples, where each transport is searched.
FEWER = settings(max_examples=max(20, settings().max_examples // 4))


def expected_error(case):
    """The design's table, by the fault's name. An address or flat bytes have no dtype and no shape to get wrong."""
    if not case.fault or (case.fault in _OF_HOST_ARRAYS and case.entry == "op" and case.host_form != "array"):
        return None
    if case.fault in _TYPE_ERRORS:
        return TypeError
    return IndexError if case.fault in _INDEX_ERRORS else ValueError


@FEWER
@given(case=swap_cases())
def test_a_valid_call_moves_what_its_pairs_say_and_nothing_else(engine, case):
    outcome = run_case(engine, case)
    assert outcome.error is None
    assert_images(outcome, images_after(case))


@FEWER
@given(case=swap_cases(faults=OP_FAULTS))
def test_an_invalid_call_raises_the_documented_type_and_moves_nothing(engine, case):
    outcome = run_case(engine, case)
    expected = expected_error(case)
    assert type(outcome.error) is (expected or type(None)), case.fault
    assert_images(outcome, images_before(case) if expected else images_after(case))


@FEWER
@given(case=swap_cases(faults=FAULTS))
def test_agrees_with_the_reference(package_engine, case):
    assert_conforms(package_engine, case)


@pytest.mark.parametrize("engine", ["reference", "simulated"], indirect=True)  # no transport has a say in it
@pytest.mark.parametrize("fault", OP_FAULTS)
def test_every_single_fault_is_refused(engine, fault):
    """Each by name and many times, so that none depends on Hypothesis choosing it."""
    generator = random.Random(fault)
    cases = (dataclasses.replace(make_case(generator.randint), entry="op", fault=fault) for _ in range(60))
    for case in cases:
        if not all(len(layer.block_shape) in (2, 3) for layer in case.layers):
            continue  # made for a Swapper, which takes any number of axes
        assert type(run_case(engine, case).error) is (expected_error(case) or type(None)), case


@FEWER
@given(case=swap_cases(faults=("one id fewer", "device id -1")))
def test_the_message_says_what_came_and_what_was_expected(engine, case):
    message = str(run_case(engine, case).error)
    assert "expected" in message
    if case.fault == "device id -1":
        assert "position" in message and "-1" in message and "expected 0 " in message


@pytest.mark.parametrize("entry", ["op", "swapper"])
def test_a_negative_id_is_named_with_its_bound(package_engine, entry):
    outcome = run_case(package_engine, small_case([-1], [0], entry=entry, blocks=(4, 8)))
    assert "-1; expected 0 <= id < 4" in str(outcome.error)


@pytest.mark.parametrize("entry", ["op", "swapper"])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_no_pairs_are_a_valid_call(engine, entry, direction):
    case = small_case([], [], entry=entry, direction=direction)
    outcome = run_case(engine, case)
    assert outcome.error is None
    assert_images(outcome, images_before(case))


@FEWER
@given(case=swap_cases(), tapes=st.lists(st.binary(max_size=40), min_size=2, max_size=2))
def test_the_result_does_not_depend_on_timing(transport_or_auto, case, tapes):
    engine = SimulatedEngine(transport_or_auto)
    first, second = (run_case(engine, dataclasses.replace(case, schedule=tape)) for tape in tapes)
    assert_images(first, (second.device, second.host))


# ---- the suite's own test ----


@given(case=swap_cases())
def test_no_two_blocks_of_a_case_share_a_byte(case):
    for side, blocks in (("device", case.device_blocks), ("host", case.host_blocks)):
        spans = sorted(
            (view.offset_bytes + block * view.strides_bytes[0], layer.block_bytes)
            for layer, view in zip(case.layers, layer_views(case, side), strict=True)
            for block in range(blocks)
        )
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))


@pytest.mark.parametrize("fault", ["", *OP_FAULTS])
def test_the_strategy_makes_any_fault_that_is_asked_for(fault):
    once = settings(phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    assert find(swap_cases(faults=(fault,)), lambda case: True, settings=once).fault == fault


class _ForgetsTheLastPair(SimulatedEngine):
    def swap(self, direction, device, host, ids):
        super().swap(direction, device, host, (ids[0][:-1], ids[1][:-1]))


class _RaisesAnotherType(SimulatedEngine):
    def swap(self, direction, device, host, ids):
        try:
            super().swap(direction, device, host, ids)
        except IndexError as error:
            raise ValueError(str(error)) from error


@pytest.mark.parametrize(
    ("broken", "fault", "words"),
    [(_ForgetsTheLastPair(), "", "bytes of the host image differ"), (_RaisesAnotherType(), "host id -1", "raised")],
)
def test_a_broken_engine_is_found_with_a_snippet(broken, fault, words):
    case = small_case([1, 2], [3, 5], entry="swapper", fault=fault)
    with pytest.raises(AssertionError, match=words) as caught:
        assert_conforms(broken, case)
    assert snippet("simulated", case) in str(caught.value)
    assert compare(SimulatedEngine(), case).difference == ""


@pytest.mark.parametrize("name", ["simulated", "simulated-ring"])
def test_a_snippet_runs_and_makes_the_same_case_by_the_same_transport(name):
    case = small_case([1, 2], [3, 5], schedule=b"\x01\x00", seed=7)
    names: dict[str, object] = {}
    exec(snippet(name, case), names)
    assert eval(repr(case), names) == case
    assert f"assert_conforms({name!r}, " in snippet(engine_named(name).name, case)


def test_an_engine_swaps_by_the_transport_it_is_named_after(transport):
    assert engine_named(f"simulated-{transport}").name == f"simulated-{transport}"
    with pytest.raises(ValueError, match="simulated-kernel"):
        engine_named("simulated-teleport")


def test_a_driver_error_in_the_engine_is_a_mismatch():
    class Failing(SimulatedEngine):
        def place(self, case, device_image, host_image):
            placed = super().place(case, device_image, host_image)
            placed._device.simulated_device.driver.fail("cuEventRecord")
            return placed

    comparison = compare(Failing(), small_case([1], [2], entry="swapper"))
    assert comparison.difference
    assert not comparison.refused
