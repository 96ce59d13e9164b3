"""Ways to get a call wrong: each changes one argument of a valid call, as a user might."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_kvswap.testing.cases import LayerView, SwapCase


@dataclass
class Call:
    """The arguments of a call before an engine turns views into arrays. `pointers` overrides host layers by index."""

    device_views: list[LayerView]
    host_views: list[LayerView]
    device_ids: Any
    host_ids: Any
    bound: Any
    mode: Any
    rank: Any
    pointers: dict[int, Any]


Fault = Callable[[Call, SwapCase], None]


def call_of(case: SwapCase, device_views: list[LayerView], host_views: list[LayerView]) -> Call:
    """The call that `case` describes, fault and all."""
    call = Call(
        device_views=list(device_views),
        host_views=list(host_views),
        device_ids=list(case.device_ids),
        host_ids=list(case.host_ids),
        bound=case.host_blocks,
        mode=0 if case.direction == "out" else 1,
        rank=0,
        pointers={},
    )
    FAULTS[case.fault](call, case)
    call.device_ids, call.host_ids = (_in_form(ids, case.ids_form) for ids in (call.device_ids, call.host_ids))
    return call


def _in_form(ids: Any, form: str) -> Any:
    """The ids as a list or as an array of dtype `form`, where that holds them exactly."""
    if form == "list" or not all(type(value) is int for value in ids):
        return ids
    limits = np.iinfo(form)
    if any(not limits.min <= value <= limits.max for value in ids):
        return ids
    return np.array(ids, form)


def _id_fault(side: str, value: Callable[[SwapCase], Any]) -> Fault:
    """Put a bad id in place of one, or as the only pair."""

    def strike(call: Call, case: SwapCase) -> None:
        if not case.device_ids:
            call.device_ids, call.host_ids = [0], [0]
        ids = call.device_ids if side == "device" else call.host_ids
        ids[case.fault_at % len(ids)] = value(case)

    return strike


def _view_fault(side: str, change: Callable[[LayerView], LayerView]) -> Fault:
    def strike(call: Call, case: SwapCase) -> None:
        views = call.device_views if side == "device" else call.host_views
        at = case.fault_at % len(views)
        views[at] = change(views[at])

    return strike


def _larger(view: LayerView) -> LayerView:
    """One block axis made one longer, and the blocks moved apart to make room."""
    if len(view.shape) == 1:
        return replace(view, shape=(*view.shape, 2), strides_bytes=(2 * view.dtype.itemsize, view.dtype.itemsize))
    shape = (view.shape[0], view.shape[1] + 1, *view.shape[2:])
    stride = max(view.strides_bytes[0], shape[1] * view.strides_bytes[1])
    return replace(view, shape=shape, strides_bytes=(stride, *view.strides_bytes[1:]))


def _transposed(view: LayerView) -> LayerView:
    """The block's axes in the other order; an axis of length 1 says nothing, so make the last one longer."""
    shape = (view.shape[0], 2, *view.shape[1:-1], 2) if len(view.shape) > 2 else (view.shape[0], 2, 2)
    item = view.dtype.itemsize
    return replace(view, shape=shape, strides_bytes=(item, *[item] * (len(shape) - 2), 2 * item))


def _fewer(call: Call, case: SwapCase) -> None:
    ids = call.host_ids if case.fault_at % 2 else call.device_ids
    if ids:
        ids.pop()
    else:
        ids.append(0)


def _set(name: str, value: Any) -> Fault:
    return lambda call, case: setattr(call, name, value)


def _pointer(value: Any) -> Fault:
    return lambda call, case: call.pointers.update({case.fault_at % len(case.layers): value})


def _without(side: str, keep: int | None) -> Fault:
    def strike(call: Call, case: SwapCase) -> None:
        views = call.device_views if side == "device" else call.host_views
        del views[keep:]

    return strike


def _with_dtype(dtype: Any) -> Callable[[LayerView], LayerView]:
    """Another type of the same size where there is one: only its name is wrong."""

    def change(view: LayerView) -> LayerView:
        given = dtype(view.dtype) if callable(dtype) else dtype
        return replace(view, dtype=np.dtype(given))

    return change


def _other_type(dtype: np.dtype[Any]) -> str:
    return {1: "int8", 2: "int16", 4: "float32", 8: "int64"}[dtype.itemsize]


def _structured(dtype: np.dtype[Any]) -> list[tuple[str, str, int]]:
    return [("bytes", "u1", dtype.itemsize)] if dtype.itemsize > 1 else [("byte", "u1", 1)]


#: What both entries can get wrong, and what only the op can.
_EITHER: dict[str, Fault] = {
    "": lambda call, case: None,
    "device id at its bound": _id_fault("device", lambda case: case.device_blocks),
    "host id at its bound": _id_fault("host", lambda case: case.host_blocks),
    "device id -1": _id_fault("device", lambda case: -1),
    "host id -1": _id_fault("host", lambda case: -1),
    "device id 2**31": _id_fault("device", lambda case: 2**31),
    "device id 2**63": _id_fault("device", lambda case: 2**63),
    "host id 2**64 - 1": _id_fault("host", lambda case: 2**64 - 1),
    "device id -2**70": _id_fault("device", lambda case: -(2**70)),
    "device id True": _id_fault("device", lambda case: True),
    "host id 0.0": _id_fault("host", lambda case: 0.0),
    "host id None": _id_fault("host", lambda case: None),
    "device id '0'": _id_fault("device", lambda case: "0"),
    "one id fewer": _fewer,
    "one host layer fewer": _without("host", -1),
    "no device layers": _without("device", 0),
    "another host dtype": _view_fault("host", _with_dtype(_other_type)),
    "structured device dtype": _view_fault("device", _with_dtype(_structured)),
    "structured host dtype": _view_fault("host", _with_dtype(_structured)),
    "larger host blocks": _view_fault("host", _larger),
    "transposed device blocks": _view_fault("device", _transposed),
    "blocks that overlap": _view_fault(
        "device", lambda view: replace(view, shape=(2, *view.shape[1:]), strides_bytes=(0, *view.strides_bytes[1:]))
    ),
}
_OP_ONLY: dict[str, Fault] = {
    "mode 2": _set("mode", 2),
    "mode -1": _set("mode", -1),
    "mode None": _set("mode", None),
    "mode True": _set("mode", True),
    "rank 0.0": _set("rank", 0.0),
    "rank -1": _set("rank", -1),
    "bound -1": _set("bound", -1),
    "bound '4'": _set("bound", "4"),
    "bound of 2**63": _set("bound", 2**63),
    "null address": _pointer(0),
    "negative address": _pointer(-4096),
    "address 2**64 - 1": _pointer(2**64 - 1),
    "address 1.5": _pointer(1.5),
    "address None": _pointer(None),
    "two dimensions": _view_fault(
        "device",
        lambda view: replace(
            view, shape=(view.shape[0], view.shape[1]), strides_bytes=(view.strides_bytes[0], view.dtype.itemsize)
        ),
    ),
}
FAULTS: dict[str, Fault] = {**_EITHER, **_OP_ONLY}
SWAPPER_FAULTS = tuple(name for name in _EITHER if name)
OP_FAULTS = tuple(name for name in FAULTS if name)


def faults_of(case: SwapCase) -> tuple[str, ...]:
    """The faults that a call through the case's entry can have."""
    return OP_FAULTS if case.entry == "op" else SWAPPER_FAULTS
