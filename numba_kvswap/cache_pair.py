"""Two caches whose layers match, and which of their layers are evenly spaced on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.driver.forked import fresh_locks_in_children
from numba_kvswap.ids import Ids, Words
from numba_kvswap.layers import (
    Layer,
    Places,
    check_pinned_memory,
    check_same_layers,
    check_writable,
    overlapping_layers,
)
from numba_kvswap.plan import Plan

Direction = Literal["out", "in"]
_T = TypeVar("_T")
# In place of the address of a layer without blocks, to which nobody will go.
_NOWHERE = 1


@dataclass(frozen=True)
class LayerGroups:
    """Consecutive layers of one block size at a constant distance, which one 2-D copy can span.

    device, host: uint64 [groups, 3]: address of the group's first layer, block stride, layer stride, bytes.
    block_bytes: uint64 [groups]. layers: int64 [groups], how many layers the group has.
    """

    device: Words
    host: Words
    block_bytes: Words
    layers: npt.NDArray[np.int64]


class CachePair:
    """A device cache and a host cache between which any plan with ids in bounds can move.

    Attributes: layers, which of the layers of whole caches these are.

    Raises ValueError where the layers differ in number, dtype or block bytes, or the host's are not pinned.
    """

    def __init__(self, device_cache: DeviceCache, host_cache: HostCache) -> None:
        check_same_layers(device_cache.layers, host_cache.layers)
        with device_cache.driver.activate(device_cache.device):
            host_places = check_pinned_memory(host_cache.layers, device_cache.driver, host_cache.pieces)
        self._fill(device_cache, host_cache, range(len(device_cache.layers)), host_places)

    def _fill(
        self, device_cache: DeviceCache, host_cache: HostCache, layers: Sequence[int], host_places: tuple[Places, ...]
    ) -> None:
        self.device_cache, self.host_cache = device_cache, host_cache
        self.driver, self.layers = device_cache.driver, tuple(layers)
        #: What keeps the memory of both caches alive.
        self.owners = tuple(layer.owner for cache in (device_cache, host_cache) for layer in cache.layers)
        self._prepared: dict[object, object] = {}
        self._host_places = host_places
        self.groups = self._grouped(host_places)
        cuts = {block for places in host_places for _, block in places[1:]}
        #: Host blocks, ascending, before which another registration begins in some layer. No copy may hold blocks on
        #: both sides of one: `runs` sees to it. Only pools of more than one registration have any.
        self.host_cuts = np.array(sorted(cuts), np.int64)

    def part(self, model_layers: range) -> CachePair:
        """The pair of what both caches hold of some layers of the model (`DeviceCache.depth`), checked already."""
        depth, entries = self.device_cache.depth, len(self.device_cache.layers)
        indexes = [first + layer for first in range(0, entries, depth) for layer in model_layers]
        part = CachePair.__new__(CachePair)
        places = tuple(self._host_places[index] for index in indexes)
        part._fill(self.device_cache.part(indexes), self.host_cache.part(indexes), indexes, places)
        return part

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.device_cache.block_bytes

    @cached_property
    def _all_writable(self) -> dict[Direction, bool]:
        return {
            "out": all(layer.writable for layer in self.host_cache.layers),
            "in": all(layer.writable for layer in self.device_cache.layers),
        }

    def prepared(self, key: object, prepare: Callable[[], _T]) -> _T:
        """What `prepare` returned when this pair was first asked for `key`: what a transport works out once a pair."""
        if key not in self._prepared:
            self._prepared[key] = prepare()
        return cast(_T, self._prepared[key])

    @cached_property
    def mapped_addresses(self) -> tuple[int, ...]:
        """By which a kernel reaches each host layer, whole; 0 where it does not.

        Of several registrations only where device and host addresses run alike, as they do on 64-bit Linux.
        """
        with self.driver.activate(self.device_cache.device):
            pairs = zip(self.host_cache.layers, self._host_places, strict=True)
            return tuple(self._mapped_address(layer, places) for layer, places in pairs)

    def _mapped_address(self, layer: Layer, places: Places) -> int:
        if not layer.blocks:
            return _NOWHERE
        starts = (layer.address, *(start for start, _ in places[1:]))
        mapped = [self.driver.pointer_info(start).device_address for start in starts]
        alike = {address - start for address, start in zip(mapped, starts, strict=True)}
        return mapped[0] if all(mapped) and len(alike) == 1 else 0

    @cached_property
    def why_ordered(self) -> str:
        """Why its layers must be copied one after the other, "" where they need not: they may share bytes."""
        for layers in (self.device_cache.layers, self.host_cache.layers):
            one, other = overlapping_layers(layers)
            if one:
                return f"{one} and {other} may share bytes, so that the order of their copies matters"
        return ""

    def check_target(self, direction: Direction) -> None:
        """ValueError where a layer that would be written is read-only; also where the host pool is closed."""
        self.host_cache.check_open()
        if not self._all_writable[direction]:
            check_writable(self.host_cache.layers if direction == "out" else self.device_cache.layers)

    def runs(self, plan: Plan, direction: Direction) -> tuple[Ids, Ids, Ids]:
        """The plan's source, target and blocks of each run, cut so that no run crosses one of `host_cuts`."""
        runs = plan.run_source, plan.run_target, plan.run_blocks
        if not self.host_cuts.size:
            return runs
        host, blocks = (runs[1] if direction == "out" else runs[0]), runs[2]
        first, parts = self._parts_of_runs(host, blocks)
        run = np.repeat(np.arange(blocks.size), parts)
        part = np.arange(run.size) - np.repeat(np.cumsum(parts) - parts, parts)
        # Where each part begins, from its run's start: at 0, or at the cut before it.
        begin = np.where(part == 0, 0, self.host_cuts[np.maximum(first[run] + part - 1, 0)] - host[run])
        end = np.where(part == parts[run] - 1, blocks[run], np.append(begin[1:], 0))
        return runs[0][run] + begin, runs[1][run] + begin, end - begin

    def plans_run(self, plan: Plan, direction: Direction, index: int) -> int:
        """Of which of the plan's runs the one at `index` in `runs` is a part."""
        host = plan.run_target if direction == "out" else plan.run_source
        _first, parts = self._parts_of_runs(host, plan.run_blocks)
        return int(np.searchsorted(np.cumsum(parts), index, "right"))

    def _parts_of_runs(self, host: Ids, blocks: Ids) -> tuple[Ids, Ids]:
        """Of each run the first of the cuts within it, and into how many parts it is cut."""
        first = np.searchsorted(self.host_cuts, host, "right")
        return first, 1 + np.searchsorted(self.host_cuts, host + blocks, "left") - first

    def _grouped(self, host_places: tuple[Places, ...]) -> LayerGroups:
        device, host = self.device_cache.layers, self.host_cache.layers
        # What layers must share for one copy to span them: sizes, strides, and the allocation on each side; of
        # several registrations the same ones for the same blocks.
        kinds = [
            (d.block_bytes, d.block_stride_bytes, h.block_stride_bytes, device_start, places)
            for d, h, device_start, places in zip(device, host, self.device_cache.allocations, host_places, strict=True)
        ]
        groups = [_Group(first=0)]
        for index in range(1, len(device)):
            group = groups[-1]
            spacing = (device[index].address - device[index - 1].address, host[index].address - host[index - 1].address)
            even = group.layers == 1 or spacing == group.spacing
            if even and kinds[index] == kinds[group.first] and self._spans(group, spacing):
                group.layers, group.spacing = group.layers + 1, spacing
            else:
                groups.append(_Group(first=index))
        return LayerGroups(
            device=np.array([_row(device[group.first], group.spacing[0]) for group in groups], np.uint64),
            host=np.array([_row(host[group.first], group.spacing[1]) for group in groups], np.uint64),
            block_bytes=np.array([device[group.first].block_bytes for group in groups], np.uint64),
            layers=np.array([group.layers for group in groups], np.int64),
        )

    def _spans(self, group: _Group, spacing: tuple[int, int]) -> bool:
        """Whether a 2-D copy can have one row more than `group` has layers, at this spacing.

        Its rows must ascend, lie apart and keep within the driver's largest pitch. A row is as wide as a run: up to
        a whole layer where blocks are dense on both sides, else one block. Layers that overlap stay apart, since then
        the order of the copies matters: each must end before the next begins, or all lie within one block stride.
        """
        pairs = zip((self.device_cache.layers[group.first], self.host_cache.layers[group.first]), spacing, strict=True)
        return all(
            pitch <= self.driver.pitch_bytes_max
            and (
                pitch >= layer.extent_bytes
                or (pitch >= layer.block_bytes and group.layers * pitch + layer.block_bytes <= layer.block_stride_bytes)
            )
            for layer, pitch in pairs
        )


fresh_locks_in_children(CachePair)


@dataclass
class _Group:
    """A group being gathered; spacing is device's and host's, 0 while there is one layer."""

    first: int
    layers: int = 1
    spacing: tuple[int, int] = (0, 0)


def _row(layer: Layer, spacing_bytes: int) -> tuple[int, int, int]:
    return layer.address, layer.block_stride_bytes, spacing_bytes
