"""The replay's report: the JSON fields that others compare, and the table that people read."""

import json
from dataclasses import replace

import pytest

from numba_kvswap.replay.report import ReplayReport, comparison, runs_json


def example() -> ReplayReport:
    return ReplayReport(
        engine="simulated",
        device="cpu",
        host_slots="lifo",
        transport="auto",
        transfers_by_transport={"ring": 1_200, "kernel": 30},
        requests=12_031,
        blocks_out=233_005,
        blocks_in=41_860,
        blocks_computed=9,
        runs_out=196_447,
        runs_in=34_908,
        host_runs_out=116_502,
        host_runs_in=20_930,
        bytes_out=4_000_000_000,
        bytes_in=1_000_000_000,
        blocks_verified=50_000,
        mismatches=1,
        seconds=9.5,
        swap_seconds_out=2.0,
        swap_seconds_in=0.5,
    )


def test_the_json_holds_the_fields_that_are_compared():
    found = json.loads(example().to_json())
    assert {name: found[name] for name in ("requests", "blocks_out", "blocks_in", "runs_out", "runs_in")} == {
        "requests": 12_031,
        "blocks_out": 233_005,
        "blocks_in": 41_860,
        "runs_out": 196_447,
        "runs_in": 34_908,
    }
    assert (found["bytes_out"], found["bytes_in"]) == (4_000_000_000, 1_000_000_000)
    assert (found["blocks_verified"], found["mismatches"], found["blocks_computed"]) == (50_000, 1, 9)
    assert (found["engine"], found["device"], found["seconds"]) == ("simulated", "cpu", 9.5)
    assert (found["host_runs_out"], found["host_runs_in"]) == (116_502, 20_930)
    assert (found["host_slots"], found["host_headroom_percent"]) == ("lifo", 0.0)
    assert (found["transport"], found["favor"]) == ("auto", "swap")
    assert found["transfers_by_transport"] == {"ring": 1_200, "kernel": 30}
    assert (found["gb_per_s_out"], found["gb_per_s_in"], found["gb_per_s"]) == (2.0, 2.0, 2.0)


def test_the_table_is_aligned_and_says_everything():
    lines = example().table().splitlines()
    heading = next(line for line in lines if line.split() == ["out", "in", "both"])
    ways = lines[lines.index(heading) :]
    assert len({len(line) for line in ways}) == 1
    assert [line.split() for line in ways[1:]] == [
        ["blocks", "233,005", "41,860", "274,865"],
        ["bytes", "4,000,000,000", "1,000,000,000", "5,000,000,000"],
        ["runs", "196,447", "34,908", "231,355"],
        ["blocks", "a", "run", "1.19", "1.20", "1.19"],
        ["host", "runs", "116,502", "20,930", "137,432"],
        ["blocks", "a", "host", "run", "2.00", "2.00", "2.00"],
        ["swap", "seconds", "2.000", "0.500", "2.500"],
        ["GB/s", "2.00", "2.00", "2.00"],
    ]
    assert ["mismatches", "1"] in [line.split() for line in lines]
    assert ["host", "slots", "lifo"] in [line.split() for line in lines]
    transport = ["transport", "auto:", "calls", "1,200", "by", "ring,", "30", "by", "kernel"]
    assert transport in [line.split() for line in lines]
    assert ["requests", "12,031"] in [line.split() for line in lines]


def test_a_replay_that_moved_nothing_still_reports():
    report = ReplayReport(engine="simulated", device="cpu", host_slots="lifo")
    assert json.loads(report.to_json())["gb_per_s"] == 0.0
    assert "blocks a run" in report.table()


def test_headroom_and_favour_are_named_where_they_are_not_the_usual():
    report = ReplayReport("simulated", "cpu", "contiguous", 2.5, transport="auto", favor="compute")
    words = [" ".join(line.split()) for line in report.table().splitlines()]
    assert "host slots contiguous, 2.5 % of them kept free" in words
    assert "transport auto, favor compute" in words


def compared(**link) -> list[list[str]]:
    auto, copies = example(), example()
    copies.transport, copies.swap_seconds_out, copies.swap_seconds_in = "copies", 16.0, 4.0
    for report in (auto, copies):
        for name, rate in link.items():
            setattr(report, name, rate)
    lines = comparison([auto, copies]).splitlines()
    assert len({len(line) for line in lines}) == 1
    return [line.split() for line in lines[1:]]


def test_transports_are_compared_with_each_other_and_with_the_link():
    assert compared(link_gb_per_s_out=4.0, link_gb_per_s_in=4.0) == [
        ["auto", "2.000", "0.500", "2.500", "2.00", "2.00", "2.00", "0.500"],
        ["copies", "16.000", "4.000", "20.000", "0.25", "0.25", "0.25", "0.062"],
        ["the", "link", "1.000", "0.250", "1.250", "4.00", "4.00", "4.00", "1.000"],
    ]
    assert [row[-1] for row in compared()] == ["-", "-"], "without a link there is none to compare with"


def test_one_run_is_written_as_it_is_and_several_as_a_list():
    assert json.loads(runs_json([example()])) == json.loads(example().to_json())
    assert json.loads(runs_json([example()] * 2)) == {"runs": [json.loads(example().to_json())] * 2}


def test_the_links_rate_over_the_same_bytes_weighs_both_ways():
    report = example()
    assert report.link_gb_per_s == 0.0
    report.link_gb_per_s_out, report.link_gb_per_s_in = 4.0, 1.0
    assert report.link_gb_per_s == pytest.approx(5 / (4 / 4 + 1 / 1))


def test_a_replay_that_swapped_nothing_says_so_and_what_to_do():
    assert "nothing was swapped" not in example().table()
    nothing = replace(example(), bytes_out=0, bytes_in=0)
    assert "nothing was swapped: the device held all of it; lower --device-blocks" in nothing.table()


def test_seconds_of_the_simulated_device_are_told_to_mean_nothing():
    assert "seconds on the simulated device mean nothing" in example().table()
    assert "mean nothing" not in replace(example(), engine="cuda").table()
