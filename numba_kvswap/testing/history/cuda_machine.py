"""The machine of a history on a real GPU. Plain device and pinned memory only."""

from __future__ import annotations

from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np

from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.device_tools import device_tools
from numba_kvswap.driver import Driver, SimulatedDevice, cuda_driver
from numba_kvswap.id_tables import WORDS_MIN
from numba_kvswap.ids import Words
from numba_kvswap.kernels.loaded import HOW_TO_GET_KERNELS
from numba_kvswap.layers import Layer, LayerBytes
from numba_kvswap.memory import DriverMemory
from numba_kvswap.swapper import Swapper
from numba_kvswap.testing.history.machines import KINDS, TIMELINES, Latch
from numba_kvswap.testing.history.sides import Bytes, Side
from numba_kvswap.transports.named import TRANSPORTS

# The longest that a latch may stay closed: a bug must not hold a GPU for ever.
_HELD_NS_MAX = 5_000_000_000
# Answers and latches since the last look at them, tables of ids on loan at a time.
_ANSWERS, _LATCHES, _TABLES = 4096, 512, 64
_WARM_BLOCKS = 4
_WORD_BYTES = 8


@lru_cache(maxsize=1)
def cuda_machine() -> CudaMachine:
    """The process's only one: its kernels are loaded and its streams made once. One world at a time may use it."""
    return CudaMachine()


class _Words:
    """Pinned words that kernels reach. words: as the host sees them. at: the device's address of the first."""

    def __init__(self, driver: Driver, count: int) -> None:
        size = count * _WORD_BYTES
        self._memory = DriverMemory(driver, 0, size, "host")
        layer = Layer(self._memory.address, 1, size, size, None, owner=self._memory)
        self.words: Words = np.asarray(LayerBytes(layer))[0].view(np.uint64)
        self.words[:] = 0
        self.at = driver.pointer_info(self._memory.address).device_address


