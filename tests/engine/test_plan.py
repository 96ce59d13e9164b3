"""Plan: what it takes, what it refuses, what it makes of it."""

from __future__ import annotations

import array
import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import Plan
from numba_kvswap.reference import merge_runs
from numba_kvswap.testing.strategies import id_pairs


def runs_of(plan):
    return list(zip(plan.run_source.tolist(), plan.run_target.tolist(), plan.run_blocks.tolist(), strict=True))


# ---- merging ----


@given(pairs=id_pairs())
def test_runs_are_the_references(pairs):
    assert runs_of(Plan(*pairs)) == merge_runs(*pairs)


# Ids of several radix digits, equal in some of them: 11 bits a pass.
WIDE = st.builds(
    lambda a, b, c, d: a + (b << 11) + (c << 22) + (d << 40),
    st.sampled_from([0, 1, 2047]),
    st.integers(0, 1),
    st.sampled_from([0, 3]),
    st.integers(0, 1),
)


@given(pairs=st.lists(st.tuples(WIDE, WIDE), max_size=40))
def test_runs_are_the_references_for_wide_ids(pairs):
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    assert runs_of(Plan(sources, targets)) == merge_runs(sources, targets)


@given(pairs=id_pairs(), order=st.randoms(use_true_random=False))
def test_runs_do_not_depend_on_the_order_of_pairs_once_targets_are_distinct(pairs, order):
    distinct = list({target: source for source, target in zip(*pairs, strict=True)}.items())
    shuffled = order.sample(distinct, len(distinct))
    plans = [Plan([s for _, s in each], [t for t, _ in each]) for each in (distinct, shuffled)]
    assert runs_of(plans[0]) == runs_of(plans[1])


def stretches(ids):
    return 1 + sum(abs(one - other) != 1 for one, other in pairwise(ids)) if ids else 0


@given(pairs=id_pairs(12, 12))
def test_stretches_are_of_neighbours_in_whatever_order_they_came(pairs):
    plan = Plan(*pairs)
    assert plan.stretches == tuple(stretches(sorted(set(ids))) for ids in pairs)
    assert plan.reversed().stretches == plan.stretches[::-1]


@given(count=st.integers(1, 20), step=st.sampled_from([1, -1, 2]))
def test_far_apart_they_are_counted_as_they_came(count, step):
    sources = [10_000, *(100 + step * i for i in range(count))]
    assert Plan(sources, range(count + 1)).stretches == (stretches(sources), 1)


@pytest.mark.parametrize(
    ("sources", "targets", "runs"),
    [
        ([0, 1, 2], [4, 5, 6], [(0, 4, 3)]),
        ([2, 1, 0], [6, 5, 4], [(0, 4, 3)]),
        ([0, 1, 2], [6, 5, 4], [(2, 4, 1), (1, 5, 1), (0, 6, 1)]),
        ([0, 9, 1, 8], [0, 5, 1, 4], [(0, 0, 2), (8, 4, 2)]),
        ([1, 2, 1, 2], [0, 1, 0, 1], [(1, 0, 2)]),
        ([3, 3], [0, 1], [(3, 0, 1), (3, 1, 1)]),
        ([0, 2], [0, 1], [(0, 0, 1), (2, 1, 1)]),
        ([0, 1], [0, 2], [(0, 0, 1), (1, 2, 1)]),
        ([], [], []),
    ],
)
def test_small_plans_by_hand(sources, targets, runs):
    plan = Plan(sources, targets)
    assert runs_of(plan) == runs
    assert (plan.pairs, plan.runs, plan.blocks) == (len(sources), len(runs), len(set(targets)))


@given(pairs=id_pairs())
def test_reversed_is_the_plan_of_the_lists_exchanged(pairs):
    plan = Plan(*pairs, sides=("here", "there"))
    back = plan.reversed()
    assert back == Plan(pairs[1], pairs[0])
    assert runs_of(back) == merge_runs(pairs[1], pairs[0])
    assert back.sides == ("there", "here")
    assert back.reversed() == plan


def test_the_merge_ratio():
    assert Plan([0, 1, 2, 7], [0, 1, 2, 9]).blocks_per_run == 2.0
    assert Plan([], []).blocks_per_run == 0.0


# ---- what it takes ----

FORMS = [
    list,
    tuple,
    iter,
    lambda ids: array.array("q", ids),
    dict.fromkeys,
    lambda ids: [np.int32(i) for i in ids],
    lambda ids: np.array(ids, object),
    *(lambda ids, dtype=dtype: np.array(ids, dtype) for dtype in ("i1", "u1", "i2", "u4", "i8", "u8", ">i4", ">u8")),
    lambda ids: np.array([[i, -1] for i in ids])[:, 0],
    lambda ids: np.array(ids[::-1])[::-1],
]


@pytest.mark.parametrize("form", FORMS)
def test_any_sequence_of_integers_will_do(form):
    ids = [3, 0, 127, 5]
    plan = Plan(form(ids), range(4))
    assert plan == Plan(ids, [0, 1, 2, 3])
    assert plan.source_ids.dtype == np.int64


def test_torch_cpu_tensors_will_do():
    torch = pytest.importorskip("torch")
    assert Plan(torch.tensor([3, 1]), torch.tensor([0, 1], dtype=torch.int32)) == Plan([3, 1], [0, 1])
    for bad in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]])):
        with pytest.raises(TypeError):
            Plan(bad, [0])


