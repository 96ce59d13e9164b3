"""JSON from outside. What Python's json module takes in silence is refused: a key twice, NaN, endless numbers."""

from __future__ import annotations

import json
import math
from typing import Any

#: Digits of one number: more than any integer or float here has, and few enough to be converted at once.
DIGITS_MAX = 400
_SHOWN_CHARS_MAX = 60


def load_json(text: str) -> Any:
    """As ``json.loads``. ValueError, which says what is wrong, for all that is no JSON by RFC 8259, and also for an
    object that has a key twice, a number that no float holds, one of more than `DIGITS_MAX` digits, and brackets
    nested deeper than Python follows."""
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
        )
    except RecursionError as error:
        raise ValueError(f"brackets are nested too deeply: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r:.{_SHOWN_CHARS_MAX}} stands twice in one object; expected it once")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} came; expected a finite number")


def _integer(digits: str) -> int:
    _check_length(digits)
    return int(digits)


def _float(digits: str) -> float:
    _check_length(digits)
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits:.{_SHOWN_CHARS_MAX}} came, beyond any float; expected a finite number")
    return value


def _check_length(digits: str) -> None:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"a number of {len(digits)} digits came; expected at most {DIGITS_MAX}")
