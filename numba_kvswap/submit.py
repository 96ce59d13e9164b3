"""The compiled loops that call driver entry points by address, and the intrinsics through which they do.

Both live in this one file: Numba's cache notices changes of the compiled function's own file only.
Addresses and sizes are uint64 throughout, since uint64 + int64 is float64 in NumPy's rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numba_kvswap.ids import Ids, Integers, Words
from numba_kvswap.jit import compiled, holding_the_gil

#: Which entry point is where in EntryPoints.words.
MEMCPY_ASYNC, MEMCPY_2D_ASYNC, EVENT_RECORD, STREAM_WAIT_EVENT, LAUNCH_KERNEL, MEMCPY_BATCH_ASYNC = range(6)
#: What `failed` says of the call that failed: its layer and run (-1: none), which entry point it was; whether anything
#: can be on the stream; and then the status of recording the end, which is tried all the same, and what that failed in.
FAILED_LAYER, FAILED_RUN, FAILED_CALL, BEGUN, END_STATUS, END_CALL = range(6)
FAILED_WORDS = 6

#: What a launch is made with, as words: CUfunction, CUDA blocks, threads in each, and what kernels/body.py calls
#: layers_at, layers, chunks, chunk_bytes.
_PARAMETERS = 11

#: Copies handed to the driver at once. Of 64 to 16,384 on an H200, 256 to 1,024 are fastest: 43 GB/s for 32 KiB copies
#: where 16,384 at once give 28.
BATCH_COPIES = 512
# CUmemcpyAttributes, of CUmemcpySrcAccessOrder and CUmemcpyFlags: read the source in the stream's order, and prefer to
# leave the multiprocessors alone.
_SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE = 1, 1
#: Columns of `pieces`: where a ring's rows lie on the host, how far apart, how long they are, where in a slot they lie.
PIECE_HOST, PIECE_STRIDE, PIECE_BYTES, PIECE_OFFSET = range(4)
#: Words of `ring`: its streams for kernels, for copies, and for batches beside it, how many bytes a slot has, the first
#: one's address, rows that fit one, an event to join streams.
RING_KERNELS, RING_COPIES, RING_BATCHES, RING_SLOT_BYTES, RING_ADDRESS, RING_ROWS, RING_JOIN = range(7)
RING_WORDS = 7
#: Columns of a ring's `slots`, which are events.
FILLED, EMPTIED = 0, 1

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


def _emit_call(builder: Any, address: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(_INT32, [_INT64] * len(arguments))
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def _caller(arguments: int) -> Any:
    """An intrinsic: ``int32 function(uint64, ...)`` by address. C's smaller integers travel in words of 8 bytes too."""
    signature = types.int32(types.uint64, *[types.uint64] * arguments)

    def typed() -> Any:
        return signature, lambda _context, builder, _signature, args: _emit_call(builder, args[0], args[1:])

    return typed


@intrinsic  # type: ignore[untyped-decorator]
def _call_1(_typing: Any, function: Any, a: Any) -> Any:
    return _caller(1)()


@intrinsic  # type: ignore[untyped-decorator]
def _call_2(_typing: Any, function: Any, a: Any, b: Any) -> Any:
    return _caller(2)()


