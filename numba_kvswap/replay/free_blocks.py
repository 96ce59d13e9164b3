"""The free blocks of one tier of a replay: which of them an id is given next."""

from collections.abc import Sequence
from typing import Protocol

from numba_kvswap.block_allocator import BlockAllocator


class FreeBlocks(Protocol):
    """Blocks are given to ids and taken back, `blocks_per_id` at a time.

    A list of blocks that was given out is known again by its identity. It may stay empty, its blocks only promised,
    until `settle` ends the request. As many blocks as are to be kept free are free after any request.
    """

    def has_room(self) -> bool:
        """Whether there are blocks for one id more, beside those kept free."""

    def take(self, beside: Sequence[int]) -> list[int]:
        """An id's blocks by position; there must be room. `beside` are the blocks that it leaves on the other side."""

    def give_back(self, blocks: list[int]) -> None:
        """Take back a list that `take` gave."""

    def settle(self) -> None:
        """End a request: the blocks that were promised are given."""


class FreeStack:
    """The last block freed is the first used, one by one: an id's blocks need not lie together.

    Fresh blocks are used from block 0 upwards.
    """

    def __init__(self, blocks: int, blocks_per_id: int, kept_free: int = 0) -> None:
        # No list of them all: their number comes from outside.
        self._free: list[int] = []
        self._fresh, self._blocks = 0, blocks
        self._blocks_per_id, self._kept_free = blocks_per_id, kept_free

    def has_room(self) -> bool:
        free = len(self._free) + self._blocks - self._fresh
        return free >= self._blocks_per_id + self._kept_free

    def take(self, beside: Sequence[int]) -> list[int]:
        return [self._take() for _ in range(self._blocks_per_id)]

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._fresh += 1
        return self._fresh - 1

    def give_back(self, blocks: list[int]) -> None:
        """The block of the last position comes to lie on top."""
        self._free += blocks

    def settle(self) -> None:
        """Nothing was promised."""


class FreeRuns:
    """All blocks that one request takes are allocated at its end in one call, in the order of asking.

    So they lie together as far as the free runs allow. Those of one id lie in the order of its blocks on the other
    side, so that blocks which ascend there, but not by position, still make one run. What is given back within the
    request that took it never had blocks. Where nothing is kept free, what was just given back is all there is to
    choose from once the tier is full.
    """

    def __init__(self, blocks: int, blocks_per_id: int, kept_free: int = 0) -> None:
        self._allocator = BlockAllocator(blocks)
        self._blocks_per_id, self._kept_free = blocks_per_id, kept_free
        self._given_back: list[int] = []
        # By identity, since they are all empty, and so equal.
        self._promised: dict[int, tuple[list[int], Sequence[int]]] = {}

    def has_room(self) -> bool:
        free = self._allocator.free_blocks + len(self._given_back)
        return free >= (len(self._promised) + 1) * self._blocks_per_id + self._kept_free

    def take(self, beside: Sequence[int]) -> list[int]:
        """An empty list, until `settle`."""
        blocks: list[int] = []
        self._promised[id(blocks)] = blocks, beside
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        if self._promised.pop(id(blocks), None) is None:
            self._given_back += blocks

    def settle(self) -> None:
        self._allocator.free(self._given_back)
        allocated = iter(self._allocator.allocate(len(self._promised) * self._blocks_per_id).tolist())
        for blocks, beside in self._promised.values():
            positions = sorted(range(self._blocks_per_id), key=beside.__getitem__)
            blocks.extend(block for _, block in sorted(zip(positions, allocated, strict=False)))
        self._given_back.clear()
        self._promised.clear()


#: The host slots that a replay may use, by name.
HOST_SLOTS: dict[str, type[FreeStack] | type[FreeRuns]] = {"lifo": FreeStack, "contiguous": FreeRuns}