class CudaMachine:
    """Kernels on raw streams; a latch is a thread that spins on a pinned word.

    While one is closed, no call may wait for the device: no memory is freed then, and as little allocated and loaded
    as can be, so all of that is done beforehand.
    """

    name = "cuda"
    timelines: tuple[int, ...] = TIMELINES
    kinds, passes_latches = KINDS, False
    simulated: SimulatedDevice | None = None

    def __init__(self) -> None:
        self._cuda = cuda_driver()
        self.driver: Driver = self._cuda
        try:
            from numba_kvswap.testing.history.kernels import DIFFERS, SAME, compiled
        except Exception as error:  # whatever a missing compiler, library or NumPy function raises
            raise ImportError(f"kernels cannot be compiled ({error}); {HOW_TO_GET_KERNELS}") from error
        capability = self._cuda.compute_capability(0)
        with self.driver.activate(0):
            self._kernels = {
                name: self._cuda.load_kernel(*compiled(name, capability)) for name in ("write", "judge", "hold")
            }
            apart = [self.driver.stream_create() for _ in range(3)]
            # The legacy default stream by both its handles, and the thread's own.
            self.streams: tuple[int, ...] = (0, 1, 2, self._cuda.stream_create_blocking(), *apart)
            self._answers, self._latches = _Words(self.driver, _ANSWERS), _Words(self.driver, 2 * _LATCHES)
        self._same, self._differs = SAME, DIFFERS
        self._judged: list[str] = []
        self._held = 0
        self._tables: WeakKeyDictionary[Side, DriverMemory] = WeakKeyDictionary()
        self._warm_up()

    def prepare(self, swapper: Swapper) -> None:
        with self.driver.activate(0):
            for name, transport in TRANSPORTS.items():
                if not swapper.why_not(name):
                    transport.make_ready(swapper.pair, "out")
                    transport.make_ready(swapper.pair, "in")
        swapper.swap_out([], []).wait()  # lets go of what has landed, which frees memory, now and not later

    def write(self, stream: int, side: Side, block: int, version: int) -> None:
        self._launch("write", stream, (self._table(side), len(side.layers), block, version))

    def judge(self, stream: int, side: Side, block: int, version: int) -> None:
        if len(self._judged) == _ANSWERS:
            raise ValueError(f"{_ANSWERS} blocks were judged since the last look at the answers; look at them")
        at = self._answers.at + _WORD_BYTES * len(self._judged)
        self._judged.append(f"a kernel read device block {block}: not version {version}")
        self._launch("judge", stream, (self._table(side), len(side.layers), block, version, at))

    def found_wrong(self, *, synchronized: bool = False) -> list[str]:
        answers = self._answers.words[: len(self._judged)]
        found = [what for what, answer in zip(self._judged, answers, strict=True) if answer == self._differs]
        answers[answers == self._differs] = self._same  # told once
        if self._latches.words[1::2].any():
            self._latches.words[1::2] = 0
            found.append(f"a latch was closed for {_HELD_NS_MAX / 1e9:.0f} s: something waited for it")
        if synchronized:
            if unjudged := int((answers != self._same).sum()):
                found.append(f"{unjudged} kernels that judge blocks never ran")
            self._judged.clear()
            self._answers.words[:] = 0
            self._latches.words[:] = 0
            self._held = 0
        return found

    def hold(self, stream: int) -> Latch:
        if self._held == _LATCHES:
            raise ValueError(f"{_LATCHES} latches were made since everything was synchronized; synchronize")
        first = 2 * self._held
        self._held += 1
        self._launch("hold", stream, (self._latches.at + _WORD_BYTES * first, _HELD_NS_MAX), threads=1)
        return _CudaLatch(self._latches.words[first : first + 1])

    def fill(self, side: Side) -> None:
        for memory, (expected, _) in zip(side.images, side.expected(), strict=True):
            with self.driver.activate(0):
                self.driver.copy_now(memory.address, expected.ctypes.data, expected.size)
        if side.kind == "device":
            self._table(side)

    def images(self, side: Side) -> list[Bytes]:
        found = [np.empty(memory.size_bytes, np.uint8) for memory in side.images]
        for memory, image in zip(side.images, found, strict=True):
            with self.driver.activate(0):
                self.driver.copy_now(image.ctypes.data, memory.address, image.size)
        return found

    def _table(self, side: Side) -> int:
        """The address of the side's table of layers, on the device."""
        if side not in self._tables:
            rows = [(layer.address, layer.block_stride_bytes, layer.block_bytes) for layer in side.layers]
            words = np.array(rows, np.uint64)
            memory = DriverMemory(self.driver, 0, words.nbytes, "device")
            with self.driver.activate(0):
                self.driver.copy_now(memory.address, words.ctypes.data, words.nbytes)
            self._tables[side] = memory
        return self._tables[side].address

    def _launch(self, name: str, stream: int, words: tuple[int, ...], threads: int = 64) -> None:
        with self.driver.activate(0):
            self._cuda.launch_kernel(self._kernels[name], 1, threads, stream, words)

    def _warm_up(self) -> None:
        """Run each kernel and each transport both ways once, and make the tables that swaps under way will need: what
        is loaded or allocated at its first use might wait for the device then."""
        driver = self.driver
        device = DeviceCache.allocate(driver, blocks=_WARM_BLOCKS, block_bytes=[8, 8])
        ids = list(range(_WARM_BLOCKS))
        with HostCache.allocate(device, blocks=_WARM_BLOCKS) as host:
            for name in ("auto", *TRANSPORTS):
                for stream in self.streams:
                    swapper = Swapper(device, host, transport=name)
                    swapper.swap_out(ids, ids[::-1], stream).wait()
                    swapper.swap_in(ids, ids[::-1], stream).wait()
        with driver.activate(0):
            tools = device_tools(driver, 0)
            lent = [tools.tables.lend(WORDS_MIN) for _ in range(_TABLES)]
            del lent
        table = DriverMemory(driver, 0, _WORD_BYTES, "device")
        for stream in self.streams:
            self._launch("write", stream, (table.address, 0, 0, 0))
            self._launch("judge", stream, (table.address, 0, 0, 0, self._answers.at))
            self.hold(stream).open()
        with driver.activate(0):
            driver.synchronize()
        self.found_wrong(synchronized=True)  # as of now nothing was answered


class _CudaLatch:
    def __init__(self, word: Words) -> None:
        self._word = word

    def open(self) -> None:
        self._word[0] = 1
