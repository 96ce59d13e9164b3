"""``calibrate`` and what ``info`` says of it: on a simulated device that passes for a GPU, and without one."""

from __future__ import annotations

import json

import pytest

from numba_kvswap import calibration, calibration_report, disk_cache
from numba_kvswap.__main__ import main
from numba_kvswap.calibration_report import costs_lines, kept_lines
from numba_kvswap.costs import CURVES, Costs, Curve, h200_costs
from numba_kvswap.driver import SimulatedDriver, cuda_available, why_no_cuda


class PretendedGPU(SimulatedDriver):
    name = "cuda"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A driver that takes an H200's costs when it is measured, and an empty cache folder."""
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path / "cache"))
    driver = PretendedGPU()
    monkeypatch.setattr(calibration_report, "cuda_available", lambda: True)
    monkeypatch.setattr(calibration_report, "cuda_driver", lambda: driver)
    monkeypatch.setattr(calibration, "measured", lambda driver, device: h200_costs())
    return driver


def kept(driver) -> str:
    with driver.activate(0):
        (line,) = kept_lines(driver)
    return line


def test_what_is_measured_is_kept_shown_and_written(gpu, tmp_path, capsys):
    folder = disk_cache.cache_folder()
    assert f"none of device 0 in {folder}" in kept(gpu)
    assert main(["calibrate", "--json", str(tmp_path / "costs.json")]) == 0
    (file,) = folder.iterdir()
    assert kept(gpu) == f"calibration    of device 0 in {file}"
    assert Costs.from_json((tmp_path / "costs.json").read_text()) == h200_costs()
    text = capsys.readouterr().out
    assert "measured in 0.0" in text and str(file) in text
    assert "\n".join(costs_lines(h200_costs())) in text


def test_a_calibration_that_cannot_be_read_is_none(gpu):
    assert main(["calibrate"]) == 0
    (file,) = disk_cache.cache_folder().iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert "none of device 0" in kept(gpu)


def test_every_curve_is_shown_by_size_each_way():
    def curves(scale: float) -> dict[str, Curve]:
        """Of the n-th curve a swap takes n us, a piece of 1 KiB n ns; those of the ring also one of 16 MiB."""
        found = {name: Curve(n * 1e-6 * scale, [1024], [n * 1e-9 * scale]) for n, name in enumerate(CURVES, 1)}
        ring = found["ring"]
        found["ring"] = Curve(ring.fixed_s, [1024, 16 << 20], [*ring.piece_s, 1e-3])
        return found

    both_ways = {name: n / 10 for n, name in enumerate(CURVES, 11)}
    lines = list(costs_lines(Costs("a machine", curves(1.0), curves(10.0), both_ways)))
    assert lines[0] == "costs of a machine"
    out, in_ = lines[2:6], lines[7:11]
    assert [line.split()[0] for line in (out[0], in_[0])] == ["out", "in"]
    assert out[1].split() == ["fixed", "1.0", "2.0", "3.0", "4.0", "5.0"]
    assert in_[1].split() == ["fixed", "10.0", "20.0", "30.0", "40.0", "50.0"]
    assert out[2].split()[:6] == ["1", "KiB", "0.00", "1024.00", "0.00", "512.00"]
    assert out[3].split() == ["16", "MiB", *["-"] * 6, "1,000.00", "16.78", "-", "-"]
    assert len({len(line) for line in out}) == 1


@pytest.mark.skipif(cuda_available(), reason="this machine has CUDA")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert main(["calibrate"]) == 2
    said = capsys.readouterr().err
    assert "there is no GPU to measure" in said and why_no_cuda() in said


@pytest.mark.cuda
@pytest.mark.skipif(not cuda_available(), reason=why_no_cuda() or "has CUDA")
def test_on_a_gpu_it_is_kept_and_info_says_where(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path))
    assert main(["calibrate", "--json", str(tmp_path / "costs.json")]) == 0
    assert set(json.loads((tmp_path / "costs.json").read_text())) == {"machine", "out", "in_", "both_ways"}
    capsys.readouterr()
    assert main(["info"]) == 0
    assert f"calibration    of device 0 in {tmp_path}" in capsys.readouterr().out
