"""``check --stateful``: what it prints, writes and returns."""

from __future__ import annotations

import json

import pytest

from numba_kvswap.__main__ import main

CHECK = ["check", "--engine", "simulated"]


def test_it_counts_what_it_did(tmp_path, capsys):
    file = tmp_path / "history.json"
    assert main([*CHECK, "--stateful", "--steps", "300", "--seed", "3", "--json", str(file)]) == 0
    printed, written = capsys.readouterr().out, json.loads(file.read_text())
    assert "300 steps in 2 worlds on simulated, transports drawn: Swap " in printed
    assert "0 mismatches" in printed and "checkpoints" in printed and "faults" in printed
    assert sum(written["by_kind"].values()) == written["steps"] == 300
    assert written["worlds"] == 2 and written["mismatches"] == 0 and written["seed"] == 3


def test_by_one_transport(capsys):
    assert main([*CHECK, "--stateful", "--steps", "100", "--transport", "ring"]) == 0
    assert "transports ring" in capsys.readouterr().out


def test_a_mismatch_is_exit_status_1_and_says_how_to_repeat_it(capsys, monkeypatch):
    monkeypatch.setattr("numba_kvswap.overlaps.collide", lambda *_: False)
    assert main([*CHECK, "--stateful", "--steps", "20000", "--transport", "copies"]) == 1
    printed = capsys.readouterr().out
    (command,) = (line for line in printed.splitlines() if line.startswith("# python -m numba_kvswap "))
    assert "replay(shape, actions, 'simulated')" in printed
    assert main(command.removeprefix("# python -m numba_kvswap ").split()) == 1
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--steps", "5"], "--examples"), (["--stateful", "--examples", "5"], "--steps")]
)
def test_counts_of_the_other_kind_are_refused_in_words(arguments, word, capsys):
    assert main([*CHECK, *arguments]) == 2
    assert word in capsys.readouterr().err
