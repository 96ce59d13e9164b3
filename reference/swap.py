"""The swap itself: for every layer and pair, in the order given, one block's bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numba_kvswap.reference.checks import (
    Array,
    block_bytes,
    check_cache,
    check_integer,
    check_layer,
    check_pairs,
    check_same_layers,
    check_target,
)


def swap_blocks(
    source_cache: Sequence[Array], target_cache: Sequence[Array], source_ids: Iterable[Any], target_ids: Iterable[Any]
) -> None:
    """Copy block `source_ids[i]` to block `target_ids[i]`, in every layer, in the order given.

    A cache is a list of layers; a layer is an array [blocks, ...] of any whole-byte dtype, its blocks
    contiguous and at a constant distance that may exceed their size. Layers may differ in block bytes and
    dtype, the two sides of a layer may not. A target named twice holds what its last pair wrote.

    Raises:
        ValueError: no layers; layer counts, block bytes, dtypes or list lengths that differ; blocks that
            are not contiguous; a read-only target.
        TypeError: an id that is not an integer; a dtype that is not of whole bytes.
        IndexError: an id outside its side.
    After an error both caches hold what they held.
    """
    source_cache, target_cache = list(source_cache), list(target_cache)
    check_cache(source_cache, "source")
    check_cache(target_cache, "target")
    check_same_layers(source_cache, target_cache)
    check_target(target_cache, "target")
    blocks = (source_cache[0].shape[0], target_cache[0].shape[0])
    pairs = check_pairs(source_ids, target_ids, blocks, ("source", "target"))
    _move(source_cache, target_cache, pairs)


def swap_cache_all_layers(
    cache_gpu_tensors: Sequence[Array],
    cache_cpu_ptrs: Sequence[int | Array],
    max_block_num_cpu: int,
    swap_block_ids_gpu: Iterable[Any],
    swap_block_ids_cpu: Iterable[Any],
    rank: int,
    mode: int,
) -> None:
    """The FastDeploy op (PaddlePaddle, swap_cache_batch.cu), here with NumPy arrays for the GPU's tensors.

    cache_gpu_tensors: a layer each, [blocks, kv_heads, block_size, head_dim] or [blocks, kv_heads, block_size].
    cache_cpu_ptrs: a layer each, the address of `max_block_num_cpu` contiguous blocks; or, standing in for
        it, an array: 1-D, whose bytes are those blocks, or [max_block_num_cpu or more, ...] blocks of the
        device's size. Arrays of bytes (uint8) stand for any dtype, as an address does.
    mode: 0 copies from GPU to CPU (swap out), 1 from CPU to GPU (swap in).
    rank: ordinal of the device; here only checked to be one.

    Raises what `swap_blocks` raises, and ValueError for another mode, another ndim, a null address, or too
    little memory behind an address or an array.
    """
    mode, rank = check_integer(mode, "mode"), check_integer(rank, "rank")
    bound = check_integer(max_block_num_cpu, "max_block_num_cpu")
    if mode not in (0, 1):
        raise ValueError(f"mode is {mode}; expected 0 (swap out, GPU to CPU) or 1 (swap in, CPU to GPU)")
    if rank < 0:
        raise ValueError(f"rank is {rank}; expected the ordinal of a device, 0 or more")
    if bound < 0:
        raise ValueError(f"max_block_num_cpu is {bound}; expected 0 or more")
    cache_gpu_tensors, cache_cpu_ptrs = list(cache_gpu_tensors), list(cache_cpu_ptrs)
    check_cache(cache_gpu_tensors, "gpu")
    for index, tensor in enumerate(cache_gpu_tensors):
        if tensor.ndim not in (3, 4):
            raise ValueError(f"gpu layer {index} has {tensor.ndim} dimensions; expected 3 or 4")
    if len(cache_cpu_ptrs) != len(cache_gpu_tensors):
        raise ValueError(f"{len(cache_gpu_tensors)} gpu layers, {len(cache_cpu_ptrs)} cpu addresses; expected as many")
    cpu = [
        _cpu_layer(pointer, tensor, bound, f"cpu layer {index}")
        for index, (pointer, tensor) in enumerate(zip(cache_cpu_ptrs, cache_gpu_tensors, strict=True))
    ]
    check_target(*((cpu, "cpu") if mode == 0 else (cache_gpu_tensors, "gpu")))
    pairs = check_pairs(swap_block_ids_gpu, swap_block_ids_cpu, (cache_gpu_tensors[0].shape[0], bound), ("gpu", "cpu"))
    if mode == 0:
        _move(cache_gpu_tensors, cpu, pairs)
    else:
        _move(cpu, cache_gpu_tensors, [(cpu_id, gpu_id) for gpu_id, cpu_id in pairs])


def merge_runs(source_ids: Iterable[int], target_ids: Iterable[int]) -> list[tuple[int, int, int]]:
    """The runs (first source, first target, blocks) that move what the pairs move, by ascending target.

    Only the last pair of a target counts; a run is as many pairs as ascend by one on both sides.
    """
    last_source = {target: source for source, target in zip(source_ids, target_ids, strict=True)}
    runs: list[tuple[int, int, int]] = []
    for target in sorted(last_source):
        source = last_source[target]
        if runs and (source, target) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((source, target, 1))
    return runs


def _move(source_cache: Sequence[Array], target_cache: Sequence[Array], pairs: list[tuple[int, int]]) -> None:
    for source_layer, target_layer in zip(source_cache, target_cache, strict=True):
        for source, target in pairs:
            _block(target_layer, target)[:] = _block(source_layer, source)


def _block(layer: Array, index: int) -> Array:
    """The bytes of one block, sharing the layer's memory, so that no value is ever interpreted."""
    return layer[index : index + 1].reshape(-1).view(np.uint8)


def _cpu_layer(pointer: int | Array, tensor: Array, bound: int, where: str) -> Array:
    """What a host address, or the array standing in for it, means: `bound` blocks of the tensor's size."""
    size = block_bytes(tensor)
    if not isinstance(pointer, np.ndarray):
        return _blocks_at(check_integer(pointer, where), bound, size, where)
    check_layer(pointer, where)
    if pointer.ndim > 1:
        if block_bytes(pointer) != size or pointer.shape[0] < bound:
            raise ValueError(f"{where} has shape {pointer.shape}; expected {bound} or more blocks of {size} bytes")
        layer = pointer[:bound]
    else:
        if not pointer.flags.c_contiguous:
            raise ValueError(f"{where} has strides {pointer.strides}; expected one contiguous stretch of bytes")
        if pointer.nbytes < bound * size:
            raise ValueError(f"{where} has {pointer.nbytes} bytes; expected {bound} blocks of {size} bytes")
        layer = pointer.view(np.uint8)[: bound * size].reshape(bound, size)
    if pointer.dtype not in (tensor.dtype, np.uint8):
        raise ValueError(f"{where} has dtype {pointer.dtype}; expected {tensor.dtype}, or uint8 for its bytes")
    return layer


def _blocks_at(address: int, blocks: int, size: int, where: str) -> Array:
    if address <= 0 or address + blocks * size >= 1 << 63:
        raise ValueError(f"{where} is at {address:#x}; expected a host address with {blocks} blocks of {size} bytes")
    return np.ctypeslib.as_array((ctypes.c_ubyte * (blocks * size)).from_address(address)).reshape(blocks, size)
