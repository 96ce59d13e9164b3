"""The table of promises names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMED = sorted(set(re.findall(r"\w+/test_\w+\.py", (TESTS.parent / "docs/promises.md").read_text(encoding="utf-8"))))


def test_the_table_names_tests():
    assert len(NAMED) > 10


@pytest.mark.parametrize("name", NAMED)
def test_each_file_that_is_named_is_there(name):
    assert (TESTS / name).is_file()
