"""The soak: seconds of it pass, and what it is there to find makes it fail."""

from __future__ import annotations

import dataclasses
import json

import pytest

from numba_kvswap.__main__ import main
from numba_kvswap.driver import KVSwapDriverError
from numba_kvswap.events import EventPair
from numba_kvswap.plan import Plan
from numba_kvswap.replay import soak as soak_module
from numba_kvswap.replay.soak import soak
from numba_kvswap.replay.soak_report import ResidentMemory, SoakReport
from numba_kvswap.swapper import Swapper
from numba_kvswap.transports import copies

ROUNDS = 12  # each transport and "auto", in both layouts
MINUTES = 0.03


@pytest.fixture(autouse=True)
def _shorter(monkeypatch):
    monkeypatch.setattr(soak_module, "REQUESTS", 40)


def silent(line):
    pass


def rounds(count, fault_rate, first=0):
    """So many rounds, whatever the time."""
    report = SoakReport(fault_rate, first, ResidentMemory(60.0))
    while report.well and report.rounds < count:
        soak_module._round(first + report.rounds, fault_rate, float("inf"), report)
        report.rounds += 1
    return report


def test_each_replay_has_a_seed_of_its_own(monkeypatch):
    seeds = []

    def round_of(seed, fault_rate, until, report):
        seeds.append(seed)
        report.failures += ["enough"] * (len(seeds) == 3)

    monkeypatch.setattr(soak_module, "_round", round_of)
    assert soak(1, 0.001, 41, silent).rounds == 3
    assert seeds == [41, 42, 43]


def test_growth_is_counted_from_the_warm_up_on():
    memory = ResidentMemory(seconds_max=1000)
    assert memory.growth_an_hour is None
    for seconds, size in ((1, 100), (100, 900), (120, 1000), (500, 3000), (1020, 1500)):
        memory.sample(size, seconds)
    assert (memory.first, memory.last, memory.largest) == (100, 1500, 3000)
    assert memory.growth_an_hour == pytest.approx(500 / 900 * 3600)


def test_the_command_writes_what_it_found(tmp_path, capsys):
    file = tmp_path / "soak.json"
    assert main(["soak", "--minutes", "0.02", "--faults", "0.01", "--seed", "5", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["seed"], found["fault_rate"], found["mismatches"], found["failures"]) == (5, 0.01, 0, [])
    assert found["swaps"] > 0 and found["memory"]["first_mib"] > 1
    said = capsys.readouterr().out
    assert "0 mismatches" in said and "growth_mib_an_hour" in said


def test_the_command_fails_where_something_is_left(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(soak_module, "_left", lambda driver: ["3 live events left behind"])
    file = tmp_path / "soak.json"
    assert main(["soak", "--minutes", "0.02", "--json", str(file)]) == 1
    assert json.loads(file.read_text())["failures"] == ["seed 0, copies, block_major: 3 live events left behind"]
    assert "3 live events left behind" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--faults", "0.2"], ["--faults", "x"], ["--minutes", "0"], ["--seed", "-1"]])
def test_mistakes_in_the_call(option, capsys):
    with pytest.raises(SystemExit):
        main(["soak", *option])
    assert "expected" in capsys.readouterr().err


def test_the_same_seed_fails_the_same_calls():
    one, other = (rounds(1, 0.01, first=7) for _ in range(2))
    assert one.errors_by_call and one.errors_by_call == other.errors_by_call


def assert_found(fault_rate, what, count=ROUNDS):
    report = rounds(count, fault_rate)
    assert not report.well
    assert what in report.failures[0], report.failures
    assert report.failures[0].startswith("seed ")


def test_undefined_targets_that_are_not_reported_are_found(monkeypatch):
    make = KVSwapDriverError.__init__

    def without(self, call, result_name, *, undefined_targets=(), **more):
        make(self, call, result_name, **more)

    monkeypatch.setattr(KVSwapDriverError, "__init__", without)
    assert_found(0.01, "differ from what they must hold")


def test_a_target_beyond_those_asked_for_is_found(monkeypatch):
    make = KVSwapDriverError.__init__

    def with_another(self, call, result_name, *, undefined_targets=(), **more):
        make(self, call, result_name, undefined_targets=(*undefined_targets, 10**6), **more)

    monkeypatch.setattr(KVSwapDriverError, "__init__", with_another)
    assert_found(0.01, "undefined_targets (")


def test_a_swap_that_is_not_done_again_is_found(monkeypatch):
    """As of a user who takes a failed swap for one that moved nothing, or all."""
    swap_out, latest = Swapper.swap_out, {}

    def takes_the_last_one_for_it(self, *arguments):
        try:
            latest[self] = swap_out(self, *arguments)
        except KVSwapDriverError:
            if self not in latest:
                raise
        return latest[self]

    monkeypatch.setattr(Swapper, "swap_out", takes_the_last_one_for_it)
    assert_found(0.01, "differ")


def test_events_that_leak_are_found(monkeypatch):
    monkeypatch.setattr(EventPair, "__del__", lambda self: None)
    assert_found(0.0, "live events left behind", 1)


def test_a_swap_that_moves_less_is_found(monkeypatch):
    submit = copies.submit

    def one_fewer(job):
        plan = Plan(job.plan.source_ids[1:], job.plan.target_ids[1:])
        return submit(dataclasses.replace(job, plan=plan))

    monkeypatch.setattr(copies, "submit", one_fewer)
    assert_found(0.0, "differ from what they must hold", 1)


def test_a_call_that_never_works_ends_it(monkeypatch):
    refuse = KVSwapDriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")

    def refusing(*_arguments, **_options):
        raise refuse

    monkeypatch.setattr(soak_module.DeviceCache, "allocate", refusing)
    assert_found(0.0, "failed 200 times in turn", 1)


def test_it_ends_in_time_with_at_least_one_whole_replay():
    report = soak(1e-9, 0.001, 3, silent)
    assert (report.rounds, report.requests, report.well) == (1, 40, True)
    report = soak(MINUTES, 0.001, 3, silent)
    assert report.rounds > 1 and report.seconds < 60 * MINUTES + 30
    assert report.memory.first > 0 and report.memory.largest >= report.memory.last


def test_without_faults_nothing_is_asked_again():
    report = rounds(6, 0.0)
    assert report.well and report.swaps > 100
    assert (report.retries, report.faults_by_call, report.blocks_undefined) == (0, {}, 0)


def test_with_faults_all_blocks_are_right_and_nothing_is_left():
    report = rounds(ROUNDS, 0.01)
    assert report.failures == []
    assert (report.mismatches, report.rounds, report.requests) == (0, ROUNDS, ROUNDS * 40)
    assert report.retries > 20 and report.blocks_undefined > 0 and report.blocks_verified > 10_000
    assert sum(report.faults_by_call.values()) >= report.retries == sum(report.errors_by_call.values())
    assert set(report.transfers_by_transport) >= {"copies", "batch", "kernel", "ring", "split"}
