"""The FastDeploy op's signature over this package's engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numba_kvswap.cache_pair import Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver import Driver
from numba_kvswap.events import Event
from numba_kvswap.interop import check_integer, device_layers, host_facts, producer_stream, simulated_driver_of
from numba_kvswap.layers import Layer, check_layers, layer_of
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper

_ADDRESS_BITS = 63


def swap_cache_all_layers(
    cache_gpu_tensors: Sequence[Any],
    cache_cpu_ptrs: Sequence[Any],
    max_block_num_cpu: int,
    swap_block_ids_gpu: Iterable[Any],
    swap_block_ids_cpu: Iterable[Any],
    rank: int,
    mode: int,
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
    And KVSwapDriverError where a driver call fails.
    """
    mode, rank = check_integer(mode, "mode"), check_integer(rank, "rank")
    bound = check_integer(max_block_num_cpu, "max_block_num_cpu")
    if mode not in (0, 1):
        raise ValueError(f"mode is {mode}; expected 0 (swap out, GPU to CPU) or 1 (swap in, CPU to GPU)")
    if rank < 0:
        raise ValueError(f"rank is {rank}; expected the ordinal of a device, 0 or more")
    if bound < 0:
        raise ValueError(f"max_block_num_cpu is {bound}; expected 0 or more")
    device_cache = _gpu_cache(cache_gpu_tensors, rank)
    host_cache = _cpu_cache(cache_cpu_ptrs, device_cache, bound)
    swapper = Swapper(device_cache, host_cache)
    direction: Direction = "out" if mode == 0 else "in"
    swapper.pair.check_target(direction)
    if direction == "out":
        plan = Plan(swap_block_ids_gpu, swap_block_ids_cpu, sides=("gpu", "cpu"))
    else:
        plan = Plan(swap_block_ids_cpu, swap_block_ids_gpu, sides=("cpu", "gpu"))
    swap = swapper.swap_out if direction == "out" else swapper.swap_in
    swap(plan, stream=_joined_stream(cache_gpu_tensors, device_cache.driver, rank)).wait()


def _gpu_cache(tensors: Sequence[Any], rank: int) -> DeviceCache:
    layers, device = device_layers(tensors, "gpu")
    check_layers(layers, "gpu")
    for index, tensor in enumerate(tensors):
        if len(tensor.shape) not in (3, 4):
            raise ValueError(f"gpu layer {index} has shape {tuple(tensor.shape)}; expected 3 or 4 dimensions")
    if device != rank:
        raise ValueError(f"the gpu tensors lie on device {device}, rank is {rank}; expected the tensors' device")
    return DeviceCache.of_layers(layers, device, simulated_driver_of(tensors))


def _cpu_cache(pointers: Sequence[Any], device_cache: DeviceCache, bound: int) -> HostCache:
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
    if not hasattr(pointer, "shape") or pointer.shape == ():
        return _layer_at(check_integer(pointer, where), gpu.block_bytes, bound, where)
    facts = host_facts(pointer, where)
    layer = layer_of(facts, where)
    if len(facts.shape) == 1:
        found = layer.extent_bytes if layer.block_stride_bytes == layer.block_bytes else -1
        if found < bound * gpu.block_bytes:
            raise ValueError(f"{where} has {found} contiguous bytes; expected {bound} blocks of {gpu.block_bytes}")
    elif layer.block_bytes != gpu.block_bytes or layer.blocks < bound:
        raise ValueError(f"{where} has shape {facts.shape}; expected {bound} or more blocks of {gpu.block_bytes} bytes")
    if layer.dtype not in (gpu.dtype, "uint8"):
        raise ValueError(f"{where} has dtype {layer.dtype}; expected {gpu.dtype}, or uint8 for its bytes")
    stride = gpu.block_bytes if len(facts.shape) == 1 else layer.block_stride_bytes
    return Layer(layer.address, bound, gpu.block_bytes, stride, None, layer.writable, layer.owner)


def _layer_at(address: int, block_bytes: int, blocks: int, where: str) -> Layer:
    if address <= 0 or address + blocks * block_bytes >= 1 << _ADDRESS_BITS:
        raise ValueError(
            f"{where} is at {address:#x}; expected a host address with {blocks} blocks of {block_bytes} bytes"
        )
    return Layer(address, blocks, block_bytes, block_bytes, None)


def _joined_stream(tensors: Sequence[Any], driver: Driver, rank: int) -> int:
    """The first tensor's stream, made to wait for those of all the others."""
    first, *others = dict.fromkeys(producer_stream(tensor) for tensor in tensors)
    with driver.activate(rank):
        for other in others:
            event = Event(driver)
            event.record(other)
            event.make_wait(first)
    return first
