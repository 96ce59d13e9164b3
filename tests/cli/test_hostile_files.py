"""Files from outside that are not what they should be: traces, reports, calibrations, and no files at all."""

from __future__ import annotations

import json
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kvswap import calibration, disk_cache
from numba_kvswap.__main__ import main
from numba_kvswap.bench import bench_report
from numba_kvswap.bench.bench_report import BenchReport
from numba_kvswap.costs import Costs, h200_costs
from numba_kvswap.driver import SimulatedDriver
from numba_kvswap.files import open_plain, read_plain
from numba_kvswap.replay.trace import read_trace
from numba_kvswap.strict_json import DIGITS_MAX, load_json

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
#: What is no JSON as it should be, with a word of what is said of it.
BAD = {
    "": "Expecting value",
    '{"a": 1': "Expecting",
    '{"a": 1}}': "Extra data",
    '{"a": 1, "b": 2, "a": 3}': "key 'a' stands twice in one object",
    '{"x": [{"k": 1, "k": 1}]}': "key 'k' stands twice",
    '{"a": NaN}': "NaN came; expected a finite number",
    "[Infinity]": "Infinity came",
    "[-Infinity]": "-Infinity came",
    "[1e999]": "1e999 came, beyond any float",
    "[-1e999]": "-1e999 came, beyond any float",
    "9" * 10**6: f"a number of 1000000 digits came; expected at most {DIGITS_MAX}",
    "[0." + "9" * 10**6 + "]": "a number of 1000002 digits came",
    "[" * 200_000: "nested too deeply",
    '{"a":' * 200_000: "nested too deeply",
    "\ufeff{}": "BOM",
    "{'a': 1}": "Expecting property name",
}


@given(value=PLAIN)
def test_what_json_writes_is_read_as_json_reads_it(value):
    text = json.dumps(value)
    assert load_json(text) == json.loads(text)


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:20]))
def test_bad_json_is_a_value_error_that_says_what_is_wrong(text):
    with pytest.raises(ValueError) as caught:
        load_json(text)
    assert BAD[text] in str(caught.value)
    assert len(str(caught.value)) < 200


@given(pairs=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers()), max_size=5))
def test_an_object_is_read_where_no_key_stands_twice(pairs):
    text = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    keys = [key for key, _ in pairs]
    twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
    if twice is None:
        assert load_json(text) == dict(pairs)
    else:
        with pytest.raises(ValueError, match=f"key '{twice}' stands twice"):
            load_json(text)


def test_numbers_are_cut_by_length_even_where_python_would_take_hours(monkeypatch):
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(ValueError, match="a number of 3000000 digits came"):
            load_json("9" * 3_000_000)
    finally:
        sys.set_int_max_str_digits(before)


# ---- each reader, of each bad text ----

READERS = {"report": BenchReport.from_json, "costs": Costs.from_json}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:20]))
def test_reports_and_costs_are_read_by_it(reader, text):
    with pytest.raises(ValueError):
        READERS[reader](text)


@pytest.mark.parametrize("reader", READERS)
@given(value=PLAIN)
def test_any_other_json_is_a_value_error(reader, value):
    with pytest.raises(ValueError):
        READERS[reader](json.dumps(value))


@pytest.mark.parametrize("text", [text for text in BAD if text], ids=lambda text: ascii(text[:20]))
def test_a_trace_names_the_line(tmp_path, text):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n' + text + "\n")
    with pytest.raises(ValueError, match=r"trace.jsonl, line 2: came .*which is not JSON"):
        list(read_trace(file))


def test_a_field_of_a_trace_that_stands_twice_is_named(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1], "hash_ids": []}\n')
    with pytest.raises(ValueError, match=r"line 1: .*key 'hash_ids' stands twice"):
        list(read_trace(file))


def test_costs_with_a_curve_twice_are_no_costs():
    text = h200_costs().to_json()
    with pytest.raises(ValueError, match="key 'machine' stands twice"):
        Costs.from_json('{"machine": "another",' + text[1:])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"machine": "', '"machine": [1], "x": "'),
        ('"bytes": [', '"bytes": [true,'),
        ('"fixed_s": ', '"fixed_s": true, "x": '),
        ('"fixed_s": ', '"fixed_s": "1e-5", "x": '),
    ],
)
def test_costs_of_wrong_types_are_no_costs(old, new):
    text = h200_costs().to_json()
    assert old in text
    with pytest.raises(ValueError, match="no costs of transports: TypeError"):
        Costs.from_json(text.replace(old, new, 1))


# ---- what stands in a file's place ----


def placed(tmp_path, kind):
    """Something of that kind by the name of a file."""
    file = tmp_path / "file.json"
    if kind == "a folder":
        file.mkdir()
    elif kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    elif kind == "a link to nothing":
        file.symlink_to(tmp_path / "nowhere")
    elif kind == "a link to itself":
        file.symlink_to(file)
    elif kind == "no file":
        pass
    elif kind == "a huge file":
        with file.open("wb") as made:
            made.truncate(1 << 40)
    elif kind == "no UTF-8":
        file.write_bytes(b'{"engine": "\xff"}')
    return file


KINDS = {
    "a folder": "this is a folder; expected a file",
    "a pipe": "no plain file",
    "a device": "no plain file",
    "a link to nothing": "No such file",
    "a link to itself": "symbolic links",
    "no file": "No such file",
}


