"""Where a cell's blocks lie: ids, blocks of either cache, offsets of either side's layers. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from numba_kvswap.caches import Layout
from numba_kvswap.ids import Ids

Direction = Literal["out", "in", "both"]
#: "1", "2", "8" blocks consecutive on both sides; "all" of them; "host": consecutive on the host alone, as an allocator
#: of contiguous host slots gives them.
Run = Literal["1", "2", "8", "all", "host"]
Side = Literal["device", "host"]

_ALIGN_BYTES = 256
_JITTER_BYTES_MAX = 16 * _ALIGN_BYTES
#: Before the first and after the last layer: bytes that nobody names.
GUARD_BYTES = 4096


@dataclass(frozen=True)
class Move:
    """One swap: ``device_ids[i]`` with ``host_ids[i]``, int64."""

    direction: Literal["out", "in"]
    device_ids: Ids
    host_ids: Ids


@dataclass(frozen=True)
class Place:
    """`blocks` blocks a way of `block_bytes` bytes in each of `layers` layers."""

    direction: Direction
    block_bytes: int
    layers: int
    blocks: int
    run: Run
    host_layout: Layout

    @property
    def bytes_a_way(self) -> int:
        return self.blocks * self.layers * self.block_bytes

    @property
    def bytes(self) -> int:
        """Moved by all of it; "both" moves as much each way."""
        return self.bytes_a_way * self._ways

    @property
    def _ways(self) -> int:
        return 2 if self.direction == "both" else 1

    @property
    def _run_blocks(self) -> int:
        return {"all": self.blocks, "host": 1}.get(self.run) or int(self.run)

    def slots(self, side: Side) -> int:
        """Blocks of that side's cache: those named, and at least one that nobody names before, between and after."""
        if side == "host" and self.run == "host":
            return self._ways * self.blocks + 2
        return self._ways * -(-self.blocks // self._run_blocks) * (self._run_blocks + 1) + 1

    @property
    def device_bytes_max(self) -> int:
        """From the start of the arena to the end of the guard behind the last layer, at the most."""
        layer_bytes = _aligned(self.slots("device") * self.block_bytes) + _JITTER_BYTES_MAX
        return self.layers * layer_bytes + 2 * GUARD_BYTES

    @property
    def host_bytes(self) -> int:
        """From the start of the arena to the end of the guard behind the pool."""
        return self.layers * self.slots("host") * self.block_bytes + 2 * GUARD_BYTES

    def device_offsets(self, random: np.random.Generator) -> list[int]:
        """Of every layer in the arena: descending, at uneven gaps.

        As engines allocate layers one by one, no copy may span two of them; in one arena the order alone sees to
        that, since 2-D copies ascend.
        """
        offsets, end = [], GUARD_BYTES
        for jitter in random.integers(0, _JITTER_BYTES_MAX // _ALIGN_BYTES, self.layers):
            offsets.append(end)
            end += _aligned(self.slots("device") * self.block_bytes) + int(jitter) * _ALIGN_BYTES
        return offsets[::-1]

    def host_offsets(self) -> list[int]:
        """Of every layer in the arena, as `HostCache.allocate` lays them."""
        layer_bytes = self.block_bytes * (1 if self.host_layout == "block_major" else self.slots("host"))
        return [GUARD_BYTES + layer * layer_bytes for layer in range(self.layers)]

    @property
    def host_stride_bytes(self) -> int:
        return self.block_bytes * (self.layers if self.host_layout == "block_major" else 1)

    def moves(self, random: np.random.Generator) -> list[Move]:
        """The swap, or the two: an out and an in of disjoint blocks. Their runs come in random order."""
        lengths = np.full(-(-self.blocks // self._run_blocks), self._run_blocks)
        lengths[-1] = self.blocks - lengths[:-1].sum()
        both = np.tile(lengths, self._ways)
        device_ids = _scattered(both, self._run_blocks, random)
        host_ids = np.arange(1, both.sum() + 1) if self.run == "host" else _scattered(both, self._run_blocks, random)
        first, second = slice(0, self.blocks), slice(self.blocks, None)
        if self.direction == "both":
            back = Move("in", device_ids[second], host_ids[second])
            return [Move("out", device_ids[first], host_ids[first]), back]
        return [Move(self.direction, device_ids, host_ids)]


def _scattered(lengths: Ids, run_blocks: int, random: np.random.Generator) -> Ids:
    """Runs of these lengths, each in a random slot with room for one block more, so that none are neighbours."""
    first = 1 + random.permutation(lengths.size) * (run_blocks + 1)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids: Ids = np.repeat(first, lengths) + within
    return ids


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
