"""What a comparison ran on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

# Flags of /proc/cpuinfo that decide which kernels an engine takes.
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")


def describe() -> dict[str, object]:
    """CPU, its vector extensions, caches, cores in use, memory, operating system."""
    info = Path("/proc/cpuinfo").read_text()
    name = _field(info, "model name")
    identity = " ".join(f"{key} {_field(info, key)}" for key in ("cpu family", "model", "stepping"))
    flags = set(_field(info, "flags").split())
    memory_kib = int(_field(Path("/proc/meminfo").read_text(), "MemTotal").split()[0])
    return {
        "cpu": f"{name} ({_field(info, 'vendor_id')}, {identity})",
        "extensions": [flag for flag in _FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "last_level_cache": _last_level_cache(),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def _field(text: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else "unknown"


def _last_level_cache() -> str:
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return sizes[-1].read_text().strip() if sizes else "unknown"
