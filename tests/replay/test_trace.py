"""Reading a trace, with every way a line can be wrong, and making one from a seed."""

import itertools
import json
import tracemalloc
from pathlib import Path

import pytest

from numba_kvswap.replay import trace
from numba_kvswap.replay.tiers import Placement
from numba_kvswap.replay.trace import Request, made_trace, read_trace

GOOD_LINE = '{"timestamp": 27, "input_length": 700, "output_length": 5, "hash_ids": [4, 9]}\n'
GOOD = Request(timestamp_ms=27, input_length=700, output_length=5, hash_ids=(4, 9))


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "some_trace.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def with_ids(ids: str) -> str:
    return f'{{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": {ids}}}\n'


def test_requests_come_in_order_and_blank_lines_are_skipped(tmp_path):
    path = written(tmp_path, GOOD_LINE + "\n  \r\n" + with_ids("[0]").strip() + "\r\n" + with_ids("[]").strip())
    assert list(read_trace(path)) == [GOOD, Request(0, 1, 1, (0,)), Request(0, 1, 1, ())]


def test_an_empty_file_has_no_requests(tmp_path):
    assert list(read_trace(written(tmp_path, ""))) == []


def test_unknown_fields_and_the_largest_id_are_read(tmp_path):
    line = json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [2**63 - 1], "type": "a"})
    assert next(read_trace(str(written(tmp_path, line)))).hash_ids == (2**63 - 1,)


@pytest.mark.parametrize(
    ("bad_line", "says"),
    [
        ('{"timestamp": 0,\n', ["not JSON", "expected one JSON object a line"]),
        ("[1, 2]\n", ["JSON list", "expected an object"]),
        ("7\n", ["JSON int", "expected an object"]),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n', ["without 'hash_ids'", "expected"]),
        ('{"input_length": 1, "output_length": 1, "hash_ids": []}\n', ["without 'timestamp'"]),
        (GOOD_LINE.replace("700", "-700"), ["input_length", "-700", "expected a whole number from 0"]),
        (GOOD_LINE.replace("27", "true"), ["timestamp", "True of type bool"]),
        (GOOD_LINE.replace(": 5", ": 5.0"), ["output_length", "5.0 of type float"]),
        (with_ids("[3, true]"), ["hash_ids[1]", "True of type bool"]),
        (with_ids("[-1]"), ["hash_ids[0]", "came -1", "from 0 to"]),
        (with_ids("[0, 1, 2.0]"), ["hash_ids[2]", "2.0 of type float"]),
        (with_ids("[null]"), ["hash_ids[0]", "None of type NoneType"]),
        (with_ids('["7"]'), ["hash_ids[0]", "'7' of type str"]),
        (with_ids("[9223372036854775808]"), ["hash_ids[0]", "came 9223372036854775808"]),
        (with_ids("7"), ["hash_ids", "7 of type int", "expected a list"]),
        (with_ids("null"), ["hash_ids", "expected a list"]),
        (with_ids("[" + "9" * 5000 + "]"), ["not JSON", "digits"]),
        ("[" * 100_000 + "\n", ["not JSON", "recursion"]),
        (b'{"timestamp": "\xff"}\n', ["byte 0xff at column 16", "expected UTF-8"]),
        ("\ufeff" + GOOD_LINE, ["not JSON", "BOM"]),
    ],
)
def test_a_bad_line_is_named_with_what_came_and_what_was_expected(tmp_path, bad_line, says):
    bad = bad_line if isinstance(bad_line, bytes) else bad_line.encode()
    requests = read_trace(written(tmp_path, GOOD_LINE.encode() + b"\n" + bad + GOOD_LINE.encode()))
    assert next(requests) == GOOD
    with pytest.raises(ValueError) as caught:
        next(requests)
    message = str(caught.value)
    assert "some_trace.jsonl, line 3" in message
    for part in says:
        assert part in message
    assert len(message) < 500


def test_a_line_at_the_bound_is_read_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "LINE_BYTES_MAX", len(GOOD_LINE))
    assert list(read_trace(written(tmp_path, GOOD_LINE * 2))) == [GOOD, GOOD]
    with pytest.raises(ValueError, match=r"line 2: came a line of more than \d+ bytes"):
        list(read_trace(written(tmp_path, GOOD_LINE + " " + GOOD_LINE)))


def test_a_file_without_line_ends_is_refused_without_reading_it_whole(tmp_path):
    path = tmp_path / "some_trace.jsonl"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="line 1: came a line of more than"):
            next(read_trace(path))
        assert tracemalloc.get_traced_memory()[1] < 3 * trace.LINE_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = written(tmp_path, GOOD_LINE * 20_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_trace(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        next(read_trace(tmp_path / "no_such_trace.jsonl"))


def test_the_mooncake_trace_is_read_whole(mooncake_trace):
    requests = list(read_trace(mooncake_trace))
    assert len(requests) == 12_031
    assert requests[0].hash_ids == tuple(range(14))
    assert (requests[-1].timestamp_ms, requests[-1].input_length, len(requests[-1].hash_ids)) == (3_536_999, 20_774, 41)
    assert sum(len(request.hash_ids) for request in requests) == 288_500


def test_a_made_trace_is_the_same_for_a_seed_and_another_for_another():
    assert list(made_trace(3, 300)) == list(made_trace(3, 300))
    assert list(made_trace(3, 300)) != list(made_trace(4, 300))


def test_a_longer_made_trace_begins_like_a_shorter_one():
    assert list(itertools.islice(made_trace(3, 500), 100)) == list(made_trace(3, 100))


def test_the_made_trace_of_a_seed_never_changes():
    # Pinned, so that counts of a made replay can be compared between versions and machines.
    requests = list(made_trace(0, 100))
    assert sum(sum(request.hash_ids) for request in requests) == 565_838
    assert requests[99].timestamp_ms == 30_159


def test_a_made_trace_has_the_form_of_a_real_one(tmp_path):
    requests = list(made_trace(1, 200))
    lines = [
        json.dumps(
            {
                "timestamp": request.timestamp_ms,
                "input_length": request.input_length,
                "output_length": request.output_length,
                "hash_ids": request.hash_ids,
            }
        )
        for request in requests
    ]
    assert list(read_trace(written(tmp_path, "\n".join(lines)))) == requests
    times_ms = [request.timestamp_ms for request in requests]
    assert times_ms == sorted(times_ms)
    for request in requests:
        assert -(-request.input_length // trace.ID_TOKENS) == len(request.hash_ids) == len(set(request.hash_ids))


def test_a_made_trace_hits_both_tiers_and_overflows_both():
    cache = Placement(device_blocks=1000, host_blocks=8000, blocks_per_id=1)
    asked = swapped_out = swapped_in = computed = 0
    seen_ids: set[int] = set()
    for request in made_trace(0, 2000):
        moves = cache.place(request.hash_ids)
        asked += len(request.hash_ids)
        swapped_out += moves.out_ids.size
        swapped_in += moves.in_ids.size
        computed += moves.computed_ids.size
        seen_ids.update(request.hash_ids)
    device_hits = asked - swapped_in - computed
    assert device_hits > asked // 5
    assert swapped_in > asked // 10
    assert swapped_out > 8000
    # More computed than there are ids: some were dropped by both tiers and asked for again.
    assert computed > len(seen_ids)


def test_no_requests_or_fewer():
    assert list(made_trace(0, 0)) == []
    with pytest.raises(ValueError, match="requests: came -1"):
        next(made_trace(0, -1))
