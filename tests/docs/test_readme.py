"""The README's code runs as it stands, and its picture is what the package draws."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from numba_kvswap import Plan
from numba_kvswap.plan_picture import svg

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_code_blocks():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("block", BLOCKS, ids=["op", "swapper", "transports", "engine"])
def test_code_block_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_to_files(path):
    assert (ROOT / path).exists()


def scattered_plan() -> Plan:
    """Runs of 1 to 5 blocks, dealt out on the host side in another order than on the device's."""
    lengths = [1 + run * 7 % 5 for run in range(22)]
    dealt = [run * 9 % 22 for run in range(22)]  # 9 and 22 share no factor, so each comes once
    host_first = {run: sum(lengths[other] + 1 for other in dealt[:place]) for place, run in enumerate(dealt)}
    pairs = [(run * 6 + i, host_first[run] + i) for run, length in enumerate(lengths) for i in range(length)]
    return Plan([device for device, _ in pairs], [host for _, host in pairs], sides=("device", "host"))


def test_the_picture_is_what_the_package_draws():
    """To draw it anew: write ``svg(scattered_plan())`` and a line end into docs/plan.svg."""
    picture = (ROOT / "docs" / "plan.svg").read_text(encoding="utf-8")
    assert picture == svg(scattered_plan()) + "\n"
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert f"A plan of {scattered_plan().pairs} pairs" in README
