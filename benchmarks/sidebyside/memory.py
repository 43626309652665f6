"""Resident memory of a server and the processes that it started, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

MIB = 1 << 20


def group_members(leader: int) -> list[int]:
    """Processes of the group that `leader` leads."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == leader:
                    members.append(int(entry.name))
    return members


def reset_peaks(leader: int) -> None:
    """Let `peak_mib` count from now on."""
    for pid in group_members(leader):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident_mib(leader: int) -> float:
    """Memory held now: proportional set size, so that what processes share counts once."""
    return sum(_kib(pid, "smaps_rollup", "Pss:") for pid in group_members(leader)) / 1024


def peak_mib(leader: int) -> float:
    """The most that was held since `reset_peaks`: what is held now, plus what each process has given back since."""
    given_back = sum(_kib(pid, "status", "VmHWM:") - _kib(pid, "status", "VmRSS:") for pid in group_members(leader))
    return resident_mib(leader) + max(0, given_back) / 1024


def _kib(pid: int, file: str, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0
