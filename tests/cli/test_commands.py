"""The command line: what it prints, writes and returns."""

from __future__ import annotations

import json

import pytest

from numba_kvswap import check as check_module
from numba_kvswap import disk_cache
from numba_kvswap.__main__ import main
from numba_kvswap.bench import run as bench_run
from numba_kvswap.bench.matrix_report import MatrixReport
from numba_kvswap.bench.report import HostTimeReport
from numba_kvswap.bench.scattered_swap import Geometry
from numba_kvswap.driver import KVSwapDriverError, cuda_available, why_no_cuda
from numba_kvswap.link import Link
from numba_kvswap.replay import run as replay_run
from numba_kvswap.replay.report import ReplayReport
from numba_kvswap.testing import SimulatedEngine, engine_named

CHECK_FIELDS = {"engine", "examples", "invalid_examples", "mismatches", "seconds"}
REPLAY_FIELDS = {
    "requests",
    "blocks_out",
    "blocks_in",
    "runs_out",
    "runs_in",
    "host_runs_out",
    "host_runs_in",
    "bytes_out",
    "bytes_in",
    "blocks_verified",
    "mismatches",
    "engine",
    "device",
    "host_slots",
    "host_headroom_percent",
    "transport",
    "favor",
    "transfers_by_transport",
    "seconds",
}


