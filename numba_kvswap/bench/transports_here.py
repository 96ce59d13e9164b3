"""The transports that this build's Swapper knows, and what it says of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from numba_kvswap import transports
from numba_kvswap.caches import DeviceCache, HostCache
from numba_kvswap.plan import Plan
from numba_kvswap.swapper import Swapper

AUTO, AUTO_COMPUTE = "auto", "auto, favor compute"
#: Where the constructor takes no transport there is one, and nothing to choose.
CHOOSES = "transport" in inspect.signature(Swapper.__init__).parameters
NAMES: tuple[str, ...] = tuple(getattr(transports, "NAMES", ())) if CHOOSES else ("copies",)


@dataclass(frozen=True)
class Choice:
    """What "auto" takes for a plan: a transport's name, and the seconds it expects of each."""

    chosen: str
    expected_s: dict[str, float]


def swapper_by(device_cache: DeviceCache, host_cache: HostCache, way: str) -> Swapper:
    """`way`: one of NAMES, AUTO or AUTO_COMPUTE. Raises what Swapper raises."""
    options: dict[str, Any] = {}
    if CHOOSES:
        options = {"transport": "auto" if way in (AUTO, AUTO_COMPUTE) else way}
        if way == AUTO_COMPUTE:
            options["favor"] = "compute"
    return Swapper(device_cache, host_cache, **options)


def why_not(swapper: Swapper, name: str) -> str:
    """Why this transport cannot move this pair here, "" where it can."""
    return str(getattr(swapper, "why_not")(name)) if CHOOSES else ""  # noqa: B009


def choice(swapper: Swapper, plan: Plan, direction: str) -> Choice:
    """What a swapper that chooses takes."""
    if not CHOOSES:
        return Choice(NAMES[0], {})
    explained = getattr(swapper, "explain")(plan, direction)  # noqa: B009
    return Choice(str(explained.chosen), dict(explained.expected_s))


def ways_of(
    device_cache: DeviceCache, host_cache: HostCache, *, favors: bool = False
) -> tuple[list[str], dict[str, str]]:
    """The ways there are to swap this pair, and why the other transports are none of them.

    `favors`: also the choice that spares compute.
    """
    asked = swapper_by(device_cache, host_cache, AUTO)
    missing = {name: why for name in NAMES if (why := why_not(asked, name))}
    autos = ([AUTO, AUTO_COMPUTE] if favors else [AUTO]) if CHOOSES else []
    return [*(name for name in NAMES if name not in missing), *autos], missing
