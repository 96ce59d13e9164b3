"""Whether an engine does what the reference does: the same bytes everywhere, or the same exception type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_kvswap.testing.cases import LayerView, SwapCase, image, layer_views
from numba_kvswap.testing.engines import ENGINES, Bytes, Engine, Placed, ReferenceEngine, engine_named
from numba_kvswap.testing.faults import Call, call_of


@dataclass(frozen=True)
class Outcome:
    """Both sides' bytes after a call, and what it raised."""

    device: Bytes
    host: Bytes
    error: Exception | None


@dataclass(frozen=True)
class Comparison:
    """difference: what the engine did otherwise than the reference, in words, "" where they agree. refused: whether
    the reference raised."""

    difference: str
    refused: bool


def run_case(engine: Engine, case: SwapCase) -> Outcome:
    """Make the case's call on fresh images, and look at every byte afterwards."""
    images = (image(case, "device"), image(case, "host"))
    placed = engine.place(case, *images)
    call = call_of(case, layer_views(case, "device"), layer_views(case, "host"))
    error: Exception | None = None
    # Whatever an engine raises is something to compare, a fault of the device's found only afterwards too.
    try:
        _make_call(engine, case, call, placed)
    except Exception as raised:
        error = raised
    try:
        images = placed.images()
    except Exception as raised:
        error = raised
    return Outcome(*images, error)


def compare(engine: Engine, case: SwapCase) -> Comparison:
    """Make the case's call on the reference and on the engine, and look at every byte of both."""
    expected = run_case(ReferenceEngine(), case)
    return Comparison(_difference(expected, run_case(engine, case)), expected.error is not None)


def assert_conforms(engine: Engine | str, case: SwapCase) -> None:
    """AssertionError, with a snippet that reproduces it, unless engine and reference agree on `case`."""
    judged = engine_named(engine) if isinstance(engine, str) else engine
    found = compare(judged, case).difference
    if found:
        raise AssertionError(f"{found}\n\n{snippet(judged.name, case)}")


def snippet(engine_name: str, case: SwapCase) -> str:
    """Python text that makes this very call again."""
    engine = repr(engine_name) if engine_name in ENGINES else f"your_engine_{engine_name}"
    return (
        f"from numba_kvswap.testing import LayerShape, SwapCase, assert_conforms\n\nassert_conforms({engine}, {case!r})"
    )


def _make_call(engine: Engine, case: SwapCase, call: Call, placed: Placed) -> None:
    device = [placed.device_array(view) for view in call.device_views]
    if case.entry == "swapper":
        host = [placed.host_array(view) for view in call.host_views]
        engine.swap(case.direction, device, host, (call.device_ids, call.host_ids))
        return
    pointers = [call.pointers.get(index, _pointer(case, placed, view)) for index, view in enumerate(call.host_views)]
    engine.op(device, pointers, call.bound, call.device_ids, call.host_ids, call.rank, call.mode)


def _pointer(case: SwapCase, placed: Placed, view: LayerView) -> Any:
    array = placed.host_array(view)
    if case.host_form == "array":
        return array
    if case.host_form == "address":
        return array.__array_interface__["data"][0]
    size = view.shape[0] * view.strides_bytes[0]
    return placed.host_array(LayerView(view.offset_bytes, (size,), (1,), np.dtype(np.uint8)))


def _difference(expected: Outcome, found: Outcome) -> str:
    if type(expected.error) is not type(found.error):
        return f"reference raised {expected.error!r}, engine raised {found.error!r}"
    for side, one, other in (("device", expected.device, found.device), ("host", expected.host, found.host)):
        places = np.flatnonzero(one != other)
        if places.size:
            return (
                f"{places.size} bytes of the {side} image differ, first at {places[0]}: "
                f"reference {one[places[0]]}, engine {other[places[0]]}"
            )
    return ""
