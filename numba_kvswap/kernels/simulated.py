"""The kernels as the simulated device runs them: the same body, compiled for the host, a lane after the other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from numba_kvswap.driver import SimulatedDriver
from numba_kvswap.ids import Words
from numba_kvswap.kernels.body import LANES, PARAMETERS, ROW_WORDS, kernels
from numba_kvswap.kernels.words import primitives


def _pointer(builder: Any, address: Any, width: int) -> Any:
    return builder.inttoptr(address, ir.IntType(8 * width).as_pointer())


#: Words may lie anywhere: a wrong width then moves wrong bytes and no more.
UNALIGNED = primitives(intrinsic, types, _pointer, alignment=lambda width: 1)


def kernel_on(driver: SimulatedDriver, name: str) -> Callable[[list[int], int, int], Iterator[None] | None]:
    """Kernel `name` of the ladder, for `SimulatedDriver.add_kernel`.

    What it will touch is looked up among the live allocations at every step: a fault is an error here, as on a device.
    """
    run = _compiled()[name]

    def kernel(values: list[int], blocks: int, threads: int) -> Iterator[None] | None:
        launch, p = dict(zip(PARAMETERS, values, strict=True)), np.array(values, np.uint64)
        workers = np.uint64(blocks * threads // LANES)

        def step(first: int, end: int) -> None:
            _check_touched(driver, launch)
            run(p, workers, np.uint64(first), np.uint64(end))

        # The workers beyond have nothing to do.
        stretches = driver.stretches(LANES * min(int(workers), launch["pairs"] * launch["chunks"]))
        if len(stretches) > 1:
            return _in_steps(step, stretches)
        step(*stretches[0])
        return None

    return kernel


def _in_steps(step: Callable[[int, int], None], stretches: list[tuple[int, int]]) -> Iterator[None]:
    *before, last = stretches
    for stretch in before:
        step(*stretch)
        yield
    step(*last)


def _check_touched(driver: SimulatedDriver, launch: dict[str, int]) -> None:
    pairs = launch["pairs"]
    if not pairs:
        return
    driver.refuse_untouchable(launch["layers_at"], 8 * ROW_WORDS * launch["layers"])
    rows = _words_at(launch["layers_at"], ROW_WORDS * launch["layers"]).reshape(-1, ROW_WORDS).tolist()
    for side, column in (("source", 0), ("target", 2)):
        least, most = _id_range(driver, launch[f"{side}_ids_at"], launch[f"{side}_first"], pairs)
        for row in rows:
            address, stride, block_bytes = row[column] + launch[f"{side}_shift"], row[column + 1], row[4]
            driver.refuse_untouchable(address + least * stride, (most - least) * stride + block_bytes)


def _id_range(driver: SimulatedDriver, ids_at: int, first: int, pairs: int) -> tuple[int, int]:
    if not ids_at:
        return first, first + pairs - 1
    driver.refuse_untouchable(ids_at, 8 * pairs)
    ids = _words_at(ids_at, pairs)
    return int(ids.min()), int(ids.max())


def _words_at(address: int, count: int) -> Words:
    words: Words = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(address))
    return words


@lru_cache(maxsize=1)
def _compiled() -> dict[str, Callable[[Words, np.uint64, np.uint64, np.uint64], None]]:
    return {name: _over_all_lanes(move) for name, move in kernels(njit, UNALIGNED).items()}


def _over_all_lanes(move: Any) -> Any:
    lanes = np.uint64(LANES)

    @njit  # type: ignore[untyped-decorator]
    def run(p: Words, workers: np.uint64, first: np.uint64, end: np.uint64) -> None:
        for each in range(first, end):  # lane, of all workers' lanes one worker after the other
            worker, lane = np.uint64(each) // lanes, np.uint64(each) % lanes
            move(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], worker, workers, lane, lanes)

    return run
