"""What this machine has for a pool: memory, its cgroup's limits, the CPUs near a device. From /proc and /sys alone."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from numba_kvswap.driver import Driver

PROC, SYS = Path("/proc"), Path("/sys")


def check_room(size_bytes: int) -> None:
    """MemoryError where the machine, or a cgroup of this process, has not `size_bytes` left.

    To be asked before memory is touched: touching more than there is ends the process without a word.
    """
    for where, room_bytes in _rooms():
        if size_bytes > room_bytes:
            raise MemoryError(
                f"asked for {memory_in_words(size_bytes)} of host memory, found {memory_in_words(room_bytes)} left by "
                f"{where}; ask for fewer blocks, or make room"
            )


def _rooms() -> Iterator[tuple[str, int]]:
    meminfo = _numbers(PROC / "meminfo")
    if "MemAvailable:" in meminfo:
        yield "MemAvailable of /proc/meminfo", meminfo["MemAvailable:"] << 10
    for folder, names in _cgroups():
        limit, used = _number(folder / names.limit), _number(folder / names.used)
        if limit is not None and used is not None:
            # What files left in memory counts as used, and goes as soon as somebody asks for memory.
            stat = _numbers(folder / "memory.stat")
            yield (
                f"the cgroup's {folder / names.limit}",
                max(0, limit - used + sum(stat.get(n, 0) for n in names.files)),
            )


@dataclass(frozen=True)
class _CgroupFiles:
    """Files of a cgroup's folder, and the lines of its memory.stat that count what files left in memory."""

    limit: str
    used: str
    files: tuple[str, str]


_V2 = _CgroupFiles("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def _cgroups() -> Iterator[tuple[Path, _CgroupFiles]]:
    """The folders of this process's memory cgroup and of all above it; each may have a limit.

    A container may see its own cgroup as the root, under a path that is the host's: folders that are not there are
    the host's, and skipped as files without a number.
    """
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = (SYS / "fs/cgroup/memory", _V1) if controllers else (SYS / "fs/cgroup", _V2)
        folder = root / path.lstrip("/")
        yield from ((each, names) for each in (folder, *folder.parents) if each == root or root in each.parents)


def cpus_near(driver: Driver, device: int) -> frozenset[int]:
    """The CPUs of the NUMA node that `device` is attached to, of those this process may use.

    All of these where there is one node, where nobody knows the device's, or where none of that node may be used.
    """
    usable = frozenset(os.sched_getaffinity(0))
    if len(list((SYS / "devices/system/node").glob("node[0-9]*"))) < 2:
        return usable
    node = _number(SYS / "bus/pci/devices" / _pci_bus_id(driver.describe(), device) / "numa_node")
    if node is None or node < 0:
        return usable
    return usable & _cpus(_text(SYS / f"devices/system/node/node{node}/cpulist")) or usable


def _pci_bus_id(facts: Mapping[str, object], device: int) -> str:
    of_device = facts.get(f"device_{device}", facts)
    return str(of_device.get("pci_bus_id", "unknown")).lower() if isinstance(of_device, Mapping) else "unknown"


def _cpus(cpulist: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it, e.g. "0-3,8"."""
    ranges = [part.partition("-") for part in cpulist.strip().split(",") if part]
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def memory_in_words(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def locked_memory_limit() -> str:
    """RLIMIT_MEMLOCK, in words."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "none" if soft == resource.RLIM_INFINITY else memory_in_words(soft)


def _text(file: Path) -> str:
    """ "" where the file is not there or not ours to read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.lstrip("-").isdigit() else None  # not "max"


def _numbers(file: Path) -> dict[str, int]:
    """The lines of `file` that are a name and a number, as in /proc/meminfo and memory.stat."""
    rows = [line.split() for line in _text(file).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
