"""The reference's own checks, made before anything moves.

Their order, that of the calls in swap.py, matters where one call is wrong in two ways: the engine must raise
the same exception type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Types narrower than a byte, by the names ml_dtypes and torch give them. torch's float4_e2m1fn_x2 is not
# among them: its element is a whole byte that holds two values.
SUB_BYTE = re.compile(r"u?int[1-7]|float[46]_(?!.*_x\d)\w+|quint\dx\d|bits\dx\d")


def check_integer(value: object, name: str) -> int:
    if isinstance(value, (bool, np.bool_, np.timedelta64)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; expected an integer")
    return int(value)


def check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Only whole bytes of plain values move: TypeError for object, structured and sub-byte types."""
    advice = "expected a whole-byte dtype; view the array as uint8 if its bytes are to move"
    if dtype.hasobject:
        raise TypeError(f"{where} has dtype {dtype}, which holds Python objects, not bytes; {advice}")
    if dtype.names is not None or dtype.subdtype is not None:
        raise TypeError(f"{where} has the structured dtype {dtype}; {advice}")
    if SUB_BYTE.fullmatch(dtype.name):
        raise TypeError(f"{where} has dtype {dtype.name}, narrower than a byte; {advice}")


def block_bytes(layer: Array) -> int:
    return int(np.prod(layer.shape[1:], dtype=object)) * layer.dtype.itemsize


def check_layer(layer: Array, where: str) -> None:
    """A layer is an array [blocks, ...] whose blocks are contiguous and lie at a constant distance."""
    if not isinstance(layer, np.ndarray):
        raise TypeError(f"{where} is {type(layer).__name__}; expected an array [blocks, ...]")
    check_dtype(layer.dtype, where)
    if layer.ndim == 0 or block_bytes(layer) == 0:
        raise ValueError(f"{where} has shape {layer.shape}; expected [blocks, ...] with blocks of 1 byte or more")
    padded_or_dense = layer.shape[0] < 2 or layer.strides[0] >= block_bytes(layer)
    if not (layer[:1].flags.c_contiguous and padded_or_dense):
        raise ValueError(
            f"{where} has shape {layer.shape} and strides {layer.strides}; expected contiguous blocks at a "
            f"distance of at least {block_bytes(layer)} bytes; copy it with np.ascontiguousarray"
        )


def check_cache(layers: Sequence[Array], side: str) -> None:
    if len(layers) == 0:
        raise ValueError(f"the {side} cache has no layers; expected one array a layer")
    for index, layer in enumerate(layers):
        check_layer(layer, f"{side} layer {index}")
    for index, layer in enumerate(layers):
        if layer.shape[0] != layers[0].shape[0]:
            raise ValueError(
                f"{side} layer {index} has {layer.shape[0]} blocks, layer 0 has {layers[0].shape[0]}; "
                "expected the same number in every layer"
            )


def check_same_layers(source: Sequence[Array], target: Sequence[Array]) -> None:
    if len(source) != len(target):
        raise ValueError(f"the source has {len(source)} layers, the target {len(target)}; expected as many")
    for index, (one, other) in enumerate(zip(source, target, strict=True)):
        if one.dtype != other.dtype:
            raise ValueError(f"layer {index}: source dtype {one.dtype}, target {other.dtype}; expected one dtype")
        if block_bytes(one) != block_bytes(other):
            raise ValueError(
                f"layer {index}: source blocks of {block_bytes(one)} bytes, target blocks of "
                f"{block_bytes(other)}; expected one size"
            )


def check_target(layers: Sequence[Array], side: str) -> None:
    for index, layer in enumerate(layers):
        if not layer.flags.writeable:
            raise ValueError(f"{side} layer {index} is read-only; expected a target that can be written")


def check_ids(ids: Iterable[Any], side: str) -> list[int]:
    flat = not isinstance(ids, np.ndarray) or ids.ndim == 1
    # Of dates, tolist makes integers.
    dated = isinstance(ids, np.ndarray) and ids.dtype.kind in "mM"
    listed = ids.tolist() if hasattr(ids, "tolist") and not dated else list(ids)
    if not isinstance(listed, list) or not flat:
        raise TypeError(f"{side} ids are {ids!r}; expected a one-dimensional sequence of integers")
    return [check_integer(value, f"{side} id at position {i}") for i, value in enumerate(listed)]


def check_pairs(
    source_ids: Iterable[Any], target_ids: Iterable[Any], blocks: tuple[int, int], sides: tuple[str, str]
) -> list[tuple[int, int]]:
    """The pairs as Python integers, each id inside its side: 0 <= id < blocks."""
    lists = (check_ids(source_ids, sides[0]), check_ids(target_ids, sides[1]))
    if len(lists[0]) != len(lists[1]):
        raise ValueError(f"{len(lists[0])} {sides[0]} ids and {len(lists[1])} {sides[1]} ids; expected as many")
    for ids, bound, side in zip(lists, blocks, sides, strict=True):
        for position, block in enumerate(ids):
            if not 0 <= block < bound:
                raise IndexError(f"position {position}: {side} id {block}; expected 0 <= id < {bound}")
    return list(zip(*lists, strict=True))
