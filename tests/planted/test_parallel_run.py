"""The command that plants bugs: which it picks, what it says of them, and that runs may go on at the same time."""

from __future__ import annotations

import json

import pytest
import run
import workshop as workshop_module
from bug import CHECK, Bug
from workshop import Verdict, Workshop

BUGS = [Bug(f"bug {index}", "ids.py" if index % 2 else "plan.py", "old", "new") for index in range(7)]


@pytest.mark.parametrize(
    ("words", "file", "part", "expected"),
    [
        ([], None, (1, 1), [0, 1, 2, 3, 4, 5, 6]),
        (["bug", "3"], None, (1, 1), [3]),
        ([], "ids.py", (1, 1), [1, 3, 5]),
        ([], None, (2, 3), [1, 4]),
        ([], "ids.py", (2, 2), [3]),
    ],
)
def test_words_a_file_and_a_part_pick_bugs(words, file, part, expected):
    assert run.chosen_of(BUGS, words, file, part) == [BUGS[index] for index in expected]


def test_the_parts_are_the_whole():
    parts = [bug for part in (1, 2, 3) for bug in run.chosen_of(BUGS, [], None, (part, 3))]
    assert sorted(parts, key=BUGS.index) == BUGS


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b", ""])
def test_another_part_is_a_mistake_in_the_call(part, capsys):
    with pytest.raises(SystemExit):
        run.main(["--part", part], BUGS)
    assert "expected 1/3" in capsys.readouterr().err


class FakeWorkshop:
    """Bug 2 survives, and one test fails without a bug where asked for."""

    broken = ""

    def __init__(self, folder):
        pass

    def run(self, by):
        return Verdict(False, by != self.broken, "all passed", 0.5)

    def run_with(self, bug):
        return Verdict(bug.name != "bug 2", False, "1 failed", float(bug.name[-1]))


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(run, "Workshop", FakeWorkshop)


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_summary_names_what_survived_and_the_slowest(fake, capsys, tmp_path, jobs):
    file = tmp_path / "runs.json"
    assert run.main(["-j", str(jobs), "--json", str(file)], BUGS) == 1
    said = capsys.readouterr().out
    assert "7 bugs planted, 6 caught" in said
    slowest = said[said.index("the slowest:") :].splitlines()[1:8]
    assert [line.split("  ")[-1] for line in slowest] == [f"bug {index}" for index in range(6, -1, -1)]
    assert "survived: bug 2 (plan.py), check: 1 failed" in said
    assert said.count("survived:") == 1
    runs = json.loads(file.read_text())["runs"]
    assert len(runs) == 8 and [each["name"] for each in runs if not each["well"]] == ["bug 2"]


def test_none_survived(fake):
    assert run.main(["--file", "ids.py"], BUGS) == 0


def test_a_run_that_fails_without_a_bug_is_no_success(fake, monkeypatch, capsys):
    monkeypatch.setattr(FakeWorkshop, "broken", CHECK)
    assert run.main(["--file", "ids.py"], BUGS) == 1
    assert "failed without a bug: check" in capsys.readouterr().out


def test_no_bug_of_that_name_is_a_mistake_in_the_call(fake):
    assert run.main(["no such name"], BUGS) == 2


# ---- the workshop itself, with a package of one file in place of ours ----


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A workshop of a package whose runs print what its file says, and pass where that is "old"."""
    for name in ("PACKAGE", "REFERENCE"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        monkeypatch.setattr(workshop_module, name, folder)
    (tmp_path / "PACKAGE" / "ids.py").write_text(
        "import sys, pathlib\nword = 'old'\n"
        "compiled = pathlib.Path(__file__).parent / '__pycache__'\ncompiled.mkdir(exist_ok=True)\n"
        "print('#', word, len(list(compiled.iterdir())))\n"
        "(compiled / 'f-1.py311.nbi').write_text('')\n(compiled / 'f-1.py311.1.nbc').write_text('')\n"
        "sys.exit(word != 'old')\n"
    )
    monkeypatch.setattr(workshop_module, "_arguments", lambda by: ["numba_kvswap.ids"])
    return Workshop(tmp_path / "workshop")


def test_what_a_run_compiles_is_there_for_the_next_and_a_bug_stays_in_its_copy(tiny):
    bug = Bug("new", "ids.py", "word = 'old'", "word = 'new'")
    assert tiny.run(CHECK).said == "# old 0"
    assert tiny.run(CHECK).said == "# old 2"
    verdict = tiny.run_with(bug)
    assert verdict.caught and verdict.said == "# new 2"
    assert tiny.run(CHECK).passed, "the bug is gone"
    assert [folder.name for folder in tiny._folder.iterdir()] == ["base"]


def test_a_bug_whose_text_is_not_there_is_refused(tiny):
    with pytest.raises(ValueError, match="stands 0 times"):
        tiny.run_with(Bug("gone", "ids.py", "no such text", ""))


def test_a_run_without_end_is_no_bug_found(tiny, monkeypatch):
    monkeypatch.setattr(workshop_module, "SECONDS_MAX", 1)
    verdict = tiny.run_with(Bug("hangs", "ids.py", "import sys", "import time; time.sleep(60); import sys"))
    assert not verdict.caught and not verdict.passed
    assert verdict.said == "still running after 1 s"


def test_whoever_has_more_compiled_forms_of_a_function_keeps_all_of_them(tmp_path):
    for side, forms in (("one", 1), ("other", 2)):
        folder = tmp_path / side / "__pycache__"
        folder.mkdir(parents=True)
        for name in ["f-1.py311.nbi", *(f"f-1.py311.{n}.nbc" for n in range(1, forms + 1))]:
            (folder / name).write_text(side)
    workshop_module._keep_compiled(tmp_path / "other", tmp_path / "one")
    assert {file.read_text() for file in (tmp_path / "one" / "__pycache__").iterdir()} == {"other"}
    (tmp_path / "other" / "__pycache__" / "f-1.py311.2.nbc").unlink()
    workshop_module._keep_compiled(tmp_path / "other", tmp_path / "one")
    assert len(list((tmp_path / "one" / "__pycache__").iterdir())) == 3
