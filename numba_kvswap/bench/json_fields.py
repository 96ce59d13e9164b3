"""Dataclasses from the JSON that `dataclasses.asdict` made of them, plainly validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def from_plain(kind: type[_T], value: object, where: str = "the report") -> _T:
    """`value`, as json.loads gives it, as a `kind`: a dataclass, whose fields may be dataclasses, sequences, mappings
    by string, optional, literals and plain values.

    Fields with a default may be missing, as an earlier version's file lacks those that came later.

    Raises ValueError that names the place: fields that are missing or unknown, values of another type.
    """
    return _read(kind, value, where)  # type: ignore[no-any-return]


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if get_origin(kind) is not None:
        return _read_generic(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    return value if kind is Any else _checked(type(value) is kind, value, where, kind.__name__)


def _read_generic(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (some,) = (one for one in inner if one is not NoneType)
        return None if value is None else _read(some, value, where)
    if origin is Literal:
        return _checked(value in inner, value, where, f"one of {', '.join(map(repr, inner))}")
    if issubclass(origin, Mapping):
        _checked(isinstance(value, dict), value, where, "an object")
        return {name: _read(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    _checked(isinstance(value, list), value, where, "a list")
    return [_read(inner[0], one, f"{where}[{index}]") for index, one in enumerate(value)]


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _checked(isinstance(value, dict), value, where, "an object")
    fields = dataclasses.fields(kind)
    names = {field.name for field in fields}
    needed = {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}
    if wrong := sorted((set(value) - names) | (needed - set(value))):
        raise ValueError(f"{where} has fields {sorted(value)}; expected {sorted(names)}: see {', '.join(wrong)}")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], one, f"{where}.{name}") for name, one in value.items()})


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(well: bool, value: Any, where: str, expected: str) -> Any:
    if not well:
        raise ValueError(f"{where} is {value!r:.80}; expected {expected}")
    return value
