"""The tests' own test: plant a bug in a copy of the package, and see a bounded run fail.

``python tests/planted/run.py`` does the same and prints what caught each bug.
"""

from __future__ import annotations

import pytest
from bug import CHECK
from bugs import ALWAYS, BUGS
from workshop import TESTS, Workshop, occurrences

_NAMES = [bug.name for bug in BUGS]
_RUNS = sorted({bug.caught_by for bug in BUGS})


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A copy on which `check` has run and found nothing."""
    workshop = Workshop(tmp_path_factory.mktemp("planted"))
    verdict = workshop.run(CHECK)
    assert verdict.passed, verdict.said
    return workshop


@pytest.mark.parametrize("bug", BUGS, ids=_NAMES)
def test_its_text_stands_in_the_package_exactly_once(bug):
    assert occurrences(bug) == 1
    assert bug.old != bug.new
    assert bug.caught_by.startswith(CHECK) or (TESTS / bug.caught_by).is_file()


def test_names_are_told_apart_and_those_always_planted_exist():
    assert len(set(_NAMES)) == len(_NAMES)
    assert set(ALWAYS) <= set(_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("by", _RUNS)
def test_the_package_without_a_bug_passes(workshop, by):
    verdict = workshop.run(by)
    assert verdict.passed and not verdict.caught, verdict.said


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=() if bug.name in ALWAYS else pytest.mark.slow, id=bug.name) for bug in BUGS]
)
def test_a_planted_bug_is_caught(workshop, bug):
    verdict = workshop.run_with(bug)
    assert verdict.caught, f"{bug.name} got past {bug.caught_by}: {verdict.said}"
