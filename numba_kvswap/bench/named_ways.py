"""Ways to swap by name: each transport, and the choice among them for either favour."""

from __future__ import annotations

from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.swapper import Swapper
from numba_kvswap.transports.named import TRANSPORTS

AUTO, AUTO_COMPUTE = "auto", "auto, favor compute"
CHOICES = (AUTO, AUTO_COMPUTE)
#: The ways that are always one transport.
FIXED: tuple[str, ...] = tuple(TRANSPORTS)


def swapper_by(device_cache: DeviceCache, host_cache: HostCache, way: str) -> Swapper:
    """`way`: one of FIXED or CHOICES. Raises what Swapper raises."""
    return Swapper(
        device_cache,
        host_cache,
        transport=AUTO if way in CHOICES else way,
        favor="compute" if way == AUTO_COMPUTE else "swap",
    )


def ways_of(
    device_cache: DeviceCache, host_cache: HostCache, *, favors: bool = False
) -> tuple[list[str], dict[str, str]]:
    """The ways there are to swap this pair, and why the other transports are none of them.

    `favors`: also the choice that spares compute.
    """
    asked = Swapper(device_cache, host_cache, transport=FIXED[0])
    missing = {name: why for name in FIXED if (why := asked.why_not(name))}
    return [*(name for name in FIXED if name not in missing), *(CHOICES if favors else CHOICES[:1])], missing