def test_info_names_versions_and_the_engine(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("numba_kvswap", "numpy", "numba-cuda", "cuda-bindings", "toolkit", "pinned memory", "engine"):
        assert word in text
    assert f"cache folder   {disk_cache.cache_folder()}" in text
    assert "ring           8 slots of 16 MiB" in text
    if cuda_available():
        for call in ("cuMemcpyAsync", "cuMemcpy2DAsync", "cuEventRecord"):
            assert f"{call} at 0x" in text
    else:
        assert why_no_cuda() in text
        assert "to use a GPU" in text


def test_check_writes_its_counts(tmp_path, capsys):
    file = tmp_path / "check.json"
    assert main(["check", "--examples", "60", "--seed", "3", "--engine", "simulated", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report.keys() >= CHECK_FIELDS
    assert (report["engine"], report["examples"], report["mismatches"]) == ("simulated", 60, 0)
    assert 0 < report["invalid_examples"] < 60
    assert "0 mismatches" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["copies", "ring"])
def test_check_by_one_transport(tmp_path, name):
    file = tmp_path / "check.json"
    arguments = ["check", "--examples", "20", "--engine", "simulated", "--transport", name, "--json", str(file)]
    assert main(arguments) == 0
    assert json.loads(file.read_text())["engine"] == f"simulated-{name}"


def test_the_same_seed_makes_the_same_calls():
    reports = [check_module.check(engine_named("simulated"), 40, seed=5)[0] for _ in range(2)]
    assert reports[0].invalid_examples == reports[1].invalid_examples


class ForgetsToWait(SimulatedEngine):
    """Swaps nothing at all."""

    def swap(self, direction, device, host, ids):
        pass


def test_a_mismatch_is_exit_status_1_with_a_snippet(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("numba_kvswap.testing.engine_named", lambda name: ForgetsToWait())
    file = tmp_path / "check.json"
    assert main(["check", "--examples", "60", "--engine", "simulated", "--json", str(file)]) == 1
    assert json.loads(file.read_text())["mismatches"] > 0
    text = capsys.readouterr().out
    assert "assert_conforms('simulated', SwapCase(" in text


def test_replay_of_a_made_trace(tmp_path, capsys):
    file = tmp_path / "replay.json"
    arguments = ["replay", "--requests", "150", "--device-blocks", "300", "--host-blocks", "900", "--seed", "2"]
    assert main([*arguments, "--engine", "simulated", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report.keys() >= REPLAY_FIELDS
    assert (report["requests"], report["mismatches"]) == (150, 0)
    assert report["blocks_out"] > 0
    assert report["bytes_out"] == report["blocks_out"] * 2048  # tiny: 2 layers of K and V, 512 bytes each
    assert report["host_slots"] == "contiguous"
    assert "blocks a run" in capsys.readouterr().out


def test_replay_with_the_slots_asked_for(tmp_path):
    file = tmp_path / "replay.json"
    arguments = ["replay", "--requests", "50", "--device-blocks", "300", "--host-blocks", "900", "--host-slots", "lifo"]
    assert main([*arguments, "--engine", "simulated", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["host_slots"] == "lifo"


SMALL_REPLAY = ["replay", "--requests", "50", "--device-blocks", "300", "--host-blocks", "900", "--engine", "simulated"]


def test_replay_with_headroom_and_the_favour_asked_for(tmp_path):
    file = tmp_path / "replay.json"
    assert main([*SMALL_REPLAY, "--host-headroom", "2.5", "--favor", "compute", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert (report["host_headroom_percent"], report["favor"], report["transport"]) == (2.5, "compute", "auto")
    assert report["transfers_by_transport"]


def test_replay_by_several_transports_compares_them(tmp_path, capsys):
    file = tmp_path / "replay.json"
    arguments = ["--transport", "copies,auto", "--transport", "ring", "--json", str(file)]
    assert main([*SMALL_REPLAY, *arguments]) == 0
    runs = json.loads(file.read_text())["runs"]
    assert [run["transport"] for run in runs] == ["copies", "auto", "ring"]
    assert [set(run["transfers_by_transport"]) for run in runs[::2]] == [{"copies"}, {"ring"}]
    assert len({(run["requests"], run["blocks_out"], run["bytes_in"]) for run in runs}) == 1, "the same trace each time"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["copies", "auto", "ring"]
    assert lines[-4].startswith("swap seconds and GB/s")
    assert main([*SMALL_REPLAY, "--transport", "batch", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["transport"] == "batch", "of one run the report as it is"
    assert "swap seconds and GB/s" not in capsys.readouterr().out


def test_a_replay_that_is_wrong_by_one_transport_is_exit_status_1(monkeypatch):
    def wrong(requests, layers, placement, stage, transport, favor):
        list(requests)
        return ReplayReport("simulated", "made up", "lifo", transport=transport, mismatches=transport == "batch")

    monkeypatch.setattr("numba_kvswap.replay.run.replay", wrong)
    assert main([*SMALL_REPLAY, "--transport", "batch,copies"]) == 1
    assert main([*SMALL_REPLAY, "--transport", "copies"]) == 0


def test_a_replay_that_ends_midway_keeps_the_runs_before(tmp_path, monkeypatch, capsys):
    real = replay_run.replay

    def fails_by_ring(requests, layers, placement, stage, transport, favor):
        if transport == "ring":
            raise KVSwapDriverError("cuLaunchKernel", "CUDA_ERROR_PLANTED")
        return real(requests, layers, placement, stage, transport, favor)

    monkeypatch.setattr(replay_run, "replay", fails_by_ring)
    file = tmp_path / "replay.json"
    assert main([*SMALL_REPLAY, "--transport", "copies,ring", "--json", str(file)]) == 2
    assert "CUDA_ERROR_PLANTED" in capsys.readouterr().err
    assert json.loads(file.read_text())["transport"] == "copies"


def test_replay_in_smaller_blocks_and_other_geometries(capsys):
    small = ["replay", "--requests", "40", "--device-blocks", "512", "--host-blocks", "1024", "--engine", "simulated"]
    assert main([*small, "--block-tokens", "64"]) == 0
    assert main([*small, "--block-tokens", "64", "--model", "deepseek-v3", "--layers", "1"]) == 0
    assert main([*small, "--block-tokens", "64", "--model", "llama-3-70b", "--tp", "8", "--layers", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "--model", "gpt-9"], "llama-3-8b"),
        (["replay", "nowhere.jsonl"], "nowhere.jsonl"),
        (["replay", "--block-tokens", "100"], "expected a divisor of 512"),
        (["replay", "--model", "llama-3-8b", "--tp", "3"], "does not divide"),
        (["check", "--json", "/nonexistent/check.json"], "/nonexistent/check.json"),
        (["replay", "--device-blocks", "1", "--block-tokens", "64"], "device_blocks"),
        (["replay", "--transport", "copies,pigeon"], "'pigeon'; expected 'auto' or one of copies, batch, kernel, ring"),
        (["replay", "--model", "llama-3-8b"], "500.0 GiB of pinned memory, which is not to be had"),
    ],
)
def test_a_mistake_in_the_call_is_exit_status_2_in_words(arguments, words, capsys):
    assert main([*arguments, "--engine", "simulated"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("text", "words"), [("{}", "the report has fields"), ("no json", "Expecting value")])
def test_plot_of_something_else_is_exit_status_2_in_words(text, words, tmp_path, capsys):
    file = tmp_path / "else.json"
    file.write_text(text)
    assert main(["plot", str(file)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-3", "x", "1.5"])
def test_counts_are_whole_and_positive(value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--examples", value])
    assert ended.value.code == 2
    assert "expected a whole number, 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf"])
def test_minutes_are_above_0(value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--minutes", value])
    assert ended.value.code == 2
    assert "expected a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "100", "x", "nan"])
def test_headroom_is_a_part_of_the_whole(value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--host-headroom", value])
    assert ended.value.code == 2
    assert "expected a number from 0 to below 100" in capsys.readouterr().err


def test_a_bench_that_ends_midway_keeps_what_it_has(tmp_path, monkeypatch):
    file = tmp_path / "bench.json"

    def measured(driver, axes, seconds, repeats, keep):
        keep(MatrixReport(1.0, 2.0, 3, Link(1, 1.0, 1.0), [], [], [], [], {}, 9, ""))
        assert json.loads(file.read_text())["matrix"]["not_reached"] == 9
        raise KeyboardInterrupt

    host_time = HostTimeReport("simulated", 1, {}, {}, Geometry(1, 1, 1, 2), [], [])
    monkeypatch.setattr(bench_run, "measure_host_time", lambda engine, repeats, calls, only_calls: host_time)
    monkeypatch.setattr(bench_run, "measure_matrix", measured)
    with pytest.raises(KeyboardInterrupt):
        main(["bench", "--engine", "simulated", "--json", str(file)])
    found = json.loads(file.read_text())
    assert found["host_time"]["repeats"] == 1 and found["matrix"]["not_reached"] == 9
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_bench_beside_a_python_thread(tmp_path, capsys):
    file = tmp_path / "beside.json"
    few = ["--beside", "python", "--window", "0.01"]
    assert main(["bench", "--engine", "simulated", *few, "--json", str(file)]) == 0
    assert "slowdown" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["beside"]["work"] == "python"
    assert report["matrix"] is None
    assert main(["bench", "--engine", "simulated", "--beside", "gemm"]) == 2
    assert "expected python" in capsys.readouterr().err


def test_bench_measures_a_part_or_beside_other_work(capsys):
    assert main(["bench", "--engine", "simulated", "--what", "pool", "--beside", "python"]) == 2
    assert "--what pool and --beside python came; expected one of them" in capsys.readouterr().err


def test_a_command_that_fails_leaves_no_file_of_its_own(tmp_path, capsys):
    for file, text in ((tmp_path / "new.json", None), (tmp_path / "old.json", "what it held")):
        if text:
            file.write_text(text)
        assert main(["replay", "--transport", "no such", "--engine", "simulated", "--json", str(file)]) == 2
        assert "no such" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what it held"]


@pytest.mark.parametrize("text", ["{}", "[1]", "no JSON", "[" * 200_000], ids=["object", "list", "none", "deep"])
def test_plot_names_the_file_that_it_cannot_draw(tmp_path, capsys, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    assert main(["plot", str(file), "--out", str(tmp_path)]) == 2
    assert f"{file}: " in capsys.readouterr().err


@pytest.mark.skipif(cuda_available(), reason="this machine has CUDA")
def test_the_cuda_engine_without_a_gpu_says_what_is_missing(capsys):
    assert main(["replay", "--engine", "cuda"]) == 2
    assert "CUDA" in capsys.readouterr().err
