"""What this machine can do at most with one ISA level: the ceilings that the time of an op is compared with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from octavo import _native
from octavo.backends.cpu.packing import KINDS
from octavo.backends.work import Arithmetic, Work

#: Bytes that a thread reads again and again for the cache's bandwidth: what a core's own cache holds.
_CACHED_BYTES = 192 << 10
_LEAST_BUFFER, _MOST_BUFFER = 256 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that some work takes here, in seconds, and what it is limited by."""

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes and operations (a multiply-add is two) a second, `threads` threads together.

    memory_bytes_per_s: reading what no cache holds. cache_bytes_per_s: reading what each core's own cache holds.
    operations_per_s: 0 where the level has no instruction for that type.
    """

    threads: int
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    operations_per_s: dict[Arithmetic, float]

    def best(self, other: Peaks) -> Peaks:
        """The larger of each figure of two measurements."""
        return Peaks(
            self.threads,
            max(self.memory_bytes_per_s, other.memory_bytes_per_s),
            max(self.cache_bytes_per_s, other.cache_bytes_per_s),
            {kind: max(rate, other.operations_per_s[kind]) for kind, rate in self.operations_per_s.items()},
        )

    def bound(self, work: Work) -> Bound:
        """The largest of the times for memory, rows in the cache, and each type of arithmetic."""
        bounds = [
            Bound(work.memory_bytes / self.memory_bytes_per_s, "memory"),
            Bound(work.row_bytes / self.cache_bytes_per_s, "cache"),
        ]
        for kind, operations in work.operations.items():
            # Without an instruction of its own, a type is turned to f32 first.
            rate = self.operations_per_s[kind] or self.operations_per_s["f32"]
            bounds.append(Bound(operations / rate, kind))
        return max(bounds, key=lambda bound: bound.seconds)


def measure_peaks(level: str, threads: int, seconds: float, show: Callable[[str], None]) -> Peaks:
    """Measure for about `seconds` on a pool of `threads`; `show` is told what is being measured."""
    pool = _native.ThreadPool(threads)
    each = seconds / 5
    suffix = f", {threads} thread{'s' if threads > 1 else ''}"
    show("memory bandwidth" + suffix)
    memory = _native.memory_bytes_per_s(level, pool, _buffer_bytes(), each)
    show("cache bandwidth" + suffix)
    cache = _native.cache_bytes_per_s(level, pool, _CACHED_BYTES, each)
    operations: dict[Arithmetic, float] = {}
    for kind in _arithmetic():
        show(f"{kind} arithmetic{suffix}")
        operations[kind] = _native.peak_operations_per_s(level, pool, KINDS[kind], each)
    return Peaks(threads, memory, cache, operations)


def _arithmetic() -> Iterator[Arithmetic]:
    yield "int8"
    yield "bf16"
    yield "f32"


def _buffer_bytes() -> int:
    """Four times the last-level cache, where the system tells its size."""
    try:
        cache = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        cache = 0
    return min(_MOST_BUFFER, max(_LEAST_BUFFER, 4 * cache))
