"""The placement policy of a replay: which ids lie in which device and host blocks, and what must move.

Two tiers, each with its own least-recently-used order. This file decides; it moves no bytes.
"""

import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from numba_kvswap.ids import Ids
from numba_kvswap.replay.free_blocks import HOST_SLOTS, FreeBlocks, FreeStack


@dataclass(frozen=True, slots=True)
class Moves:
    """What one request moves, to be carried out in this order: all swap outs, all swap ins, then what is computed.

    Pair i of the swap outs takes block `out_device[i]` to `out_host[i]`, pair i of the swap ins takes
    `in_host[i]` to `in_device[i]`. `out_ids` and `in_ids` say whose they are, one entry an id; each id has
    `blocks_per_id` consecutive pairs, by position. Id `computed_ids[k]` is to be written into the device blocks
    `computed_device[k, :]`, by position. All arrays are int64.

    Where host slots are `lifo` and the host tier is smaller than a request's swap outs, `out_host` may name a block
    twice: the id first put there was dropped again by the same request. The last pair wins, as in every swap.
    """

    out_device: Ids
    out_host: Ids
    in_device: Ids
    in_host: Ids
    out_ids: Ids
    in_ids: Ids
    computed_ids: Ids
    computed_device: Ids


def each_block(ids: Ids, blocks_per_id: int) -> tuple[Ids, Ids]:
    """The id and the position of every block of `ids`, in the order in which `Moves` lists blocks."""
    return np.repeat(ids, blocks_per_id), np.tile(np.arange(blocks_per_id, dtype=np.int64), ids.size)


def count_runs(blocks: Ids) -> int:
    """How many maximal runs of consecutive blocks the blocks make, in whatever order and however often each comes."""
    return int(np.count_nonzero(np.diff(np.unique(blocks), prepend=-2) != 1))  # before the least comes none


