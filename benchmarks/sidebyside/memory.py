"""Resident memory of a server and the processes that it started, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

MIB = 1 << 20


def family(leader: int) -> list[int]:
    """`leader` and all processes that come from it, whatever groups or sessions they have made."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [leader]
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
    return found


def reset_peaks(leader: int) -> None:
    """Let `peak_mib` count from now on."""
    for pid in family(leader):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident_mib(leader: int) -> float:
    """Memory held now: proportional set size, so that what processes share counts once."""
    return sum(_kib(pid, "smaps_rollup", "Pss:") for pid in family(leader)) / 1024


def peak_mib(leader: int) -> float:
    """The most that was held since `reset_peaks`: what is held now, plus what each process has given back since."""
    given_back = sum(_kib(pid, "status", "VmHWM:") - _kib(pid, "status", "VmRSS:") for pid in family(leader))
    return resident_mib(leader) + max(0, given_back) / 1024


def _kib(pid: int, file: str, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0