def in_time(call):
    """What it raised; a test that hangs at a pipe would say nothing."""
    raised = []

    def run():
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"
    return raised[0] if raised else None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_an_os_error_at_once(tmp_path, kind):
    file = placed(tmp_path, kind)
    for read in (lambda: open_plain(file), lambda: read_plain(file, 9), lambda: next(read_trace(file))):
        error = in_time(read)
        assert isinstance(error, OSError) and KINDS[kind] in str(error) and "file.json" in str(error)
    assert isinstance(in_time(lambda: open_plain(file)), IsADirectoryError) == (kind == "a folder")


@pytest.mark.parametrize("kind", [*KINDS, "a huge file", "no UTF-8"])
def test_plot_and_replay_say_so_in_one_line(tmp_path, kind, capfd):
    file = placed(tmp_path, kind)
    for command in (["plot", str(file)], ["replay", str(file), "--engine", "simulated"]):
        assert in_time(lambda command=command: print(main(command))) is None
        out, error = capfd.readouterr()
        assert out.strip() == "2"
        assert f"numba-kvswap {command[0]}: " in error and "file.json" in error and "Traceback" not in error


def test_a_link_to_a_file_is_the_file(tmp_path):
    (tmp_path / "real").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("real")
    assert read_plain(tmp_path / "link", 4) == b"1234"
    with pytest.raises(ValueError, match="came more than 3 bytes; expected a smaller file"):
        read_plain(tmp_path / "link", 3)


def test_no_handle_is_left_open(tmp_path):
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            open_plain(tmp_path / "folder")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_report_is_not_read_beyond_its_limit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_report, "REPORT_BYTES_MAX", 10)
    (tmp_path / "r.json").write_text("{}" + " " * 20)
    assert main(["plot", str(tmp_path / "r.json")]) == 2
    assert "more than 10 bytes" in capsys.readouterr().err


# ---- the calibration that is kept ----


class PretendedGPU(SimulatedDriver):
    name = "cuda"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A driver whose costs, when measured, are an H200's; `measured` counts how often they were."""
    monkeypatch.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path / "cache"))
    driver = PretendedGPU()
    driver.measured = 0

    def measured(driver, device):
        driver.measured += 1
        return h200_costs()

    monkeypatch.setattr(calibration, "measured", measured)
    return driver


def costs_asked(driver):
    """As a later process would."""
    calibration._known.pop(driver, None)
    with driver.activate(0):
        return calibration.costs_of(driver, 0)


def kept_file(driver):
    return disk_cache.cache_folder() / calibration.costs_file(driver, 0)


def changed(*path_and_value):
    """An H200's costs with another value at that path."""
    *path, last, value = path_and_value
    found = at = json.loads(h200_costs().to_json())
    for name in path:
        at = at[name]
    at[last] = value
    return json.dumps(found)


ABSURD = {
    "an hour for a swap": changed("out", "ring", "fixed_s", 3600.0),
    "an hour for a piece": changed("in_", "batch", {"fixed_s": 1e-5, "bytes": [1], "piece_s": [3600.0]}),
    "a petabyte a second": changed("out", "copies", {"fixed_s": 1e-5, "bytes": [1000], "piece_s": [1e-12]}),
    "a thousand times as long both ways": changed("both_ways", "kernel", 1e3),
    "a thousandth both ways": changed("both_ways", "kernel", 1e-3),
    "an endless number": changed("both_ways", "kernel", 7.25).replace("7.25", "1e999"),
    "no costs": "{}",
    "nothing": "",
}


@pytest.mark.parametrize("kind", ABSURD)
def test_a_kept_calibration_that_makes_no_sense_is_measured_and_written_anew(gpu, kind):
    disk_cache.store(calibration.costs_file(gpu, 0), ABSURD[kind].encode())
    assert costs_asked(gpu) == h200_costs() and gpu.measured == 1
    assert costs_asked(gpu) == h200_costs() and gpu.measured == 1  # now from disk


@pytest.mark.parametrize(
    "kind", ["a pipe", "a device", "a link to nothing", "a link to itself", "a huge file", "no UTF-8"]
)
def test_what_stands_in_the_calibrations_place_is_replaced(gpu, tmp_path, kind):
    file = kept_file(gpu)
    file.parent.mkdir(parents=True)
    os.rename(placed(tmp_path, kind), file)
    if kind == "no UTF-8":
        disk_cache.store(file.name, b"\xff\xfe")
    raised = in_time(lambda: costs_asked(gpu))
    assert raised is None and gpu.measured == 1
    assert file.is_file() and not file.is_symlink()
    assert costs_asked(gpu) == h200_costs() and gpu.measured == 1
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_folder_in_its_place_is_left_and_does_no_harm(gpu):
    kept_file(gpu).mkdir(parents=True)
    assert costs_asked(gpu) == h200_costs()
    assert [each.name for each in disk_cache.cache_folder().iterdir()] == [kept_file(gpu).name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_one_that_may_not_be_read_is_written_anew(gpu):
    costs_asked(gpu)
    kept_file(gpu).chmod(0)
    assert costs_asked(gpu) == h200_costs() and gpu.measured == 2
    assert costs_asked(gpu) == h200_costs() and gpu.measured == 2


@given(cut=st.integers(0, 4000))
def test_a_damaged_one_is_none(tmp_path_factory, cut):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NUMBA_KVSWAP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        driver = PretendedGPU()
        name = calibration.costs_file(driver, 0)
        disk_cache.store(name, h200_costs().to_json().encode())
        assert calibration.kept_costs(driver, 0) == h200_costs()
        file = disk_cache.cache_folder() / name
        file.write_bytes(file.read_bytes()[:cut])
        assert calibration.kept_costs(driver, 0) is None
