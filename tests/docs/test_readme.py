"""The README's code runs as it stands, and its picture is what the package draws."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_code_blocks():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("block", BLOCKS, ids=["op", "swapper", "engine"])
def test_code_block_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_to_files(path):
    assert (ROOT / path).exists()


def test_the_picture_is_svg():
    assert ElementTree.parse(ROOT / "docs" / "plan.svg").getroot().tag.endswith("svg")
