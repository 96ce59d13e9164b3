"""Ways to submit the measured swap. Each does it once, times it, and waits for the bytes outside of that time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol

from numba_kvswap.bench.c_loop import CLoop
from numba_kvswap.bench.named_ways import swapper_by
from numba_kvswap.bench.scattered_swap import ScatteredSwap
from numba_kvswap.cache_pair import Direction
from numba_kvswap.driver import Driver, KVSwapDriverError

C_LOOP, BINDINGS_LOOP = "c loop", "bindings loop"


@dataclass(frozen=True)
class Sample:
    """One swap. host_us: until everything was submitted. landed_s: from the call to the last byte.

    call_us: the same as host_us, but by Python's clock, where host_us is by another; None where it is not.
    """

    host_us: float
    landed_s: float
    call_us: float | None = None


def timed_in_c(
    driver: Driver, stream: int, call: str, submit: Callable[[], tuple[int, int]], wait: Callable[[], object]
) -> Sample:
    """Of `submit`, which returns a status and the nanoseconds it took by C's own clock, then waited for by `wait`.

    Raises KVSwapDriverError, of `call`, for a status that is not 0, once nothing runs on `stream` any more.
    """
    start = perf_counter_ns()
    status, host_ns = submit()
    returned = perf_counter_ns()
    wait()
    landed = perf_counter_ns()
    if status:
        driver.stream_synchronize(stream)
        raise KVSwapDriverError(call, driver.result_name(status))
    return Sample(host_ns / 1e3, (landed - start) / 1e9, (returned - start) / 1e3)


class Way(Protocol):
    name: str
    direction: Direction

    def run(self) -> Sample:
        """Swap once and wait for it. Raises KVSwapDriverError. Needs the current context of device 0."""


class PythonWay:
    """``Swapper.swap_out``, or ``swap_in``, with NumPy ids: planned, checked, submitted by a named way."""

    def __init__(self, swap: ScatteredSwap, way: str, direction: Direction = "out") -> None:
        self.name, self.direction = python_name(way, direction), direction
        self._swap = swap
        swapper = swapper_by(swap.device, swap.host, way)
        self._swap_blocks = swapper.swap_out if direction == "out" else swapper.swap_in

    def run(self) -> Sample:
        swap, swap_blocks = self._swap, self._swap_blocks
        device_ids, host_ids, stream = swap.device_ids, swap.host_ids, swap.stream
        start = perf_counter_ns()
        transfer = swap_blocks(device_ids, host_ids, stream)
        returned = perf_counter_ns()
        transfer.wait()
        return Sample((returned - start) / 1e3, (perf_counter_ns() - start) / 1e9)


def python_name(way: str, direction: Direction = "out") -> str:
    """Of a PythonWay."""
    return f"python, {way}" if direction == "out" else f"python, {way}, in"


#: The copies that the loops make too.
PYTHON_COPIES = python_name("copies")


class CWay:
    """The same copies by a loop in C: no plan, no checks, nothing but the driver calls.

    Raises NoCompiler.
    """

    name = C_LOOP
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap) -> None:
        self._swap = swap
        self._loop = CLoop()
        self.compiler = self._loop.compiler

    def run(self) -> Sample:
        driver, stream = self._swap.driver, self._swap.stream
        submit = partial(self._loop, driver.entry_points.memcpy_async, self._swap.copies, stream)
        return timed_in_c(driver, stream, "cuMemcpyAsync", submit, partial(driver.stream_synchronize, stream))


class BindingsWay:
    """The same copies by a Python loop over ``cuda.bindings.driver.cuMemcpyAsync``, which gives up the GIL each time.

    The addresses are wrapped beforehand, as a program that cared would do.
    """

    name = BINDINGS_LOOP
    direction: Direction = "out"

    def __init__(self, swap: ScatteredSwap, bindings: Any) -> None:
        self._swap, self._bindings = swap, bindings
        pointer = bindings.CUdeviceptr
        self._targets = [pointer(address) for address in swap.copies.targets.tolist()]
        self._sources = [pointer(address) for address in swap.copies.sources.tolist()]
        self._stream = bindings.CUstream(swap.stream)

    def run(self) -> Sample:
        swap, stream, size_bytes = self._swap, self._stream, self._swap.geometry.block_bytes
        copy, success = self._bindings.cuMemcpyAsync, self._bindings.CUresult.CUDA_SUCCESS
        targets, sources = self._targets, self._sources
        start = perf_counter_ns()
        for target, source in zip(targets, sources, strict=True):
            (status,) = copy(target, source, size_bytes, stream)
            if status != success:
                break
        returned = perf_counter_ns()
        swap.driver.stream_synchronize(swap.stream)
        landed = perf_counter_ns()
        if status != success:
            raise KVSwapDriverError("cuMemcpyAsync", swap.driver.result_name(int(status)))
        return Sample((returned - start) / 1e3, (landed - start) / 1e9)
