"""Swapper: a plan, a pair of caches and a stream made into a transfer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numba_kvswap.cache_pair import CachePair, Direction
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.interop import stream_handle
from numba_kvswap.plan import Plan
from numba_kvswap.transfer import Transfer
from numba_kvswap.transports import copies


class Swapper:
    """Moves blocks between one device cache and one host cache, in every layer at once.

    ``Swapper(device_cache, host_cache)``; a list of layer arrays may stand for either cache. All that can be
    checked without ids is checked here, once.

    Raises:
        ValueError: layer counts, dtypes or block bytes that differ; host memory that is not pinned.
        TypeError, ValueError: arrays that `DeviceCache` or `HostCache` would refuse.
    """

    def __init__(self, device_cache: DeviceCache | Sequence[Any], host_cache: HostCache | Sequence[Any]) -> None:
        device = device_cache if isinstance(device_cache, DeviceCache) else DeviceCache(device_cache)
        host = host_cache if isinstance(host_cache, HostCache) else HostCache(host_cache)
        self.pair = CachePair(device, host)

    @property
    def device_cache(self) -> DeviceCache:
        return self.pair.device_cache

    @property
    def host_cache(self) -> HostCache:
        return self.pair.host_cache

    def swap_out(
        self, device_ids: Iterable[Any] | Plan, host_ids: Iterable[Any] | None = None, stream: object = None
    ) -> Transfer:
        """Copy device block ``device_ids[i]`` to host block ``host_ids[i]``, in every layer.

        A ready ``Plan(device_ids, host_ids)`` may stand for both lists. The copies are put on `stream` (None: the
        legacy default stream): they start after what it holds, and what is put on it later starts after them.
        Other streams are ordered by `Transfer.wait_on`; the host reads after `Transfer.wait`. Caches stay
        alive, and must not be freed by hand, until then.

        Raises:
            TypeError, ValueError, IndexError: ids as `Plan` and its `check_bounds` say; nothing has moved.
            ValueError: a read-only target; a closed host cache.
            KVSwapDriverError: a driver call failed; if it was a copy, the targets hold undefined bytes.
        """
        return self._swap(_plan_of(device_ids, host_ids, ("device", "host")), "out", stream)

    def swap_in(
        self, device_ids: Iterable[Any] | Plan, host_ids: Iterable[Any] | None = None, stream: object = None
    ) -> Transfer:
        """Copy host block ``host_ids[i]`` to device block ``device_ids[i]``, in every layer.

        A ready ``Plan(host_ids, device_ids)`` may stand for both lists: a plan names source, then target. All
        else as for `swap_out`.
        """
        if isinstance(device_ids, Plan):
            return self._swap(_plan_of(device_ids, host_ids, ("host", "device")), "in", stream)
        return self._swap(_plan_of(_given(host_ids), device_ids, ("host", "device")), "in", stream)

    def _swap(self, plan: Plan, direction: Direction, stream: object) -> Transfer:
        pair = self.pair
        handle = stream_handle(stream)
        pair.check_target(direction)
        device_blocks, host_blocks = pair.device_cache.blocks, pair.host_cache.blocks
        if direction == "out":
            plan.check_bounds(device_blocks, host_blocks)
        else:
            plan.check_bounds(host_blocks, device_blocks)
        with pair.driver.activate(pair.device_cache.device):
            transfer = Transfer(plan, pair, direction)
            try:
                copies.submit(plan, pair, direction, handle, transfer.start, transfer.end)
            finally:
                # Also after a failure: copies before the failing one still run, and need their memory.
                pair.driver.in_flight.add(transfer)
        return transfer

    def __repr__(self) -> str:
        return f"Swapper({self.device_cache!r}, {self.host_cache!r})"


def _given(ids: Iterable[Any] | None) -> Iterable[Any]:
    if ids is None:
        raise TypeError("host_ids is None; expected the host's block ids, or a Plan as the only argument")
    return ids


def _plan_of(source_ids: Iterable[Any] | Plan, target_ids: Iterable[Any] | None, sides: tuple[str, str]) -> Plan:
    if not isinstance(source_ids, Plan):
        return Plan(source_ids, _given(target_ids), sides=sides)
    if target_ids is not None:
        raise TypeError("a Plan and a list of ids came; expected a Plan alone, or two lists")
    return source_ids
