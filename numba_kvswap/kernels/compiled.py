"""The kernels compiled for a GPU: Numba makes PTX of them, cuda.core links it. Imports numba.cuda."""

from __future__ import annotations

import re
from typing import Any

from cuda.core import Linker, LinkerOptions, ObjectCode
from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

from numba_kvswap.kernels.body import LANES, PARAMETERS, WIDTHS, Primitives, kernels

_GLOBAL = 1  # NVVM's address space of global memory; mapped host memory is reached through it too


def _word(width: int) -> Any:
    return ir.VectorType(ir.IntType(32), 4) if width == 16 else ir.IntType(8 * width)


def _pointer(builder: Any, address: Any, width: int) -> Any:
    return builder.inttoptr(address, _word(width).as_pointer(_GLOBAL))


@intrinsic  # type: ignore[untyped-decorator]
def _load_word(_typing: Any, address: Any) -> Any:
    return types.uint64(types.uint64), lambda _context, builder, _signature, args: builder.load(
        _pointer(builder, args[0], 8), align=8
    )


def _copies(width: int, count: int) -> Any:
    """Copy `count` words; a third argument says how far apart, where there is more than one."""

    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target, source = args[:2]
        places = [(target, source)]
        for _ in range(1, count):
            target, source = (builder.add(address, args[2]) for address in (target, source))
            places.append((target, source))
        words = [builder.load(_pointer(builder, source, width), align=width) for _, source in places]
        for word, (target, _) in zip(words, places, strict=True):
            builder.store(word, _pointer(builder, target, width), align=width)
        return context.get_dummy_value()

    if count == 1:

        @intrinsic  # type: ignore[untyped-decorator]
        def copy(_typing: Any, target: Any, source: Any) -> Any:
            return types.void(types.uint64, types.uint64), emit

        return copy

    @intrinsic  # type: ignore[untyped-decorator]
    def copy_several(_typing: Any, target: Any, source: Any, step: Any) -> Any:
        return types.void(types.uint64, types.uint64, types.uint64), emit

    return copy_several


def cubin(name: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of one kernel of the ladder, and the kernel's symbol in it."""
    primitives = Primitives(
        load_word=_load_word,
        copy={width: _copies(width, 1) for width in WIDTHS},
        copy_4={width: _copies(width, 4) for width in WIDTHS},
    )
    move = kernels(cuda.jit(device=True), primitives)[name]

    def entry(
        layers_at: Any,
        layers: Any,
        chunks: Any,
        chunk_bytes: Any,
        source_ids_at: Any,
        target_ids_at: Any,
        pairs: Any,
        source_shift: Any,
        target_shift: Any,
        source_first: Any,
        target_first: Any,
    ) -> None:
        thread = types.uint64(cuda.blockIdx.x) * types.uint64(cuda.blockDim.x) + types.uint64(cuda.threadIdx.x)
        threads = types.uint64(cuda.gridDim.x) * types.uint64(cuda.blockDim.x)
        lanes = types.uint64(LANES)
        move(
            layers_at,
            layers,
            chunks,
            chunk_bytes,
            source_ids_at,
            target_ids_at,
            pairs,
            source_shift,
            target_shift,
            source_first,
            target_first,
            thread // lanes,
            threads // lanes,
            thread % lanes,
            lanes,
        )

    signature = types.void(*[types.uint64] * len(PARAMETERS))
    ptx, _ = cuda.compile(entry, signature, device=False, abi="numba", cc=compute_capability, output="ptx")
    (symbol,) = re.findall(r"\.entry\s+([\w$.]+)", ptx)
    arch = f"sm_{compute_capability[0]}{compute_capability[1]}"
    linked = Linker(ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch=arch)).link("cubin")
    return bytes(linked.code), symbol
