"""Swapper: a plan, a pair of caches and a stream made into a transfer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.choice import Chooser, Explanation, Favor
from numba_kvswap.interop import stream_handle
from numba_kvswap.overlaps import Overlaps
from numba_kvswap.plan import Plan
from numba_kvswap.submitter import Submitter, submit
from numba_kvswap.transfer import Transfer
from numba_kvswap.transports.named import transport_named

_T = TypeVar("_T")
# Of what is submitted layer by layer. On an H200 parts of 16 MiB reach 0.86 to 0.95 of the whole swap's speed, those of
# 32 MiB 0.90 to 0.99; the first one is in after some 0.8 ms (docs/notes.md).
_PART_BYTES_MIN = 32 << 20


class Swapper:
    """Moves blocks between one device cache and one host cache, in every layer at once.

    ``Swapper(device_cache, host_cache)``; a list of layer arrays may stand for either cache. All that can be
    checked without ids is checked here, once.

    transport: how bytes travel: "copies", "batch", "kernel", "ring", "split", or "auto", whichever is expected to be
        done first with a plan, or a kernel that is expected next to as soon (see `explain`). On a machine's first use
        "auto" measures what they cost there, for some 2 s and with 256 MiB a side for the time being, and keeps that
        on disk.
    favor: what "auto" looks at: "swap", the swap's own time alone; "compute" also leaves out what would slow down
        other kernels much, and counts with waits for them.

    Two swaps of one Swapper that touch the same block, on either side, happen in the order of their calls, whatever
    their streams; those that do not may overlap, both ways at once. Other work is ordered by the stream alone. Threads
    may share a Swapper: their swaps are submitted one after the other.

    The ring takes 128 MiB of device memory a way, once a process; measuring makes both. All else on the device is
    tables: 48 bytes a layer, and for each swap under way by "kernel", "ring" or "split" up to 32 bytes a pair of ids,
    at least 32 KiB, kept for later swaps. A swap by "ring" or "split" also waits for the swaps of that way that were
    put on the ring before it, whatever their streams.

    Raises:
        ValueError: layer counts, dtypes or block bytes that differ; host memory that is not pinned; a transport that is
            not known, or cannot move these caches.
        TypeError, ValueError: arrays that `DeviceCache` or `HostCache` would refuse.
    """

    def __init__(
        self,
        device_cache: DeviceCache | Sequence[Any],
        host_cache: HostCache | Sequence[Any],
        *,
        transport: str = "auto",
        favor: Favor = "swap",
    ) -> None:
        if isinstance(device_cache, HostCache) or isinstance(host_cache, DeviceCache):
            raise TypeError(
                f"came {type(device_cache).__name__}, {type(host_cache).__name__}; expected the device's cache first"
            )
        device = device_cache if isinstance(device_cache, DeviceCache) else DeviceCache(device_cache)
        host = host_cache if isinstance(host_cache, HostCache) else HostCache(host_cache)
        if favor not in ("swap", "compute"):
            raise ValueError(f"favor is {favor!r}; expected 'swap' or 'compute'")
        self._transport, self._favor = transport, favor
        self._overlaps = Overlaps()
        with device.driver.activate(device.device):
            self._whole = Submitter(CachePair(device, host), range(device.depth), transport, favor)
        self._by_layers: dict[int, tuple[Submitter, ...]] = {}

    @property
    def pair(self) -> CachePair:
        return self._whole.pair

    @property
    def device_cache(self) -> DeviceCache:
        return self.pair.device_cache

    @property
    def host_cache(self) -> HostCache:
        return self.pair.host_cache

    def why_not(self, transport: str) -> str:
        """Why a transport cannot move blocks between these caches, "" where it can. ValueError for an unknown name."""
        if transport == "auto":
            return ""
        with self.pair.driver.activate(self.device_cache.device):
            return transport_named(transport).why_not(self.pair)

    def explain(self, plan: Plan, direction: Direction = "out", *, both_ways: bool = False) -> Explanation:
        """What each transport is expected to take for a plan, and which one "auto" chooses: a table, as text.

        Also for a Swapper with a transport of its own; it then measures, where nothing has yet. both_ways: while swaps
        go the other way at the same time, which "auto" takes into account by itself. Raises as `swap_out` does for a
        plan that could not be swapped.
        """
        if direction not in ("out", "in"):
            raise ValueError(f"direction is {direction!r}; expected 'out' or 'in'")
        plan = self.checked_plan(direction, plan)
        with self.pair.driver.activate(self.device_cache.device):
            chooser = self._whole.chooser or Chooser(self.pair, self._favor)
            return chooser.explain(plan, direction, both_ways=both_ways)

    def swap_out(
        self,
        device_ids: Iterable[Any] | Plan,
        host_ids: Iterable[Any] | None = None,
        stream: object = None,
        *,
        layerwise: bool = False,
    ) -> Transfer:
        """Copy device block ``device_ids[i]`` to host block ``host_ids[i]``, in every layer.

        A ready ``Plan(device_ids, host_ids)`` may stand for both lists. The copies are put on `stream` (None: the
        legacy default stream): they start after what it holds, and what is put on it later starts after them.
        Other streams are ordered by `Transfer.wait_on`; the host reads after `Transfer.wait`. Caches stay
        alive, and must not be freed by hand, until then.

        layerwise: submit a few layers of the model at a time, in their order, so that `Transfer.layer` says of each
            when its bytes have come: all lists of a cache (K, V, scales) have a share in a layer. It costs up to a
            tenth of the speed. What is too short to be worth cutting, some 32 MiB, stays whole.

        Raises:
            TypeError, ValueError, IndexError: ids as `Plan` and its `check_bounds` say; nothing has moved.
            ValueError: a read-only target; a closed host cache.
            KVSwapDriverError: a driver call failed; its `undefined_targets` says which blocks hold undefined bytes.
        """
        return self.submit("out", self.checked_plan("out", device_ids, host_ids), stream, layerwise=layerwise)

    def swap_in(
        self,
        device_ids: Iterable[Any] | Plan,
        host_ids: Iterable[Any] | None = None,
        stream: object = None,
        *,
        layerwise: bool = False,
    ) -> Transfer:
        """Copy host block ``host_ids[i]`` to device block ``device_ids[i]``, in every layer.

        A ready ``Plan(host_ids, device_ids)`` may stand for both lists: a plan names source, then target. All
        else as for `swap_out`.
        """
        return self.submit("in", self.checked_plan("in", device_ids, host_ids), stream, layerwise=layerwise)

    def checked_plan(
        self,
        direction: Direction,
        device_ids: Iterable[Any] | Plan,
        host_ids: Iterable[Any] | None = None,
        *,
        sides: tuple[str, str] = ("device", "host"),
    ) -> Plan:
        """The plan of a swap "out" or "in" between these caches, everything about it checked: see `swap_out`.

        `sides` is how errors call device and host.
        """
        self.pair.check_target(direction)
        blocks = _source_first(direction, (self.device_cache.blocks, self.host_cache.blocks))
        if isinstance(device_ids, Plan):
            if host_ids is not None:
                raise TypeError(
                    f"a Plan and {type(host_ids).__name__} came; expected a Plan alone; name a stream: stream=..."
                )
            device_ids.check_bounds(*blocks)
            return device_ids
        if host_ids is None:
            raise TypeError("host_ids is None; expected the host's block ids, or a Plan as the only argument")
        ids = _source_first(direction, (device_ids, host_ids))
        return Plan(*ids, sides=_source_first(direction, sides), blocks=blocks)

    def submit(self, direction: Direction, plan: Plan, stream: object = None, *, layerwise: bool = False) -> Transfer:
        """Put a plan that `checked_plan` returned on `stream`. Raises ValueError where the host cache was closed
        since, and KVSwapDriverError."""
        handle = stream_handle(stream, self.pair.driver)
        with self.pair.driver.activate(self.device_cache.device):
            submitters = self._submitters(plan) if layerwise else (self._whole,)
            return submit(submitters, plan, direction, handle, self._overlaps)

    def _submitters(self, plan: Plan) -> tuple[Submitter, ...]:
        """For layers of the model, a few at a time: as few as are worth a submission of their own."""
        pair, depth = self.pair, self.device_cache.depth
        layer_bytes = max(1, plan.blocks * pair.block_bytes // depth)
        # A power of two: whatever sizes plans have, there are few ways to cut the layers.
        layers = 1 << (-(-_PART_BYTES_MIN // layer_bytes) - 1).bit_length()
        if layers >= depth or pair.why_ordered:
            return (self._whole,)
        if layers not in self._by_layers:
            stretches = [range(first, min(first + layers, depth)) for first in range(0, depth, layers)]
            self._by_layers[layers] = tuple(
                Submitter(pair.part(stretch), stretch, self._transport, self._favor, len(stretches))
                for stretch in stretches
            )
        return self._by_layers[layers]

    def __repr__(self) -> str:
        how = f"transport={self._transport!r}, favor={self._favor!r}"
        return f"Swapper({self.device_cache!r}, {self.host_cache!r}, {how})"


def _source_first(direction: Direction, device_and_host: tuple[_T, _T]) -> tuple[_T, _T]:
    device, host = device_and_host
    return (device, host) if direction == "out" else (host, device)