class Placement:
    """Ids in `device_blocks` device blocks and `host_blocks` host blocks, `blocks_per_id` blocks an id.

    The rules, for the ids of a request in their order:

    - the request is cut before the first id that its distinct ids' blocks would no longer fit the device;
    - an id on the device becomes most recent there;
    - else, while the device lacks free blocks, its least recently used id that the request does not name leaves.
      If the host does not hold it, it is swapped out; if the host lacks free blocks, the host's least recently
      used id that the request does not name is dropped first, and where there is none the leaving id is lost;
    - then an id that the host holds is swapped in, becomes most recent on the host and stays there; an id that
      nobody holds is computed.

    Free device blocks are a stack: the last block freed is the first used. An id's blocks are freed and placed one by
    one, in the order of their positions, so they need not lie together. Fresh blocks are used from block 0 upwards.

    `host_slots` says which free host blocks are used, and changes nothing of the above: `lifo` is a stack there too;
    `contiguous` lets a `BlockAllocator` place all that a request swaps out at once, when the request is done. What
    the same request has dropped from the host again is then not swapped out at all. An id's blocks lie there in the
    order of the device blocks that they leave.

    `host_headroom_percent` of the host's blocks, rounded up, stay free: the host then holds fewer ids, under either
    kind of slots, and an allocator has free runs to choose from. By the rules the host lacks blocks so much sooner.

    Every step costs O(blocks_per_id), counted over a whole request; `contiguous` adds O(log n) in the n free runs of
    host blocks for each run that a request frees or fills.

    Raises ValueError for `blocks_per_id` under 1, a device that cannot hold one id, negative `host_blocks`, host slots
    of another name, or a headroom that is not from 0 to below 100. A host too small for one id is allowed: whatever
    leaves the device is then lost.
    """

    def __init__(
        self,
        device_blocks: int,
        host_blocks: int,
        blocks_per_id: int = 1,
        host_slots: str = "contiguous",
        host_headroom_percent: float = 0.0,
    ) -> None:
        if blocks_per_id < 1:
            raise ValueError(f"blocks_per_id: came {blocks_per_id}, expected 1 or more")
        if device_blocks < blocks_per_id:
            raise ValueError(
                f"device_blocks: came {device_blocks}, expected at least the {blocks_per_id} blocks of one id; "
                "give the device more blocks or the blocks more tokens"
            )
        if host_blocks < 0:
            raise ValueError(f"host_blocks: came {host_blocks}, expected 0 or more")
        if host_slots not in HOST_SLOTS:
            raise ValueError(f"host_slots: came {host_slots!r}, expected one of {', '.join(HOST_SLOTS)}")
        if not 0 <= host_headroom_percent < 100:
            raise ValueError(f"host_headroom_percent: came {host_headroom_percent}, expected 0 or more, below 100")
        self.device_blocks, self.host_blocks, self.blocks_per_id = device_blocks, host_blocks, blocks_per_id
        self.host_slots, self.host_headroom_percent = host_slots, host_headroom_percent
        kept_free = math.ceil(host_blocks * host_headroom_percent / 100)
        self._ids_max = device_blocks // blocks_per_id
        self._device = _Tier(FreeStack(device_blocks, blocks_per_id), blocks_per_id)
        self._host = _Tier(HOST_SLOTS[host_slots](host_blocks, blocks_per_id, kept_free), blocks_per_id)

    def place(self, hash_ids: Iterable[int]) -> Moves:
        """Place one request's ids and return what must move for it. Ids fit int64 (else OverflowError)."""
        ids, named = self._cut(hash_ids)
        draft = _Draft()
        for hash_id in ids:
            self._place_id(hash_id, named, draft)
        self._device.settle()
        self._host.settle()
        draft.check_order()
        return draft.moves(self.blocks_per_id)

    def device_blocks_by_id(self) -> tuple[Ids, Ids]:
        """Ids on the device, and their blocks by position as [ids, blocks_per_id], least recently used first."""
        return self._device.residents()

    def host_blocks_by_id(self) -> tuple[Ids, Ids]:
        """Ids on the host, and their blocks by position as [ids, blocks_per_id], least recently used first."""
        return self._host.residents()

    def _cut(self, hash_ids: Iterable[int]) -> tuple[list[int], set[int]]:
        ids: list[int] = []
        named: set[int] = set()
        for hash_id in hash_ids:
            if hash_id not in named and len(named) == self._ids_max:
                break
            named.add(hash_id)
            ids.append(hash_id)
        return ids, named

    def _place_id(self, hash_id: int, named: set[int], draft: "_Draft") -> None:
        if hash_id in self._device:
            self._device.touch(hash_id)
            return
        while not self._device.has_room():
            self._evict_from_device(named, draft)
        blocks = self._device.add(hash_id)
        if hash_id in self._host:
            draft.in_[hash_id] = blocks, self._host.touch(hash_id)
        else:
            draft.computed[hash_id] = blocks

    def _evict_from_device(self, named: set[int], draft: "_Draft") -> None:
        victim = self._device.oldest_not_in(named)
        # The cut leaves the request no more distinct ids than the device holds, so a full device that lacks one
        # of them holds an id that the request does not name.
        assert victim is not None, "a device full of the request's own ids lacks one of them"
        device_blocks = self._device.remove(victim)
        if victim in self._host or not self._make_host_room(named, draft):
            return
        draft.out[victim] = device_blocks, self._host.add(victim, device_blocks)

    def _make_host_room(self, named: set[int], draft: "_Draft") -> bool:
        while not self._host.has_room():
            dropped = self._host.oldest_not_in(named)
            if dropped is None:
                return False
            if not self._host.remove(dropped):
                del draft.out[dropped]  # its blocks were only promised, so it need not go there
        return True