def test_empty_arrays_of_any_dtype_are_empty_lists():
    assert Plan(np.array([]), []).pairs == 0


# ---- what it refuses ----


@pytest.mark.parametrize("bad", [True, 1.0, None, "1", 1j, np.bool_(True), np.float32(1), [1], np.array([1, 2])])
@pytest.mark.parametrize("side", [0, 1])
def test_an_id_that_is_not_an_integer(bad, side):
    lists = [[0, 0], [0, 0]]
    lists[side] = [0, bad]
    with pytest.raises(TypeError, match=f"{('source', 'target')[side]} id at position 1 .*expected an integer"):
        Plan(*lists)


@pytest.mark.parametrize("bad", [np.array([1.0]), np.array([True]), np.array([[1]]), np.array(1), "1", np.array(["1"])])
def test_lists_that_are_not_of_integers(bad):
    with pytest.raises(TypeError, match="expected"):
        Plan(bad, [0])


@pytest.mark.parametrize("bad", [None, 3, 1.5])
def test_what_is_no_sequence_at_all(bad):
    with pytest.raises(TypeError):
        Plan(bad, [0])


@pytest.mark.parametrize(("sources", "targets"), [([0], []), ([], [0]), ([0, 1, 2], [5, 6])])
def test_unequal_lists(sources, targets):
    with pytest.raises(ValueError, match=f"{len(sources)} source ids and {len(targets)} target ids; expected as many"):
        Plan(sources, targets)


@pytest.mark.parametrize("form", [list, lambda ids: np.array(ids, "i8")])
@pytest.mark.parametrize("block", [-1, -(2**63)])
def test_negative_ids_are_named(form, block):
    with pytest.raises(IndexError, match=rf"position 2: target id {block}; expected 0 "):
        Plan([0, 0, 0], form([0, 1, block]))


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2**63],
        [1, 2**64 - 1],
        [1, 2**200],
        [1, -(2**70)],
        np.array([1, 2**63], "u8"),
        np.array([1, 2**64 - 1], "u8"),
    ],
)
def test_ids_beyond_63_bits_are_named_as_they_came(ids):
    with pytest.raises(IndexError, match=f"position 1: source id {int(ids[1])};"):
        Plan(ids, [0, 1])


def test_bounds_are_each_sides_own_and_the_first_offender_is_named():
    plan = Plan([0, 5, 6], [3, 2, 1], sides=("gpu", "cpu"))
    plan.check_bounds(7, 4)
    with pytest.raises(IndexError, match="position 2: gpu id 6; expected 0 <= id < 6"):
        plan.check_bounds(6, 4)
    with pytest.raises(IndexError, match="position 0: cpu id 3; expected 0 <= id < 3"):
        plan.check_bounds(7, 3)
    Plan([], []).check_bounds(0, 0)


# ---- a value ----


def test_it_keeps_copies():
    sources, targets = np.array([0, 1]), np.array([2, 3])
    plan = Plan(sources, targets)
    sources[:] = 9
    targets[:] = 9
    assert plan == Plan([0, 1], [2, 3])


@pytest.mark.parametrize("name", ["source_ids", "target_ids", "run_source", "run_target", "run_blocks"])
def test_its_arrays_are_read_only(name):
    for plan in (Plan([0, 1], [2, 3]), Plan([0, 1], [2, 3]).reversed()):
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[0] = 7


def test_its_attributes_cannot_be_set():
    plan = Plan([0, 1], [2, 3])
    with pytest.raises(AttributeError):
        plan.run_source = np.array([5])


@given(one=id_pairs(4, 4, 3), other=id_pairs(4, 4, 3))
def test_equality_and_hash_are_those_of_the_pairs(one, other):
    plans = Plan(*one), Plan(*other)
    assert (plans[0] == plans[1]) is (one == other)
    assert hash(Plan(*one)) == hash(plans[0])
    assert plans[0] != "a plan"


def test_bytes_per_pair():
    count = 10_000
    scattered = np.random.default_rng(0).permutation(count)
    plan = Plan(scattered, scattered[::-1])
    names = ("source_ids", "target_ids", "run_source", "run_target", "run_blocks")
    held = sum(getattr(plan, name).nbytes for name in names)
    assert held / count <= 64
    assert sys.getsizeof(plan) < 200 and not hasattr(plan, "__dict__")


def test_repr_says_what_moves():
    assert repr(Plan([0, 1, 5], [2, 3, 3], sides=("gpu", "cpu"))) == (
        "Plan(3 pairs, gpu -> cpu: 2 blocks in 2 runs, 1.00 blocks a run)"
    )


@given(pairs=id_pairs())
def test_the_picture_is_well_formed_and_draws_every_run(pairs):
    plan = Plan(*pairs)
    picture = ElementTree.fromstring(plan._repr_html_())
    bands = picture.findall("{http://www.w3.org/2000/svg}g")
    assert len(bands) == plan.runs
    assert f"{plan.blocks} blocks in {plan.runs} runs" in "".join(picture.itertext())


def test_a_large_picture_stays_small_and_says_so():
    text = Plan(range(0, 20_000, 2), range(10_000))._repr_html_()
    ElementTree.fromstring(text)
    assert len(text) < 100_000
    assert "first 256 runs shown" in text


def test_the_picture_escapes_the_names_of_its_sides():
    ElementTree.fromstring(Plan([0], [0], sides=("a<b", "c&d"))._repr_html_())
