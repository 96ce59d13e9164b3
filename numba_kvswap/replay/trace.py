"""Serving traces: one request a line, read as a stream or made from a seed.

The form is that of the Mooncake traces (kvcache-ai/Mooncake, FAST25-release/traces): a JSON object a line with
`timestamp` (ms), `input_length` and `output_length` (tokens) and `hash_ids`, one id for each 512-token prefix
block. Equal ids mean equal content, so its KV can be reused.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from numba_kvswap.files import open_plain
from numba_kvswap.strict_json import load_json

ID_TOKENS = 512
"""Tokens that one hash id stands for, in the Mooncake form."""

ID_MAX = 2**63 - 1
"""The largest hash id: ids are kept in int64 arrays."""

LINE_BYTES_MAX = 4 << 20
"""The longest line read. It holds about half a million ids (a prompt of 200 million tokens), and keeps the
memory of a malformed file, one without line ends say, as bounded as that of a good one."""

_SHOWN_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace: arrival in ms, prompt and answer in tokens, an id for each 512-token prefix block."""

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: str | os.PathLike[str]) -> Iterator[Request]:
    """Yield the requests of a trace file in order, holding one line at a time.

    Blank lines are skipped, and so are fields that the form does not name. The file is opened at the first
    request asked for, and closed after the last or when the iterator is closed.

    Raises OSError where the file cannot be read or is no plain file, and ValueError naming file, line number, what came
    and what was expected where a line is not UTF-8, not a JSON object, longer than `LINE_BYTES_MAX`, has a field twice,
    or one that is missing or is not a whole number in range.
    """
    with open_plain(path) as file:
        for number, line in _numbered_lines(file, path):
            if line.strip():
                yield _parse_request(line, f"{Path(path)}, line {number}")


def _numbered_lines(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    number = 0
    # One byte beyond the bound tells a line that is too long from one that just fits.
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(
                f"{Path(path)}, line {number}: came a line of more than {LINE_BYTES_MAX} bytes, expected one JSON "
                "object a line; split the file so that every request has a line of its own"
            )
        yield number, line


def _parse_request(line: bytes, where: str) -> Request:
    try:
        fields = load_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: came byte 0x{line[error.start]:02x} at column {error.start + 1}, expected UTF-8 text; "
            "convert the file to UTF-8"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{where}: came {_shown(line)}, which is not JSON ({error}); expected one JSON object a line"
        ) from error
    if not isinstance(fields, dict):
        raise ValueError(
            f"{where}: came a JSON {type(fields).__name__}, {_shown(fields)}; expected an object with "
            "timestamp, input_length, output_length and hash_ids"
        )
    return Request(
        timestamp_ms=_whole_number(_field(fields, "timestamp", where), f"{where}: timestamp"),
        input_length=_whole_number(_field(fields, "input_length", where), f"{where}: input_length"),
        output_length=_whole_number(_field(fields, "output_length", where), f"{where}: output_length"),
        hash_ids=_hash_ids(_field(fields, "hash_ids", where), where),
    )


def _field(fields: dict[str, Any], name: str, where: str) -> Any:
    if name not in fields:
        raise ValueError(
            f"{where}: came an object without {name!r} (it has {_shown(sorted(fields))}); expected timestamp, "
            "input_length, output_length and hash_ids"
        )
    return fields[name]


def _whole_number(value: Any, what: str) -> int:
    # A bool is an int to isinstance, so ask for the exact type: `true` is not id 1.
    if type(value) is not int:
        raise ValueError(
            f"{what}: came {_shown(value)} of type {type(value).__name__}, expected a whole number from 0 to {ID_MAX}"
        )
    if not 0 <= value <= ID_MAX:
        raise ValueError(f"{what}: came {_shown(value)}, expected a whole number from 0 to {ID_MAX}")
    return value


def _hash_ids(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(
            f"{where}: hash_ids: came {_shown(value)} of type {type(value).__name__}, expected a list of ids"
        )
    for place, hash_id in enumerate(value):
        # The message is built only for a bad id: building it for each id would double the reading time.
        if type(hash_id) is not int or not 0 <= hash_id <= ID_MAX:
            _whole_number(hash_id, f"{where}: hash_ids[{place}]")
    return tuple(value)


def _shown(value: object) -> str:
    """The start of a value, short enough for a message."""
    if isinstance(value, bytes):
        value = value[: 4 * _SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


# A made trace. The figures give requests of about 20 ids (the Mooncake conversation trace has 24) and some
# thousands of live ids, so that 1,000 device and 8,000 host blocks see everything: hits on the device, hits on the
# host, swap outs, and ids dropped by both.
_PREFIXES = 16
_PREFIX_IDS_MAX = 6
_NEW_IDS_MAX = 12
_LIVE_CONVERSATIONS_MAX = 512
_CONVERSATION_IDS_MAX = 120
_NEW_CONVERSATION_CHANCE = 0.35
_GAP_MS_MAX = 600


def made_trace(seed: int, requests: int) -> Iterator[Request]:
    """Yield `requests` requests of the Mooncake form, the same ones for the same seed on every machine.

    A conversation begins with one of a few shared prefixes and a request of it repeats all that came before
    and adds a few new ids. Old conversations come back after others, so what left the device is asked for again.
    Memory does not grow with `requests`: a fixed number of conversations is live, and the oldest makes room.

    Raises ValueError for a negative number of requests, when the first is asked for.
    """
    if requests < 0:
        raise ValueError(f"requests: came {requests}, expected 0 or more")
    # Only Random.random() is promised to give the same numbers in every Python version.
    rng = Random(seed)
    prefixes, next_id = _made_prefixes(rng)
    conversations: list[list[int]] = []
    now_ms = 0
    for _ in range(requests):
        if not conversations or rng.random() < _NEW_CONVERSATION_CHANCE:
            conversation = list(prefixes[_below(rng, _PREFIXES)])
            if len(conversations) == _LIVE_CONVERSATIONS_MAX:
                del conversations[0]
            conversations.append(conversation)
        else:
            conversation = conversations[_below(rng, len(conversations))]
        new_ids = 1 + _below(rng, _NEW_IDS_MAX)
        conversation.extend(range(next_id, next_id + new_ids))
        next_id += new_ids
        yield Request(
            timestamp_ms=now_ms,
            # The last id's block is rarely full, as in a real prompt.
            input_length=len(conversation) * ID_TOKENS - _below(rng, ID_TOKENS),
            output_length=1 + _below(rng, 2 * ID_TOKENS),
            hash_ids=tuple(conversation),
        )
        now_ms += _below(rng, _GAP_MS_MAX)
        if len(conversation) > _CONVERSATION_IDS_MAX:
            conversations.remove(conversation)


def _made_prefixes(rng: Random) -> tuple[list[list[int]], int]:
    prefixes: list[list[int]] = []
    next_id = 0
    for _ in range(_PREFIXES):
        length = 1 + _below(rng, _PREFIX_IDS_MAX)
        prefixes.append(list(range(next_id, next_id + length)))
        next_id += length
    return prefixes, next_id


def _below(rng: Random, bound: int) -> int:
    return int(rng.random() * bound)
