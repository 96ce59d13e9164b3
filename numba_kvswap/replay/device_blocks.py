"""Fills blocks on the device, and counts those that differ there: @cuda.jit kernels. Imports numba.cuda.

They reach memory by address, through two intrinsics, so that one launch covers all layers of a cache wherever
they lie.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import cuda, types
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.extending import intrinsic

from numba_kvswap.driver import cuda_driver
from numba_kvswap.layers import Layer
from numba_kvswap.replay.content import GAMMA_U64, block_start, mixed

_THREADS = 256
_TABLES_MAX = 64

_WORD_BYTES = np.uint64(8)
_BYTE_BITS = np.uint64(8)


def _pointer_to(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _load(bits: int, result: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, address: Any) -> Any:
        """The little-endian word at an address that is a multiple of its size."""
        return result(types.uint64), lambda _context, builder, _signature, args: builder.load(
            _pointer_to(builder, args[0], bits), align=bits // 8
        )

    return load


def _store(bits: int, kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            builder.store(args[1], _pointer_to(builder, args[0], bits), align=bits // 8)
            return _context.get_dummy_value()

        return types.void(types.uint64, kind), generate

    return store


_load_word, _load_byte = _load(64, types.uint64), _load(8, types.uint8)
_store_word, _store_byte = _store(64, types.uint64), _store(8, types.uint8)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def _this_block(layers: Any, blocks: Any) -> Any:
    """Address and bytes of the block that this CUDA block works on, and where its content starts.

    layers: uint64 [layers, 3]: address, block stride, block bytes. blocks: uint64 [3, blocks]: block, id, position.
    """
    block, layer = cuda.blockIdx.x, cuda.blockIdx.y
    address = layers[layer, 0] + blocks[0, block] * layers[layer, 1]
    return address, layers[layer, 2], block_start(blocks[1, block], np.uint64(layer), blocks[2, block])


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def _word_at(start: Any, w: Any) -> Any:
    return mixed(start + (np.uint64(w) + np.uint64(1)) * GAMMA_U64)


@cuda.jit  # type: ignore[untyped-decorator]
def _fill(layers: Any, blocks: Any) -> None:
    """One CUDA block a KV block and layer: write what it must hold."""
    address, size, start = _this_block(layers, blocks)
    for w in range(cuda.threadIdx.x, (size + np.uint64(7)) // _WORD_BYTES, cuda.blockDim.x):
        word = _word_at(start, w)
        at = address + np.uint64(w) * _WORD_BYTES
        left = size - np.uint64(w) * _WORD_BYTES
        if left >= _WORD_BYTES and at % _WORD_BYTES == 0:
            _store_word(at, word)
        else:
            for i in range(min(left, _WORD_BYTES)):
                _store_byte(at + np.uint64(i), np.uint8(word & np.uint64(0xFF)))
                word >>= _BYTE_BITS


@cuda.jit  # type: ignore[untyped-decorator]
def _judge(layers: Any, blocks: Any, mismatches: Any) -> None:
    """One CUDA block a KV block and layer: add 1 to mismatches[0] if it differs in any byte."""
    address, size, start = _this_block(layers, blocks)
    differs = 0
    for w in range(cuda.threadIdx.x, (size + np.uint64(7)) // _WORD_BYTES, cuda.blockDim.x):
        word = _word_at(start, w)
        at = address + np.uint64(w) * _WORD_BYTES
        left = size - np.uint64(w) * _WORD_BYTES
        if left >= _WORD_BYTES and at % _WORD_BYTES == 0:
            if _load_word(at) != word:
                differs = 1
        else:
            for i in range(min(left, _WORD_BYTES)):
                if np.uint64(_load_byte(at + np.uint64(i))) != word & np.uint64(0xFF):
                    differs = 1
                word >>= _BYTE_BITS
    if cuda.syncthreads_or(differs) and cuda.threadIdx.x == 0:
        cuda.atomic.add(mismatches, 0, 1)


def why_no_kernels() -> str:
    """Why kernels cannot be compiled on this machine's GPU, "" where they can: it compiles one."""
    try:
        with cuda_driver().activate(0):
            cuda.jit(types.void(types.int64[::1]))(lambda array: None)
    except Exception as error:  # whatever a missing compiler, library or NumPy function raises
        reason = str(error).strip().splitlines()
        return f"{type(error).__name__}: {reason[0] if reason else ''}"
    return ""


class ContentKernels:
    """Fills and judges the blocks of one device cache, on one stream. Needs its device's context current.

    Block b of layer l must hold what `replay.content` says of its id, layer and position.
    """

    def __init__(self, layers: Sequence[Layer], stream: int) -> None:
        records = [(layer.address, layer.block_stride_bytes, layer.block_bytes) for layer in layers]
        self._owners = [layer.owner for layer in layers]
        self._in_use: list[Any] = []
        self._stream = cuda.external_stream(stream)
        self._layers = cuda.to_device(np.array(records, np.uint64), self._stream)
        self._mismatches = cuda.to_device(np.zeros(1, np.int64), self._stream)
        self._stream.synchronize()

    def fill(self, block_ids: npt.ArrayLike, ids: npt.ArrayLike, positions: npt.ArrayLike) -> None:
        """Queue the writing of block ``block_ids[k]``, in all layers, as position ``positions[k]`` of ``ids[k]``."""
        self._launch(_fill, (block_ids, ids, positions))

    def judge(self, block_ids: npt.ArrayLike, ids: npt.ArrayLike, positions: npt.ArrayLike) -> None:
        """Queue the comparison of the same; `mismatches` adds up."""
        self._launch(_judge, (block_ids, ids, positions), self._mismatches)

    def mismatches(self) -> int:
        """Blocks and layers found different so far. Waits for the stream."""
        counted = self._mismatches.copy_to_host(stream=self._stream)
        self._stream.synchronize()
        return int(counted[0])

    def _launch(self, kernel: Any, lists: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike], *more: Any) -> None:
        blocks = np.array(lists, np.uint64)
        if blocks.shape[1] == 0:
            return
        if len(self._in_use) == _TABLES_MAX:  # freeing is not ordered with the stream, so wait before letting go
            self._stream.synchronize()
            self._in_use.clear()
        table = cuda.to_device(blocks, self._stream)
        self._in_use.append(table)
        with warnings.catch_warnings():
            # A request of few blocks cannot fill the device; that is its nature and no news.
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            kernel[(blocks.shape[1], self._layers.shape[0]), _THREADS, self._stream](self._layers, table, *more)
