"""A swap as a value: caches, their first bytes, ids, and what is wrong with the call, if anything is.

A side is one flat image of bytes; its layers are strided views of it with guard bytes around them, so that
comparing whole images also compares padding, guards and blocks that nobody named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Side = Literal["device", "host"]
#: pick(low, high) draws an integer, both ends included. Hypothesis and `random.Random` both make one.
Pick = Callable[[int, int], int]

GUARD_BYTES = 32
# Behind the last guard, so that a view with a fault still lies in memory: what it must not do is move.
_SLACK_BYTES = 512
DTYPES = ("uint8", "float16", "int32", "float64")


@dataclass(frozen=True)
class LayerShape:
    """block_shape: a block's axes. dtype: a NumPy name. *_pad_bytes: what follows each block on that side."""

    block_shape: tuple[int, ...]
    dtype: str
    device_pad_bytes: int = 0
    host_pad_bytes: int = 0

    @property
    def block_bytes(self) -> int:
        return prod(self.block_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class LayerView:
    """Where a layer lies in its side's image."""

    offset_bytes: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class SwapCase:
    """One call of the op or of a Swapper.

    host_form: how the op's host side is passed: its "address", the "array", or a 1-D "flat" one of bytes.
    ids_form: a NumPy dtype name, or "list". fault: a name from faults.FAULTS, "" for a valid call; fault_at
    says which layer or position it strikes. schedule: the simulated device's choices. seed: of the bytes.
    """

    entry: Literal["op", "swapper"]
    direction: Literal["out", "in"]
    layers: tuple[LayerShape, ...]
    device_blocks: int
    host_blocks: int
    device_ids: tuple[int, ...]
    host_ids: tuple[int, ...]
    host_layout: Literal["layer_major", "block_major"] = "layer_major"
    host_form: Literal["address", "array", "flat"] = "array"
    ids_form: str = "list"
    fault: str = ""
    fault_at: int = 0
    schedule: bytes = b""
    seed: int = 0


def image(case: SwapCase, side: Side) -> npt.NDArray[np.uint8]:
    """The side's first bytes: random, NaN patterns and negative zeros among them by sheer chance."""
    generator = np.random.default_rng([case.seed, side == "host"])
    return generator.integers(0, 256, _image_bytes(case, side), np.uint8)


def layer_views(case: SwapCase, side: Side) -> list[LayerView]:
    blocks = case.device_blocks if side == "device" else case.host_blocks
    if side == "host" and case.host_layout == "block_major":
        return _block_major_views(case, blocks)
    views, offset = [], GUARD_BYTES
    for layer in case.layers:
        pad = layer.device_pad_bytes if side == "device" else layer.host_pad_bytes
        stride = layer.block_bytes + pad
        views.append(_view(layer, offset, blocks, stride))
        offset += blocks * stride + GUARD_BYTES
    return views


def make_case(pick: Pick) -> SwapCase:
    """A valid case from integers drawn by `pick`, e.g. ``random.Random(0).randint``."""
    entry: Literal["op", "swapper"] = "op" if pick(0, 1) else "swapper"
    layers = _made_layers(pick, (3, 4) if entry == "op" else (1, 4))
    device_blocks, host_blocks = pick(1, 9), pick(1, 9)
    block_major = bool(pick(0, 1))
    padded = block_major or any(layer.host_pad_bytes for layer in layers)
    pairs = pick(0, 12)
    return SwapCase(
        entry=entry,
        direction="out" if pick(0, 1) else "in",
        layers=layers,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        device_ids=made_ids(pick, pairs, device_blocks),
        host_ids=made_ids(pick, pairs, host_blocks),
        host_layout="block_major" if block_major else "layer_major",
        host_form="array" if padded else ("array", "address", "flat")[pick(0, 2)],
        ids_form=("list", "int64", "int32", "uint64")[pick(0, 3)],
        fault_at=pick(0, 11),
        schedule=bytes(pick(0, 255) for _ in range(pick(0, 24))),
        seed=pick(0, 2**31),
    )


def _made_layers(pick: Pick, dimensions: tuple[int, int]) -> tuple[LayerShape, ...]:
    """One shape for all layers, as a K list has, or each its own, as K, V and scales together have."""
    count, uniform = pick(1, 5), pick(0, 1)
    layers: list[LayerShape] = []
    for _ in range(count):
        if layers and uniform:
            layers.append(layers[0])
            continue
        axes = pick(*dimensions) - 1
        layers.append(
            LayerShape(
                block_shape=tuple(pick(1, 3) for _ in range(axes)),
                dtype=DTYPES[pick(0, len(DTYPES) - 1)],
                device_pad_bytes=pick(1, 9) if pick(0, 3) == 3 else 0,
                host_pad_bytes=pick(1, 9) if pick(0, 3) == 3 else 0,
            )
        )
    return tuple(layers)


def made_ids(pick: Pick, pairs: int, blocks: int) -> tuple[int, ...]:
    """Scattered ids, or stretches that ascend or descend: merging, last-wins and order all get their cases."""
    ids: list[int] = []
    while len(ids) < pairs:
        first, length, step = pick(0, blocks - 1), pick(1, 6), (1, 1, -1, 0)[pick(0, 3)]
        ids += [first + i * step for i in range(length) if 0 <= first + i * step < blocks]
    return tuple(ids[:pairs])


def _view(layer: LayerShape, offset: int, blocks: int, stride: int) -> LayerView:
    dtype = np.dtype(layer.dtype)
    inner = [prod(layer.block_shape[i + 1 :]) * dtype.itemsize for i in range(len(layer.block_shape))]
    return LayerView(offset, (blocks, *layer.block_shape), (stride, *inner), dtype)


def _block_major_views(case: SwapCase, blocks: int) -> list[LayerView]:
    row = sum(layer.block_bytes + layer.host_pad_bytes for layer in case.layers)
    views, offset = [], GUARD_BYTES
    for layer in case.layers:
        views.append(_view(layer, offset, blocks, row))
        offset += layer.block_bytes + layer.host_pad_bytes
    return views


def _image_bytes(case: SwapCase, side: Side) -> int:
    views = layer_views(case, side)
    end = max(view.offset_bytes + view.shape[0] * view.strides_bytes[0] for view in views)
    return end + GUARD_BYTES + _SLACK_BYTES
