"""What figures depend on and a reader must know: the machine, and the versions of what ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

from numba_kvswap import __version__
from numba_kvswap.driver import Driver

_PACKAGES = ("numpy", "numba", "numba-cuda", "cuda-bindings", "torch")


def machine(driver: Driver) -> dict[str, object]:
    """The device's, the host's, and the interpreter's facts that figures depend on."""
    return {
        **driver.describe(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "architecture": platform.machine(),
        "gil_switch_interval_s": sys.getswitchinterval(),
    }


def versions() -> dict[str, str]:
    """Of this package and what it stands on; "none" where a package is not installed."""
    found = {"numba_kvswap": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found
