"""The free blocks of one tier of a replay: which of them an id is given next."""


class FreeStack:
    """The last block freed is the first used, one by one: an id's blocks need not lie together.

    Fresh blocks are used from block 0 upwards.
    """

    def __init__(self, blocks: int, blocks_per_id: int) -> None:
        self._free = list(range(blocks - 1, -1, -1))
        self._blocks_per_id = blocks_per_id

    def has_room(self) -> bool:
        return len(self._free) >= self._blocks_per_id

    def take(self) -> list[int]:
        """An id's blocks; there must be room."""
        return [self._free.pop() for _ in range(self._blocks_per_id)]

    def give_back(self, blocks: list[int]) -> None:
        """The block of the last position comes to lie on top."""
        self._free += blocks
