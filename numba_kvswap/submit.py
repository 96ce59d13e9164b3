"""The compiled loops that call driver entry points by address, and the intrinsics through which they do.

Both live in this one file: Numba's cache notices changes of the compiled function's own file only.
Addresses and sizes are uint64 throughout, since uint64 + int64 is float64 in NumPy's rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numba_kvswap.ids import Ids
from numba_kvswap.jit import compiled

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

#: Which entry point is where in EntryPoints.words.
MEMCPY_ASYNC, MEMCPY_2D_ASYNC, EVENT_RECORD = 0, 1, 2
#: What `failed` says of the call that failed: its layer and run (-1: none), which entry point it was; and the status
#: of recording the end, which is tried once anything can be on the stream.
FAILED_LAYER, FAILED_RUN, FAILED_CALL, END_STATUS = 0, 1, 2, 3

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


def _emit_call(builder: Any, address: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(_INT32, [_INT64] * len(arguments))
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


@intrinsic  # type: ignore[untyped-decorator]
def _call_2(_typing: Any, function: Any, a: Any, b: Any) -> Any:
    """``int32 function(uint64, uint64)`` by address."""
    signature = types.int32(types.uint64, types.uint64, types.uint64)
    return signature, lambda _context, builder, _signature, args: _emit_call(builder, args[0], args[1:])


@intrinsic  # type: ignore[untyped-decorator]
def _call_4(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """``int32 function(uint64, uint64, uint64, uint64)`` by address."""
    signature = types.int32(types.uint64, types.uint64, types.uint64, types.uint64, types.uint64)
    return signature, lambda _context, builder, _signature, args: _emit_call(builder, args[0], args[1:])


@compiled
def copy_runs(
    entry_points: Words,
    stream: np.uint64,
    events: Words,
    memory_types: Words,
    pitch_bytes_max: np.uint64,
    run_source: Ids,
    run_target: Ids,
    run_blocks: Ids,
    source: Words,
    target: Words,
    block_bytes: Words,
    group_layers: Integers,
    failed: Integers,
) -> int:
    """Record the first event, submit every run of every group of layers, record the second.

    Returns the first CUresult that is not 0, else 0. All of it is one stretch without the GIL, since getting the
    GIL back from a busy thread takes longer than hundreds of copies.

    entry_points: EntryPoints.words. events: to record before and after.
    memory_types: CUmemorytype of source and target.
    source, target: a row a group: address of its first layer, block stride, layer stride, in bytes.
    group_layers: layers in each group. failed: four words, which say what failed when a call did.
    """
    failed[FAILED_LAYER], failed[FAILED_RUN], failed[FAILED_CALL] = -1, -1, EVENT_RECORD
    status = _call_2(entry_points[EVENT_RECORD], events[0], stream)
    if status == 0:
        status = _copy_groups(
            entry_points,
            stream,
            memory_types,
            pitch_bytes_max,
            run_source,
            run_target,
            run_blocks,
            source,
            target,
            block_bytes,
            group_layers,
            failed,
        )
        failed[END_STATUS] = _call_2(entry_points[EVENT_RECORD], events[1], stream)
    return status  # type: ignore[no-any-return]


@compiled
def _copy_groups(
    entry_points: Words,
    stream: np.uint64,
    memory_types: Words,
    pitch_bytes_max: np.uint64,
    run_source: Ids,
    run_target: Ids,
    run_blocks: Ids,
    source: Words,
    target: Words,
    block_bytes: Words,
    group_layers: Integers,
    failed: Integers,
) -> int:
    descriptor = np.zeros(16, np.uint64)
    descriptor[2] = memory_types[0]
    descriptor[9] = memory_types[1]
    first_layer = 0
    for group in range(group_layers.size):
        for run in range(run_blocks.size):
            status = _copy_run(
                entry_points,
                stream,
                descriptor,
                pitch_bytes_max,
                source[group, 0] + np.uint64(run_source[run]) * source[group, 1],
                source[group],
                target[group, 0] + np.uint64(run_target[run]) * target[group, 1],
                target[group],
                block_bytes[group],
                run_blocks[run],
                group_layers[group],
                failed,
            )
            if status != 0:
                failed[FAILED_LAYER] += first_layer
                failed[FAILED_RUN] = run
                return status
        first_layer += group_layers[group]
    return 0


@compiled
def _copy_run(
    entry_points: Words,
    stream: np.uint64,
    descriptor: Words,
    pitch_bytes_max: np.uint64,
    first_source: np.uint64,
    source: Words,
    first_target: np.uint64,
    target: Words,
    block_bytes: np.uint64,
    blocks: int,
    layers: int,
    failed: Integers,
) -> int:
    """One run in a group of evenly spaced layers, in the fewest calls.

    Either every piece of the run over all layers by one 2-D copy, or layer by layer. A run is one piece, or,
    where blocks are padded on either side, a piece a block: what lies between blocks is not ours to write.
    """
    pieces = 1 if source[1] == block_bytes and target[1] == block_bytes else blocks
    piece_bytes = np.uint64(blocks // pieces) * block_bytes
    as_rows = pieces > 1 and source[1] <= pitch_bytes_max and target[1] <= pitch_bytes_max
    if pieces < layers * (1 if as_rows else pieces):
        failed[FAILED_LAYER], failed[FAILED_CALL] = 0, MEMCPY_2D_ASYNC
        for i in range(pieces):
            from_, to = first_source + np.uint64(i) * source[1], first_target + np.uint64(i) * target[1]
            status = _copy_rows(entry_points, stream, descriptor, from_, source[2], to, target[2], piece_bytes, layers)
            if status != 0:
                return status
        return 0
    for layer in range(layers):
        failed[FAILED_LAYER], failed[FAILED_CALL] = layer, MEMCPY_2D_ASYNC if as_rows else MEMCPY_ASYNC
        from_, to = first_source + np.uint64(layer) * source[2], first_target + np.uint64(layer) * target[2]
        if as_rows:
            status = _copy_rows(entry_points, stream, descriptor, from_, source[1], to, target[1], block_bytes, blocks)
        else:
            status = _copy_pieces(entry_points, stream, from_, source[1], to, target[1], piece_bytes, pieces)
        if status != 0:
            return status
    return 0


@compiled
def _copy_pieces(
    entry_points: Words,
    stream: np.uint64,
    source: np.uint64,
    source_stride_bytes: np.uint64,
    target: np.uint64,
    target_stride_bytes: np.uint64,
    piece_bytes: np.uint64,
    pieces: int,
) -> int:
    for i in range(pieces):
        from_, to = source + np.uint64(i) * source_stride_bytes, target + np.uint64(i) * target_stride_bytes
        status = _call_4(entry_points[MEMCPY_ASYNC], to, from_, piece_bytes, stream)
        if status != 0:
            return status  # type: ignore[no-any-return]
    return 0


@compiled
def _copy_rows(
    entry_points: Words,
    stream: np.uint64,
    descriptor: Words,
    source: np.uint64,
    source_pitch_bytes: np.uint64,
    target: np.uint64,
    target_pitch_bytes: np.uint64,
    width_bytes: np.uint64,
    rows: int,
) -> int:
    """One 2-D copy. The words of CUDA_MEMCPY2D, 8 bytes each, as cuda.h lays them out on 64-bit systems:

    0 srcXInBytes, 1 srcY, 2 srcMemoryType, 3 srcHost, 4 srcDevice, 5 srcArray, 6 srcPitch, 7 to 13 the same
    for dst, 14 WidthInBytes, 15 Height. The driver reads the one address that the memory type names.
    """
    descriptor[3] = source
    descriptor[4] = source
    descriptor[6] = source_pitch_bytes
    descriptor[10] = target
    descriptor[11] = target
    descriptor[13] = target_pitch_bytes
    descriptor[14] = width_bytes
    descriptor[15] = np.uint64(rows)
    return _call_2(entry_points[MEMCPY_2D_ASYNC], np.uint64(descriptor.ctypes.data), stream)  # type: ignore[no-any-return]
