"""The FastDeploy op's signature over this package's engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver, KVSwapDriverError
from numba_kvswap.events import Event
from numba_kvswap.ids import check_integer
from numba_kvswap.interop import device_layers, host_facts, producer_stream
from numba_kvswap.layers import BYTES_END, Layer, check_layers, layer_of
from numba_kvswap.swapper import Swapper


def swap_cache_all_layers(
    cache_gpu_tensors: Sequence[Any],
    cache_cpu_ptrs: Sequence[Any],
    max_block_num_cpu: int,
    swap_block_ids_gpu: Iterable[Any],
    swap_block_ids_cpu: Iterable[Any],
    rank: int,
    mode: int,
    *,
    transport: str = "auto",
) -> None:
    """Move block pairs between a GPU cache and pinned host memory, in every layer; return when they have landed.

    The op of the same name in FastDeploy (PaddlePaddle, swap_cache_batch.cu), argument for argument.

    cache_gpu_tensors: a layer each, [blocks, kv_heads, block_size, head_dim] or [blocks, kv_heads, block_size];
        torch, CuPy, Numba or simulated arrays of any whole-byte dtype, on device `rank`.
    cache_cpu_ptrs: a layer each, the address of `max_block_num_cpu` contiguous blocks of pinned memory. A NumPy,
        Numba or torch array over pinned memory may stand in: 1-D, its bytes being those blocks, or
        [max_block_num_cpu or more, ...] blocks of the tensor's size. It has the tensor's dtype, or uint8.
    swap_block_ids_gpu, swap_block_ids_cpu: pair i names one block on each side.
    rank: ordinal of the device. The caller's current device is left as it was found.
    mode: 0 copies GPU to CPU (swap out), 1 CPU to GPU (swap in).

    Ordered after everything that the tensors' own current streams hold (all of them, not layer 0's alone).

    Raises, before anything moves:
        ValueError: no layers; lists of different length; another mode or ndim; a device other than `rank`;
            blocks that are not contiguous; dtypes or block bytes that differ; an address that is null, not
            pinned, or too short; a read-only target.
        TypeError: an id, mode, rank or bound that is not an integer; an object, structured or sub-byte dtype.
        IndexError: an id outside its side: position, id, side, bound.
    And KVSwapDriverError where a driver call fails; its `undefined_targets` says which blocks hold undefined bytes.
    """
    mode, rank = check_integer(mode, "mode"), check_integer(rank, "rank")
    bound = check_integer(max_block_num_cpu, "max_block_num_cpu")
    if mode not in (0, 1):
        raise ValueError(f"mode is {mode}; expected 0 (swap out, GPU to CPU) or 1 (swap in, CPU to GPU)")
    if rank < 0:
        raise ValueError(f"rank is {rank}; expected the ordinal of a device, 0 or more")
    if bound < 0:
        raise ValueError(f"max_block_num_cpu is {bound}; expected 0 or more")
    tensors = list(cache_gpu_tensors)
    device_cache = _gpu_cache(tensors, rank)
    host_cache = _cpu_cache(cache_cpu_ptrs, device_cache, bound)
    swapper = Swapper(device_cache, host_cache, transport=transport)
    direction: Direction = "out" if mode == 0 else "in"
    plan = swapper.checked_plan(direction, swap_block_ids_gpu, swap_block_ids_cpu, sides=("gpu", "cpu"))
    stream = _joined_stream(tensors, device_cache.driver, rank)
    submitted = False
    try:
        transfer = swapper.submit(direction, plan, stream)
        submitted = True
        transfer.wait()
    except BaseException as error:
        if submitted and isinstance(error, KVSwapDriverError):  # of the wait; nobody has the transfer to ask
            error.undefined_targets = tuple(plan.target_ids.tolist())
        # What was submitted before the failure must not outlive the call: behind bare addresses nobody keeps memory.
        with contextlib.suppress(KVSwapDriverError), device_cache.driver.activate(rank):
            device_cache.driver.stream_synchronize(stream)
        raise


def _gpu_cache(tensors: Sequence[Any], rank: int) -> DeviceCache:
    layers, device, driver = device_layers(tensors, "gpu")
    check_layers(layers, "gpu")
    for index, tensor in enumerate(tensors):
        if len(tensor.shape) not in (3, 4):
            raise ValueError(f"gpu layer {index} has shape {tuple(tensor.shape)}; expected 3 or 4 dimensions")
    if device != rank:
        raise ValueError(f"the gpu tensors lie on device {device}, rank is {rank}; expected the tensors' device")
    return DeviceCache.of_layers(layers, device, driver)


def _cpu_cache(pointers: Sequence[Any], device_cache: DeviceCache, bound: int) -> HostCache:
    pointers = list(pointers)
    if len(pointers) != len(device_cache.layers):
        raise ValueError(f"{len(device_cache.layers)} gpu layers, {len(pointers)} cpu addresses; expected as many")
    return HostCache.of_layers(
        [
            _cpu_layer(pointer, gpu, bound, f"cpu layer {index}")
            for index, (pointer, gpu) in enumerate(zip(pointers, device_cache.layers, strict=True))
        ]
    )


def _cpu_layer(pointer: Any, gpu: Layer, bound: int, where: str) -> Layer:
    """What a host address, or the array standing in for it, means: `bound` blocks of the tensor's size."""
    if isinstance(pointer, np.generic) or not hasattr(pointer, "shape"):
        return _layer_at(check_integer(pointer, where), gpu.block_bytes, bound, where)
    facts = host_facts(pointer, where)
    layer = layer_of(facts, where)
    flat = len(facts.shape) == 1
    if flat and layer.block_stride_bytes != layer.block_bytes:
        raise ValueError(f"{where} has strides {facts.strides_bytes} bytes; expected one contiguous stretch of bytes")
    if flat and layer.extent_bytes < bound * gpu.block_bytes:
        raise ValueError(f"{where} has {layer.extent_bytes} bytes; expected {bound} blocks of {gpu.block_bytes}")
    if not flat and (layer.block_bytes != gpu.block_bytes or layer.blocks < bound):
        raise ValueError(f"{where} has shape {facts.shape}; expected {bound} or more blocks of {gpu.block_bytes} bytes")
    if layer.dtype not in (gpu.dtype, "uint8"):
        raise ValueError(f"{where} has dtype {layer.dtype}; expected {gpu.dtype}, or uint8 for its bytes")
    stride = gpu.block_bytes if flat else layer.block_stride_bytes
    return Layer(layer.address, bound, gpu.block_bytes, stride, None, layer.writable, layer.owner, where)


def _layer_at(address: int, block_bytes: int, blocks: int, where: str) -> Layer:
    if address <= 0 or address + blocks * block_bytes >= BYTES_END:
        raise ValueError(
            f"{where} is at {address:#x}; expected a host address with {blocks} blocks of {block_bytes} bytes"
        )
    return Layer(address, blocks, block_bytes, block_bytes, None, name=where)


def _joined_stream(tensors: Sequence[Any], driver: Driver, rank: int) -> int:
    """The first tensor's stream, made to wait for those of all the others."""
    first, *others = dict.fromkeys(producer_stream(tensor) for tensor in tensors)
    with driver.activate(rank):
        for other in others:
            event = Event(driver)
            event.record(other)
            event.make_wait(first)
    return first