@intrinsic  # type: ignore[untyped-decorator]
def _call_3(_typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    return _caller(3)()


@intrinsic  # type: ignore[untyped-decorator]
def _call_4(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return _caller(4)()


@intrinsic  # type: ignore[untyped-decorator]
def _call_9(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any) -> Any:
    return _caller(9)()


@intrinsic  # type: ignore[untyped-decorator]
def _call_11(
    _typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any
) -> Any:
    return _caller(11)()


# ---- what every transport does around its work ----


@compiled
def _begin(entry_points: Words, stream: np.uint64, events: Words, failed: Integers) -> int:
    failed[FAILED_LAYER], failed[FAILED_RUN], failed[FAILED_CALL] = -1, -1, EVENT_RECORD
    failed[BEGUN], failed[END_STATUS], failed[END_CALL] = 0, 0, EVENT_RECORD
    status = _call_2(entry_points[EVENT_RECORD], events[0], stream)
    if status == 0:
        failed[BEGUN] = 1
    return status  # type: ignore[no-any-return]


@compiled
def _end(entry_points: Words, stream: np.uint64, events: Words, failed: Integers) -> None:
    failed[END_STATUS] = _call_2(entry_points[EVENT_RECORD], events[1], stream)


@compiled
def _wait(entry_points: Words, stream: np.uint64, event: np.uint64, failed: Integers) -> int:
    failed[FAILED_CALL] = STREAM_WAIT_EVENT
    return _call_3(entry_points[STREAM_WAIT_EVENT], stream, event, np.uint64(0))  # type: ignore[no-any-return]


@compiled
def _record(entry_points: Words, event: np.uint64, stream: np.uint64, failed: Integers) -> int:
    failed[FAILED_CALL] = EVENT_RECORD
    return _call_2(entry_points[EVENT_RECORD], event, stream)  # type: ignore[no-any-return]


@compiled
def _join(entry_points: Words, stream: np.uint64, other: np.uint64, event: np.uint64, failed: Integers) -> int:
    """What comes on `stream` starts after what is on `other` now. A failure is one of the end's."""
    status = _call_2(entry_points[EVENT_RECORD], event, other)
    if status == 0:
        status = _call_3(entry_points[STREAM_WAIT_EVENT], stream, event, np.uint64(0))
        if status != 0:
            failed[END_CALL] = STREAM_WAIT_EVENT
    failed[END_STATUS] = status
    return status  # type: ignore[no-any-return]


# ---- copies ----


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
    group_layers: layers in each group. failed: FAILED_WORDS words, which say what failed when a call did.
    """
    status = _begin(entry_points, stream, events, failed)
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
        _end(entry_points, stream, events, failed)
    return status


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


# ---- kernel ----


@compiled
def launch_over_runs(
    entry_points: Words,
    stream: np.uint64,
    events: Words,
    launch: Words,
    run_source: Ids,
    run_target: Ids,
    run_blocks: Ids,
    table: Words,
    table_at: np.uint64,
    upload: bool,
    failed: Integers,
) -> int:
    """Write the ids of all runs to `table` and launch one kernel over them, between records of the two events.

    table: pinned words, two a block; one run needs none. table_at: where the kernel reads them; upload: whether they
    must be copied there.
    """
    status = _begin(entry_points, stream, events, failed)
    if status == 0:
        none = np.uint64(0)
        if run_blocks.size == 1:
            firsts = np.uint64(run_source[0]), np.uint64(run_target[0])
            status = _launch(entry_points, stream, launch, none, none, run_blocks[0], none, none, firsts, failed)
        elif run_blocks.size > 1:
            pairs = _write_ids(run_source, run_target, run_blocks, table)
            status = _upload(entry_points, stream, table, table_at, 2 * pairs, upload, failed)
            if status == 0:
                targets_at = table_at + np.uint64(8 * pairs)
                firsts = none, none
                status = _launch(entry_points, stream, launch, table_at, targets_at, pairs, none, none, firsts, failed)
        _end(entry_points, stream, events, failed)
    return status


@compiled
def _write_ids(run_source: Ids, run_target: Ids, run_blocks: Ids, table: Words) -> int:
    """The sources of all pairs, then their targets; how many pairs there are."""
    pairs = 0
    for run in range(run_blocks.size):
        pairs += run_blocks[run]
    at = 0
    for run in range(run_blocks.size):
        for i in range(run_blocks[run]):
            table[at] = np.uint64(run_source[run] + i)
            table[pairs + at] = np.uint64(run_target[run] + i)
            at += 1
    return pairs


@compiled
def _upload(
    entry_points: Words,
    stream: np.uint64,
    table: Words,
    table_at: np.uint64,
    words: int,
    upload: bool,
    failed: Integers,
) -> int:
    if not upload:
        return 0
    failed[FAILED_CALL] = MEMCPY_ASYNC
    source, size = np.uint64(table.ctypes.data), np.uint64(8 * words)
    return _call_4(entry_points[MEMCPY_ASYNC], table_at, source, size, stream)  # type: ignore[no-any-return]


@compiled
def _launch(
    entry_points: Words,
    stream: np.uint64,
    launch: Words,
    source_ids_at: np.uint64,
    target_ids_at: np.uint64,
    pairs: int,
    source_shift: np.uint64,
    target_shift: np.uint64,
    firsts: tuple[np.uint64, np.uint64],
    failed: Integers,
) -> int:
    """Of the kernels in kernels/body.py, whose parameters these are. firsts: source_first and target_first."""
    values, places = np.empty(_PARAMETERS, np.uint64), np.empty(_PARAMETERS, np.uint64)
    values[0:4] = launch[3:7]
    values[4], values[5], values[6] = source_ids_at, target_ids_at, np.uint64(pairs)
    values[7], values[8] = source_shift, target_shift
    values[9], values[10] = firsts
    for i in range(_PARAMETERS):
        places[i] = np.uint64(values.ctypes.data) + np.uint64(8 * i)
    one, none = np.uint64(1), np.uint64(0)
    failed[FAILED_CALL] = LAUNCH_KERNEL
    at = np.uint64(places.ctypes.data)
    status = _call_11(
        entry_points[LAUNCH_KERNEL], launch[0], launch[1], one, one, launch[2], one, one, none, stream, at, none
    )
    # Read once more, so that the arrays live until the driver has read them.
    return status if values[6] == np.uint64(pairs) and places[0] != none else -1


# ---- batches ----


@compiled
def _flush(entry_points: Words, stream: np.uint64, copies: Words, count: int, failed: Integers) -> int:
    """Put `count` copies on `stream`; copies: rows of targets, sources and sizes, which may land in any order.

    In one call, where there are several and the driver has such a call. FAILED_RUN becomes the index of what failed.
    """
    if count > 1 and entry_points[MEMCPY_BATCH_ASYNC] != 0:
        failed[FAILED_CALL] = MEMCPY_BATCH_ASYNC
        attributes = np.zeros(6, np.uint32)
        attributes[0], attributes[5] = _SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE
        first_and_failed = np.zeros(2, np.uint64)
        status = _call_9(
            entry_points[MEMCPY_BATCH_ASYNC],
            np.uint64(copies[0].ctypes.data),
            np.uint64(copies[1].ctypes.data),
            np.uint64(copies[2].ctypes.data),
            np.uint64(count),
            np.uint64(attributes.ctypes.data),
            np.uint64(first_and_failed.ctypes.data),
            np.uint64(1),
            np.uint64(first_and_failed.ctypes.data + 8),
            stream,
        )
        if status != 0:
            failed[FAILED_RUN] = np.int64(min(np.uint64(count - 1), first_and_failed[1]))
        return status if attributes[0] != 0 else -1
    failed[FAILED_CALL] = MEMCPY_ASYNC
    for i in range(count):
        status = _call_4(entry_points[MEMCPY_ASYNC], copies[0, i], copies[1, i], copies[2, i], stream)
        if status != 0:
            failed[FAILED_RUN] = i
            return status  # type: ignore[no-any-return]
    return 0


@compiled
def batch_runs(
    entry_points: Words,
    stream: np.uint64,
    events: Words,
    aside: Words,
    run_source: Ids,
    run_target: Ids,
    run_blocks: Ids,
    source: Words,
    target: Words,
    block_bytes: Words,
    blocks_first: bool,
    failed: Integers,
) -> int:
    """Submit every run of every layer in batches of copies, between records of the two events.

    aside: a stream to put them on, joined to `stream` at both ends, and an event for that; 0 and 0 for `stream` itself.
    source, target: uint64 [layers, 2], address and block stride. blocks_first: whether to go through all layers of a
    run before the next, as they lie in a block-major pool: the engines like neighbours in turn.
    """
    status = _begin(entry_points, stream, events, failed)
    if status != 0:
        return status
    own = aside[0] == 0
    if not own:
        status = _wait(entry_points, aside[0], events[0], failed)
    if status == 0:
        put_on = stream if own else aside[0]
        status = _batch_all(
            entry_points, put_on, run_source, run_target, run_blocks, source, target, block_bytes, blocks_first, failed
        )
        # Also after a failure: what is on the side stream must be over before the end.
        if not own and _join(entry_points, stream, aside[0], aside[1], failed) != 0:
            return status
    _end(entry_points, stream, events, failed)
    return status


@compiled
def _batch_all(
    entry_points: Words,
    stream: np.uint64,
    run_source: Ids,
    run_target: Ids,
    run_blocks: Ids,
    source: Words,
    target: Words,
    block_bytes: Words,
    blocks_first: bool,
    failed: Integers,
) -> int:
    copies = np.empty((3, BATCH_COPIES), np.uint64)
    places = np.empty((2, BATCH_COPIES), np.int64)
    count, runs, layers = 0, run_blocks.size, block_bytes.size
    for index in range(runs * layers):
        run, layer = (index // layers, index % layers) if blocks_first else (index % runs, index // runs)
        dense = source[layer, 1] == block_bytes[layer] and target[layer, 1] == block_bytes[layer]
        pieces = 1 if dense else run_blocks[run]
        for i in range(pieces):
            copies[0, count] = target[layer, 0] + np.uint64(run_target[run] + i) * target[layer, 1]
            copies[1, count] = source[layer, 0] + np.uint64(run_source[run] + i) * source[layer, 1]
            copies[2, count] = np.uint64(run_blocks[run] // pieces) * block_bytes[layer]
            places[0, count], places[1, count] = layer, run
            count += 1
            if count == BATCH_COPIES:
                status = _flush_places(entry_points, stream, copies, places, count, failed)
                if status != 0:
                    return status
                count = 0
    return _flush_places(entry_points, stream, copies, places, count, failed)


@compiled
def _flush_places(
    entry_points: Words, stream: np.uint64, copies: Words, places: Integers, count: int, failed: Integers
) -> int:
    status = _flush(entry_points, stream, copies, count, failed)
    if status != 0:
        at = failed[FAILED_RUN]
        failed[FAILED_LAYER], failed[FAILED_RUN] = places[0, at], places[1, at]
    return status


# ---- ring ----


@compiled
def ring_over_runs(
    entry_points: Words,
    stream: np.uint64,
    events: Words,
    out: bool,
    ring: Words,
    slots: Words,
    chunks_before: Integers,
    launch: Words,
    pieces: Words,
    host_cuts: Ids,
    order: Ids,
    run_device: Ids,
    run_host: Ids,
    run_blocks: Ids,
    table: Words,
    table_at: np.uint64,
    upload: bool,
    failed: Integers,
) -> int:
    """Move every block through a ring of slots in device memory, between records of the two events.

    Out: a kernel gathers blocks into a slot, engine copies take the slot to the host. In: the other way round. The ring
    has a stream for each of the two, so that they work on different slots at once. A slot is filled only behind the
    event of its last emptying, in whichever transfer that was.

    ring: RING_WORDS words. slots: [slots, 2]. chunks_before: one word, how often any slot was used so far.
    pieces: [pieces, 4], see PIECE_HOST. host_cuts: host blocks that no copy may hold together with those before.
    order: the runs by ascending host block. table: pinned words, one a block.
    """
    status = _begin(entry_points, stream, events, failed)
    if status != 0:
        return status
    status = _ring_chunks(
        entry_points,
        events,
        out,
        ring,
        slots,
        chunks_before,
        launch,
        pieces,
        host_cuts,
        order,
        run_device,
        run_host,
        run_blocks,
        table,
        table_at,
        upload,
        failed,
    )
    _end_ring(entry_points, stream, events, out, ring, status, failed)
    return status


@compiled
def split_over_runs(
    entry_points: Words,
    stream: np.uint64,
    events: Words,
    out: bool,
    ring: Words,
    slots: Words,
    chunks_before: Integers,
    launch: Words,
    pieces: Words,
    host_cuts: Ids,
    order: Ids,
    run_device: Ids,
    run_host: Ids,
    run_blocks: Ids,
    table: Words,
    table_at: np.uint64,
    upload: bool,
    batch_source: Ids,
    batch_target: Ids,
    batch_blocks: Ids,
    source: Words,
    target: Words,
    block_bytes: Words,
    blocks_first: bool,
    failed: Integers,
) -> int:
    """`ring_over_runs` of some runs and `batch_runs` of others, between one pair of records.

    The batches have a stream of their own. Out they start with the swap, while the ring's first kernel may still wait
    for others; in, behind the ring's last copy, while its last kernel may.
    """
    status = _begin(entry_points, stream, events, failed)
    if status != 0:
        return status
    # Kernels first: they wait while the host submits the batches, which takes it milliseconds.
    status = _ring_chunks(
        entry_points,
        events,
        out,
        ring,
        slots,
        chunks_before,
        launch,
        pieces,
        host_cuts,
        order,
        run_device,
        run_host,
        run_blocks,
        table,
        table_at,
        upload,
        failed,
    )
    batches, begin = ring[RING_BATCHES], events[0] if out else ring[RING_JOIN]
    if status == 0 and not out:
        status = _record(entry_points, begin, ring[RING_COPIES], failed)
    if status == 0:
        status = _wait(entry_points, batches, begin, failed)
    if status == 0:
        status = _batch_all(
            entry_points,
            batches,
            batch_source,
            batch_target,
            batch_blocks,
            source,
            target,
            block_bytes,
            blocks_first,
            failed,
        )
    if _join(entry_points, stream, batches, ring[RING_JOIN], failed) == 0:
        _end_ring(entry_points, stream, events, out, ring, status, failed)
    return status


@compiled
def _end_ring(
    entry_points: Words, stream: np.uint64, events: Words, out: bool, ring: Words, status: int, failed: Integers
) -> None:
    # The stage that empties has waited for the one that fills; but where something failed, perhaps not.
    last, other = (RING_COPIES, RING_KERNELS) if out else (RING_KERNELS, RING_COPIES)
    joined = _join(entry_points, stream, ring[last], ring[RING_JOIN], failed)
    if joined == 0 and status != 0:
        joined = _join(entry_points, stream, ring[other], ring[RING_JOIN], failed)
    if joined == 0:
        _end(entry_points, stream, events, failed)


@compiled
def _ring_chunks(
    entry_points: Words,
    events: Words,
    out: bool,
    ring: Words,
    slots: Words,
    chunks_before: Integers,
    launch: Words,
    pieces: Words,
    host_cuts: Ids,
    order: Ids,
    run_device: Ids,
    run_host: Ids,
    run_blocks: Ids,
    table: Words,
    table_at: np.uint64,
    upload: bool,
    failed: Integers,
) -> int:
    host_ids = np.empty(table.size, np.int64)
    pairs, first = np.int64(0), np.int64(0)
    for position in range(order.size):
        run = order[position]
        for i in range(run_blocks[run]):
            host_ids[pairs] = run_host[run] + i
            table[pairs] = np.uint64(run_device[run] + i)
            pairs += 1
    copies = np.empty((3, BATCH_COPIES), np.uint64)
    rows = np.int64(ring[RING_ROWS])
    # The ids are read by kernels, so theirs is the first stream of either way.
    status = _wait(entry_points, ring[RING_KERNELS], events[0], failed)
    if status == 0 and not out:
        status = _wait(entry_points, ring[RING_COPIES], events[0], failed)
    if status == 0:
        status = _upload(entry_points, ring[RING_KERNELS], table, table_at, int(pairs), upload, failed)
    while status == 0 and first < pairs:
        last = pairs if pairs - first < rows else first + rows
        slot = chunks_before[0] % slots.shape[0]
        status = _ring_chunk(
            entry_points,
            out,
            ring,
            slots[slot],
            ring[RING_ADDRESS] + np.uint64(slot) * ring[RING_SLOT_BYTES],
            launch,
            pieces,
            host_cuts,
            host_ids[first:last],
            table_at + np.uint64(8 * first),
            copies,
            failed,
        )
        chunks_before[0] += 1
        first = last
    return status


@compiled
def _ring_chunk(
    entry_points: Words,
    out: bool,
    ring: Words,
    slot: Words,
    slot_at: np.uint64,
    launch: Words,
    pieces: Words,
    host_cuts: Ids,
    host_ids: Ids,
    device_ids_at: np.uint64,
    copies: Words,
    failed: Integers,
) -> int:
    """Fill one slot and empty it again: first the stage that fills, on its stream, then the other one."""
    copying, kernels = ring[RING_COPIES], ring[RING_KERNELS]
    filling, emptying = (kernels, copying) if out else (copying, kernels)
    status = _wait(entry_points, filling, slot[EMPTIED], failed)
    for fills in (True, False):
        if status == 0 and not fills:
            status = _wait(entry_points, emptying, slot[FILLED], failed)
        if status != 0:
            return status
        if fills == out:
            status = _launch_on_slot(entry_points, kernels, out, slot_at, launch, host_ids, device_ids_at, failed)
        else:
            status = _copy_slot(entry_points, copying, out, slot_at, pieces, host_cuts, host_ids, copies, failed)
        if status == 0:
            event, stage = (slot[FILLED], filling) if fills else (slot[EMPTIED], emptying)
            status = _record(entry_points, event, stage, failed)
    return status


@compiled
def _launch_on_slot(
    entry_points: Words,
    stream: np.uint64,
    out: bool,
    slot_at: np.uint64,
    launch: Words,
    host_ids: Ids,
    device_ids_at: np.uint64,
    failed: Integers,
) -> int:
    """The ring's side of the launch's layers is given from a slot's start, its rows are in the pairs' order."""
    none = np.uint64(0)
    firsts, pairs = (none, none), host_ids.size
    if out:
        return _launch(entry_points, stream, launch, device_ids_at, none, pairs, none, slot_at, firsts, failed)
    return _launch(entry_points, stream, launch, none, device_ids_at, pairs, slot_at, none, firsts, failed)


@compiled
def _is_cut(host_cuts: Ids, block: int) -> bool:
    found = False
    for cut in host_cuts:  # none, but for pools of hundreds of GiB
        found |= cut == block
    return found


@compiled
def _copy_slot(
    entry_points: Words,
    stream: np.uint64,
    out: bool,
    slot_at: np.uint64,
    pieces: Words,
    host_cuts: Ids,
    host_ids: Ids,
    copies: Words,
    failed: Integers,
) -> int:
    """Engine copies between a slot and the host: one a piece and stretch of neighbouring host blocks."""
    count = 0
    for piece in range(pieces.shape[0]):
        host_at, stride, size = pieces[piece, PIECE_HOST], pieces[piece, PIECE_STRIDE], pieces[piece, PIECE_BYTES]
        first = 0
        while first < host_ids.size:
            last = first + 1
            while (
                stride == size
                and last < host_ids.size
                and host_ids[last] == host_ids[last - 1] + 1
                and not _is_cut(host_cuts, host_ids[last])
            ):
                last += 1
            at_host = host_at + np.uint64(host_ids[first]) * stride
            at_slot = slot_at + pieces[piece, PIECE_OFFSET] + np.uint64(first) * size
            copies[0, count], copies[1, count] = (at_host, at_slot) if out else (at_slot, at_host)
            copies[2, count] = np.uint64(last - first) * size
            count += 1
            if count == BATCH_COPIES:
                status = _flush(entry_points, stream, copies, count, failed)
                if status != 0:
                    return status
                count = 0
            first = last
    return _flush(entry_points, stream, copies, count, failed)


# ---- waiting ----


@compiled
def ask_again(query: np.uint64, event: np.uint64, not_ready: int, pause: np.uint64, pause_us: np.uint64, n: int) -> int:
    """cuEventQuery of `event`, at `query`, until it answers otherwise than `not_ready`, at most `n` times; the answer.

    pause: a C function of one unsigned integer, called with `pause_us` in between.
    """
    status = _call_1(query, event)
    for _ in range(n - 1):
        if status != not_ready:
            break
        _call_1(pause, pause_us)
        status = _call_1(query, event)
    return status  # type: ignore[no-any-return]


# ---- one copy ----


@compiled
def copy_async(entry_points: Words, target: np.uint64, source: np.uint64, size: np.uint64, stream: np.uint64) -> int:
    return _call_4(entry_points[MEMCPY_ASYNC], target, source, size, stream)  # type: ignore[no-any-return]


copy_runs_briefly = holding_the_gil(copy_runs)
launch_over_runs_briefly = holding_the_gil(launch_over_runs)
batch_runs_briefly = holding_the_gil(batch_runs)
ring_over_runs_briefly = holding_the_gil(ring_over_runs)
split_over_runs_briefly = holding_the_gil(split_over_runs)