class _Tier:
    """One side: its free blocks, the blocks of each id it holds, and their order from least to most recently used.

    To look past the ids that a request names must not cost a scan for each eviction. So the search takes them out of
    the order and sets them aside; `settle` puts them back in their places once the request is done. Each is set aside
    at most once for each time it is touched.
    """

    def __init__(self, free: FreeBlocks, blocks_per_id: int) -> None:
        self._blocks_per_id = blocks_per_id
        self._free = free
        self._blocks: dict[int, list[int]] = {}
        self._order: OrderedDict[int, None] = OrderedDict()
        self._skipped: list[int] = []

    def __contains__(self, hash_id: int) -> bool:
        return hash_id in self._blocks

    def has_room(self) -> bool:
        return self._free.has_room()

    def add(self, hash_id: int, beside: Sequence[int] = ()) -> list[int]:
        """Give the id free blocks, most recent of all; there must be room. The list may be empty until `settle`.

        `beside` are the blocks that it leaves on the other side, by position.
        """
        assert hash_id not in self._blocks
        blocks = self._free.take(beside)
        self._blocks[hash_id] = blocks
        self._order[hash_id] = None
        return blocks

    def touch(self, hash_id: int) -> list[int]:
        """Make the id most recent, and return its blocks."""
        self._order[hash_id] = None
        self._order.move_to_end(hash_id)
        return self._blocks[hash_id]

    def remove(self, hash_id: int) -> list[int]:
        """Free the id's blocks, and return them by position: none where they were only promised."""
        blocks = self._blocks.pop(hash_id)
        del self._order[hash_id]
        self._free.give_back(blocks)
        return blocks

    def oldest_not_in(self, named: Container[int]) -> int | None:
        """The least recently used id that is not named, or None. Named ids before it are set aside."""
        while self._order:
            hash_id = next(iter(self._order))
            if hash_id not in named:
                return hash_id
            del self._order[hash_id]
            self._skipped.append(hash_id)
        return None

    def settle(self) -> None:
        """End a request: give the blocks that were promised, and every id its place in the order again."""
        self._free.settle()
        self._restore_skipped()

    def _restore_skipped(self) -> None:
        """Put back in front, in their order, the ids set aside and not touched since."""
        # Backwards: of an id set aside twice the later place counts, and is the one met first.
        for hash_id in reversed(self._skipped):
            if hash_id not in self._order:
                self._order[hash_id] = None
                self._order.move_to_end(hash_id, last=False)
        self._skipped.clear()
        assert len(self._order) == len(self._blocks)

    def residents(self) -> tuple[Ids, Ids]:
        blocks = [self._blocks[hash_id] for hash_id in self._order]
        return _int64([self._order]), np.array(blocks, dtype=np.int64).reshape(-1, self._blocks_per_id)


class _Draft:
    """The moves of a request while they are found: id -> its device blocks, or its (device, host) blocks.

    An id is a key once: what leaves is not named, and so does not come back in the request, and what comes stays.
    """

    def __init__(self) -> None:
        self.out: dict[int, tuple[list[int], list[int]]] = {}
        self.in_: dict[int, tuple[list[int], list[int]]] = {}
        self.computed: dict[int, list[int]] = {}

    def check_order(self) -> None:
        """Assert that one call of swap outs, then one of swap ins, then computing, does what block by block would.

        What leaves is not named and what comes is, and nothing named leaves either side within the request. So a
        block that comes in finds its host block untouched by this request's swap outs, no device block is left
        twice or filled twice, and one both left and filled is read before it is written. A host block may be
        filled twice, where what was swapped out first is dropped for a later one: the last pair wins.
        """
        left = [block for device, _ in self.out.values() for block in device]
        filled = [block for device, _ in self.in_.values() for block in device]
        filled += chain.from_iterable(self.computed.values())
        assert len(set(filled)) == len(filled), "a device block filled twice in one request"
        assert len(set(left)) == len(left), "a device block left twice in one request"
        overwritten = {block for _, host in self.out.values() for block in host}
        read = chain.from_iterable(host for _, host in self.in_.values())
        assert overwritten.isdisjoint(read), "a swap out overwrites a host block to be swapped in"
        assert self.out.keys().isdisjoint(self.in_), "an id swapped out and in by one request"

    def moves(self, blocks_per_id: int) -> Moves:
        return Moves(
            out_device=_int64(device for device, _ in self.out.values()),
            out_host=_int64(host for _, host in self.out.values()),
            in_device=_int64(device for device, _ in self.in_.values()),
            in_host=_int64(host for _, host in self.in_.values()),
            out_ids=_int64([self.out]),
            in_ids=_int64([self.in_]),
            computed_ids=_int64([self.computed]),
            computed_device=_int64(self.computed.values()).reshape(-1, blocks_per_id),
        )


def _int64(pieces: Iterable[Iterable[int]]) -> Ids:
    # The dtype is given, since without a value it would otherwise be float64.
    return np.array(list(chain.from_iterable(pieces)), dtype=np.int64)
