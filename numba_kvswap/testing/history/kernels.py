"""Kernels of a history, compiled for a GPU: write a block, judge a block, hold a stream. Imports numba.cuda.

They are one CUDA block of threads each, and reach memory by address, a byte at a time: what matters is when they run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

from numba_kvswap.kernels.compiled import machine_code
from numba_kvswap.testing.history.sides import BY_LAYER, BY_OFFSET, BY_VERSION, MIX

THREADS = 64
#: Of a table of layers: address, block stride, block bytes; words of 8 bytes.
ROW_WORDS = 3
#: What `judge` leaves in a word.
SAME, DIFFERS = 1, 2
#: What a latch's first word becomes when it is opened, and its second one where nobody opened it in time.
OPENED, GAVE_UP = 1, 1

_0, _1, _3, _8 = (np.uint64(n) for n in (0, 1, 3, 8))
_SHIFT_32, _SHIFT_56 = np.uint64(32), np.uint64(56)
_BY_VERSION, _BY_LAYER, _BY_OFFSET, _MIX = (np.uint64(n) for n in (BY_VERSION, BY_LAYER, BY_OFFSET, MIX))
_SAME, _DIFFERS, _GAVE_UP = np.uint64(SAME), np.uint64(DIFFERS), np.uint64(GAVE_UP)


def _assembly(text: str, constraints: str, arguments: int, *, gives: bool) -> Any:
    """An intrinsic of one PTX instruction between words of 8 bytes, which nothing moves or leaves out.

    Made so, since a load must really be made each time around a loop, and NVVM may keep an ordinary one out of it.
    """
    word = ir.IntType(64)

    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(word if gives else ir.VoidType(), [word] * arguments)
        called = builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), args)
        return called if gives else context.get_dummy_value()

    result = types.uint64 if gives else types.void
    if arguments == 0:

        @intrinsic  # type: ignore[untyped-decorator]
        def instruction(_typing: Any) -> Any:
            return result(), emit
    elif arguments == 1:

        @intrinsic  # type: ignore[untyped-decorator]
        def instruction(_typing: Any, address: Any) -> Any:
            return result(types.uint64), emit
    else:

        @intrinsic  # type: ignore[untyped-decorator]
        def instruction(_typing: Any, address: Any, value: Any) -> Any:
            return result(types.uint64, types.uint64), emit

    return instruction


_load_word = _assembly("ld.global.u64 $0, [$1];", "=l,l,~{memory}", 1, gives=True)
_load_byte = _assembly("ld.global.u8 $0, [$1];", "=l,l,~{memory}", 1, gives=True)
_load_from_host = _assembly("ld.acquire.sys.global.u64 $0, [$1];", "=l,l,~{memory}", 1, gives=True)
_store_word = _assembly("st.global.u64 [$0], $1;", "l,l,~{memory}", 2, gives=False)
_store_byte = _assembly("st.global.u8 [$0], $1;", "l,l,~{memory}", 2, gives=False)
_nanoseconds = _assembly("mov.u64 $0, %globaltimer;", "=l", 0, gives=True)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]
def _content(version: Any, layer: Any, offset: Any) -> Any:
    """As Content.of."""
    word = version * _BY_VERSION + layer * _BY_LAYER + offset * _BY_OFFSET
    return ((word ^ (word >> _SHIFT_32)) * _MIX) >> _SHIFT_56


def _write(layers_at: Any, layers: Any, block: Any, version: Any) -> None:
    """layers_at: of a table of so many rows of ROW_WORDS."""
    layer = _0
    while layer < layers:
        row = layers_at + layer * _3 * _8
        address = _load_word(row) + block * _load_word(row + _8)
        size = _load_word(row + _8 + _8)
        offset = types.uint64(cuda.threadIdx.x)
        while offset < size:
            _store_byte(address + offset, _content(version, layer, offset))
            offset += types.uint64(cuda.blockDim.x)
        layer += _1


def _judge(layers_at: Any, layers: Any, block: Any, version: Any, answer_at: Any) -> None:
    """Write SAME or DIFFERS to the word at `answer_at`."""
    differs = 0
    layer = _0
    while layer < layers:
        row = layers_at + layer * _3 * _8
        address = _load_word(row) + block * _load_word(row + _8)
        size = _load_word(row + _8 + _8)
        offset = types.uint64(cuda.threadIdx.x)
        while offset < size:
            if _load_byte(address + offset) != _content(version, layer, offset):
                differs = 1
            offset += types.uint64(cuda.blockDim.x)
        layer += _1
    any_differs = cuda.syncthreads_or(differs)
    if cuda.threadIdx.x == 0:
        _store_word(answer_at, _DIFFERS if any_differs else _SAME)


def _hold(words_at: Any, at_most_ns: Any) -> None:
    """One thread waits until the first word is no longer 0; not for ever: then it leaves GAVE_UP in the second."""
    start = _nanoseconds()
    while _load_from_host(words_at) == _0:
        if _nanoseconds() - start > at_most_ns:
            _store_word(words_at + _8, _GAVE_UP)
            return
        cuda.nanosleep(np.uint32(500))


_KERNELS = {"write": (_write, 4), "judge": (_judge, 5), "hold": (_hold, 2)}


def compiled(name: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of "write", "judge" or "hold", and the kernel's symbol in it."""
    entry, parameters = _KERNELS[name]
    return machine_code(entry, types.void(*[types.uint64] * parameters), compute_capability)
