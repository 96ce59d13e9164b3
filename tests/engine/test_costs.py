"""The cost model against itself said once more in plain Python; its file, whole and damaged."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_rig import Rig

from numba_kvswap import Plan
from numba_kvswap.costs import CURVES, MODELLED, CostModel, Costs, Curve, h200_costs
from numba_kvswap.testing.strategies import id_pairs
from numba_kvswap.transports.named import TRANSPORTS

positive = st.floats(1e-9, 1e-2)


@st.composite
def curves(draw):
    sizes = sorted(draw(st.sets(st.integers(1, 1 << 24), min_size=1, max_size=6)))
    return Curve(draw(positive), sizes, [draw(positive) for _ in sizes])


@st.composite
def costs(draw):
    ways = [{name: draw(curves()) for name in CURVES} for _ in range(2)]
    return Costs(draw(st.text(max_size=10)), *ways, {name: draw(st.floats(0.5, 3.0)) for name in CURVES})


# ---- curves ----


def test_the_transports_of_the_model_are_those_there_are():
    assert tuple(TRANSPORTS) == MODELLED


@given(curve=curves(), size=st.floats(0.5, 1e9))
def test_a_curve_is_read_on_a_line_in_the_logarithms_of_both(curve, size):
    found = curve.at(size)
    if size <= curve.bytes[0]:
        assert found == curve.piece_s[0]
    elif size >= curve.bytes[-1]:
        assert found == pytest.approx(curve.piece_s[-1] / curve.bytes[-1] * size, rel=1e-12)
    else:
        above = next(i for i, b in enumerate(curve.bytes) if b >= size)
        a, b = curve.bytes[above - 1 : above + 1]
        part = math.log(size / a) / math.log(b / a)
        expected = curve.piece_s[above - 1] ** (1 - part) * curve.piece_s[above] ** part
        assert found == pytest.approx(expected, rel=1e-9)


# ---- the model ----


def resampled(curve, size):
    """A curve as the model holds it: by powers of two up to 2 GiB, the same line between, as much a byte beyond."""
    power = math.log2(max(1.0, size))
    if power >= 31:
        return curve.at(1 << 31) * size / (1 << 31)
    below = math.floor(power)
    low, high = curve.at(1 << below), curve.at(1 << (below + 1))
    return low * (high / low) ** (power - below)


def expected_in_words(costs, rig, pair, plan, direction, wait_s, copy_s):
    """What costs.py says a piece is, of each transport."""
    way = costs.out if direction == "out" else costs.in_
    expected = {name: way["ring" if name == "split" else name].fixed_s for name in MODELLED}
    runs, blocks = plan.runs, plan.blocks
    if not blocks:
        return expected
    length = blocks / runs
    groups = pair.groups
    for (_, d_stride, _), (_, h_stride, _), size, layers in zip(
        groups.device.tolist(), groups.host.tolist(), groups.block_bytes.tolist(), groups.layers.tolist(), strict=True
    ):
        dense = d_stride == size == h_stride
        pieces, piece = (1.0, length * size) if dense else (length, size)
        rows = way["rows"]
        as_rows = not dense and length > 1 and max(d_stride, h_stride) <= pair.driver.pitch_bytes_max
        calls_by_layer = layers * (1.0 if as_rows else pieces)
        if pieces < calls_by_layer:
            expected["copies"] += runs * pieces * (layers * resampled(rows, piece) + rows.fixed_s + copy_s)
        elif as_rows:
            expected["copies"] += runs * layers * (length * resampled(rows, size) + rows.fixed_s + copy_s)
        else:
            expected["copies"] += runs * layers * pieces * (resampled(way["copies"], piece) + copy_s)
        expected["batch"] += runs * layers * pieces * (resampled(way["batch"], piece) + copy_s)
        expected["kernel"] += blocks * layers * resampled(way["kernel"], size)
    stretches = plan.stretches[1 if direction == "out" else 0]
    rows_a_slot = rig.driver.ring_slot_bytes // sum(rig.sizes)
    pieces = [sum(rig.sizes)] if rig.layout == "block_major" else list(rig.sizes)  # that lie side by side, or not
    count = min(float(blocks), stretches + blocks / max(1, rows_a_slot))
    ring_s = sum(count * (resampled(way["ring"], blocks / count * size) + copy_s) for size in pieces)
    by_batches = min(blocks, rig.driver.split_batch_bytes // sum(rig.sizes)) / blocks
    batches_s = by_batches * (expected["batch"] - way["batch"].fixed_s)
    expected["split"] += max(batches_s, wait_s) + (1 - by_batches) * ring_s if by_batches < 1 else batches_s
    expected["ring"] += ring_s + wait_s
    return expected


@given(
    costs=costs(),
    ids=id_pairs(16, 16),
    direction=st.sampled_from(("out", "in")),
    layout=st.sampled_from(("layer_major", "block_major")),
    sizes=st.one_of(
        st.lists(st.integers(1, 5000), min_size=1, max_size=4), st.integers(1, 3000).map(lambda size: [size] * 5)
    ),
    ring_blocks=st.integers(1, 9),
    pitch=st.sampled_from((2**31 - 1, 4000)),
    waits_s=st.sampled_from(((0.0, 0.0), (1e-3, 1e-5))),
)
def test_the_model_is_what_its_words_say(costs, ids, direction, layout, sizes, ring_blocks, pitch, waits_s):
    rig = Rig(sizes=sizes, layout=layout, ring_blocks=ring_blocks, pitch_bytes_max=pitch)
    pair, plan = rig.swapper("copies").pair, Plan(*ids)
    wait_s, copy_s = waits_s
    found = CostModel(costs, pair, direction, wait_s=wait_s, copy_s=copy_s).expected(plan)
    expected = expected_in_words(costs, rig, pair, plan, direction, wait_s, copy_s)
    assert found == pytest.approx(list(expected.values()), rel=1e-9)


def test_of_a_plan_the_stretches_on_the_host_count():
    pair, plan = Rig().swapper("copies").pair, Plan([0, 1, 2, 3], [0, 2, 4, 6])
    assert [CostModel(h200_costs(), pair, way).sizes_of(plan) for way in ("out", "in")] == [(4, 4, 4), (4, 4, 1)]


def test_parts_of_a_swap_share_what_is_fixed():
    pair, none, wait_s = Rig().swapper("copies").pair, Plan([], []), 1e-3
    whole, part = (CostModel(h200_costs(), pair, "out", wait_s=wait_s, parts=parts) for parts in (1, 4))
    np.testing.assert_allclose(part.expected(none), whole.expected(none) / 4)
    ring, one = MODELLED.index("ring"), Plan([0], [0])
    without = CostModel(h200_costs(), pair, "out", parts=4)
    assert part.expected(one)[ring] - without.expected(one)[ring] == pytest.approx(wait_s / 4)


def test_of_no_blocks_there_is_only_what_a_swap_costs_anyhow():
    rig = Rig()
    found = CostModel(h200_costs(), rig.swapper("copies").pair, "in").expected(Plan([], []))
    curves = h200_costs().in_
    assert found.tolist() == [curves["ring" if name == "split" else name].fixed_s for name in MODELLED]


def test_a_block_beyond_a_slot_has_an_expectation_too():
    rig = Rig(ring_slot_bytes=5)
    assert np.isfinite(CostModel(h200_costs(), rig.swapper("copies").pair, "out").expected(Plan([0], [0]))).all()


# ---- the file ----


@given(costs=costs())
def test_costs_are_what_their_text_says(costs):
    assert Costs.from_json(costs.to_json()) == costs


def test_the_figures_that_come_with_the_package_are_whole():
    assert set(h200_costs().out) == set(h200_costs().in_) == set(CURVES)
    assert "H200" in h200_costs().machine


def damaged(kind, good):
    found = json.loads(good)
    curve = found["in_"]["ring"]
    if kind == "a way is missing":
        del found["out"]
    elif kind == "a curve is missing":
        del found["in_"]["kernel"]
    elif kind == "a field is missing":
        del curve["bytes"]
    elif kind == "a factor is missing":
        del found["both_ways"]["ring"]
    elif kind == "a factor of 0":
        found["both_ways"]["ring"] = 0
    elif kind == "no machine":
        del found["machine"]
    elif kind == "a list":
        return json.dumps([found])
    elif kind == "a null curve":
        found["in_"]["ring"] = None
    else:
        curve.update(
            {
                "a size less": {"bytes": curve["bytes"][:-1]},
                "no sizes": {"bytes": [], "piece_s": []},
                "sizes that fall": {"bytes": curve["bytes"][::-1]},
                "a size of 0": {"bytes": [0, *curve["bytes"][1:]]},
                "a cost of 0": {"piece_s": [0.0, *curve["piece_s"][1:]]},
                "a negative cost": {"piece_s": [-1e-6, *curve["piece_s"][1:]]},
                "a cost that is no number": {"piece_s": [float("nan"), *curve["piece_s"][1:]]},
                "an endless cost": {"piece_s": [float("inf"), *curve["piece_s"][1:]]},
                "a swap for nothing": {"fixed_s": 0.0},
                "a swap that is no number": {"fixed_s": "soon"},
                "sizes that are none": {"bytes": "many"},
                "a cost that is a list": {"piece_s": [[1.0], *curve["piece_s"][1:]]},
                "a swap of null": {"fixed_s": None},
            }[kind]
        )
    return json.dumps(found)


DAMAGES = (
    "a way is missing",
    "a curve is missing",
    "a field is missing",
    "a factor is missing",
    "a factor of 0",
    "no machine",
    "a list",
    "a null curve",
    "a size less",
    "no sizes",
    "sizes that fall",
    "a size of 0",
    "a cost of 0",
    "a negative cost",
    "a cost that is no number",
    "an endless cost",
    "a swap for nothing",
    "a swap that is no number",
    "sizes that are none",
    "a cost that is a list",
    "a swap of null",
)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_text_that_is_no_costs_is_a_value_error(kind):
    with pytest.raises(ValueError, match="no costs of transports"):
        Costs.from_json(damaged(kind, h200_costs().to_json()))


@pytest.mark.parametrize("kind", ["deep", "endless", "huge"])
def test_so_is_what_python_cannot_take_in(kind):
    found = json.loads(h200_costs().to_json())
    found["out"]["ring"]["bytes"][-1] = float("inf")
    if kind == "huge":
        found["out"]["ring"]["bytes"][-1], found["both_ways"]["ring"] = 1 << 30, 10**400
    with pytest.raises(ValueError, match="no costs of transports"):
        Costs.from_json("[" * 200_000 if kind == "deep" else json.dumps(found))


@given(text=st.one_of(st.text(max_size=30), st.integers(0, 3000).map(lambda cut: h200_costs().to_json()[:cut])))
def test_so_is_any_other_text(text):
    with pytest.raises(ValueError, match="no costs of transports"):
        Costs.from_json(text)
