"""What this process may use: memory and CPUs under control groups v1 and v2, affinity and the machine itself.

Every function takes `root`, the directory that stands for `/`, so that tests can build the trees they need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: cgroup v1 writes "no limit" as a page-rounded 2^63; anything this large is none.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of memory this process can still take, and which limit says so (for the log)."""

    bytes: int
    source: str


def memory_room(root: Path = Path("/")) -> Room:
    """The least of what the machine has available and what each control group above this process has left.

    A group's page cache is reclaimed before the group runs out, so it does not count as used. Zero at the least.
    """
    rooms = [Room(_available_on_machine(root), "memory available on this machine")]
    for directory in _group_directories(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _integer(directory / limit_name)
            if limit is not None and limit < _UNLIMITED:
                used = (_integer(directory / used_name) or 0) - _page_cache(directory)
                rooms.append(Room(max(0, limit - max(0, used)), f"{limit_name} of the control group"))
    return min(rooms, key=lambda room: room.bytes)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the tightest quota above this process allows, or None without one."""
    quotas = []
    for directory in _group_directories(root, "cpu"):
        fields = _text(directory / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            quotas.append(int(fields[0]) / int(fields[1]))
        quota, period = _integer(directory / "cpu.cfs_quota_us"), _integer(directory / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def physical_cores(cpus: set[int], root: Path = Path("/")) -> int:
    """Distinct physical cores among these logical CPUs; their number where the topology can't be read."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = _integer(topology / "physical_package_id"), _integer(topology / "core_id")
        cores.add((package, core) if core is not None else cpu)
    return len(cores)


def default_threads(root: Path = Path("/"), affinity: set[int] | None = None) -> tuple[int, str]:
    """max(1, min(affinity, floor(quota), physical cores)), and which of them decided, for the log."""
    cpus = os.sched_getaffinity(0) if affinity is None else affinity
    limits = [(physical_cores(cpus, root), "physical cores"), (len(cpus), "CPU affinity")]
    quota = cpu_quota(root)
    if quota is not None:
        limits.append((int(quota), f"CPU quota of {quota:g}"))
    count, reason = min(limits, key=lambda limit: limit[0])
    return max(1, count), reason


def most_threads() -> int:
    """Kernel threads that this machine runs at most: two a CPU, since each waits for all others after every op.

    Never less than 16, so that what depends on threads can be tried anywhere.
    """
    return max(16, 2 * (os.cpu_count() or 1))


def _group_directories(root: Path, controller: str) -> list[Path]:
    """Directories of this process's groups for `controller`, from the deepest up to the mount, v1 and v2.

    Inside a container the listed path may belong to the host and not exist here (or begin with `..`); the mount itself
    is then the group.
    """
    mount = root / "sys/fs/cgroup"
    directories = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base = mount if not (mount / "unified").is_dir() else mount / "unified"
        elif controller in controllers.split(","):
            base = mount / controllers if (mount / controllers).is_dir() else mount / controller
        else:
            continue
        deepest = base if ".." in path else base / path.strip("/")
        chain = [deepest, *deepest.parents]
        directories += [directory for directory in chain[: chain.index(base) + 1] if directory.is_dir()]
    return directories


def _available_on_machine(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _page_cache(directory: Path) -> int:
    """Bytes of file pages charged to a group (v1 prefixes hierarchical counts with total_)."""
    counts = dict(line.split(" ", 1) for line in _text(directory / "memory.stat").splitlines() if " " in line)
    names = ("inactive_file", "active_file")
    prefix = "total_" if "total_inactive_file" in counts else ""
    return sum(int(counts.get(prefix + name, 0)) for name in names)


def _integer(path: Path) -> int | None:
    """The integer a file holds; None if the file is absent or says "max"."""
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
