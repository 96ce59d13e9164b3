"""The kernels compiled for a GPU: Numba makes PTX of them, cuda.core links it. Imports numba.cuda."""

from __future__ import annotations

import re
from typing import Any

from cuda.core import Linker, LinkerOptions, ObjectCode
from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

from numba_kvswap.kernels.body import LANES, PARAMETERS, kernels
from numba_kvswap.kernels.words import primitives

_GLOBAL = 1  # NVVM's address space of global memory; mapped host memory is reached through it too


def _pointer(builder: Any, address: Any, width: int) -> Any:
    word = ir.VectorType(ir.IntType(32), 4) if width == 16 else ir.IntType(8 * width)
    return builder.inttoptr(address, word.as_pointer(_GLOBAL))


def cubin(name: str, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of one kernel of the ladder, and the kernel's symbol in it."""
    aligned = primitives(intrinsic, types, _pointer, alignment=lambda width: width)
    move = kernels(cuda.jit(device=True), aligned)[name]

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

    return machine_code(entry, types.void(*[types.uint64] * len(PARAMETERS)), compute_capability)


def machine_code(entry: Any, signature: Any, compute_capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of a kernel, and its symbol there."""
    ptx, _ = cuda.compile(entry, signature, device=False, abi="numba", cc=compute_capability, output="ptx")
    (symbol,) = re.findall(r"\.entry\s+([\w$.]+)", ptx)
    arch = f"sm_{compute_capability[0]}{compute_capability[1]}"
    linked = Linker(ObjectCode.from_ptx(ptx.encode()), options=LinkerOptions(arch=arch)).link("cubin")
    return bytes(linked.code), symbol
