"""Contiguous KV memory: every sequence gets one run of consecutive pages, as in engines before paging.

Two allocators hand out the runs: first fit with holes that are merged again, and the binary buddy system (Knowlton,
"A Fast Storage Allocator", CACM 1965). A page is still a page to the executor, so the kernels are the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.engine.pages import PagePool


@dataclass(frozen=True, slots=True)
class Region:
    """Pages start .. start + pages - 1."""

    start: int
    pages: int


class Allocator(Protocol):
    """Who gets which run of pages."""

    def reserve(self, pages: int) -> Region | None:
        """At least so many consecutive pages, or None when no free run is long enough."""

    def fits(self, pages: int) -> bool:
        """`reserve` would find one."""

    def give_back(self, region: Region) -> None: ...


class FirstFit:
    """The first hole that is large enough, from its beginning. O(holes)."""

    def __init__(self, num_pages: int) -> None:
        self._holes = [(0, num_pages)]  # (start, pages), in order of start; neighbours are merged

    def reserve(self, pages: int) -> Region | None:
        for i, (start, size) in enumerate(self._holes):
            if size >= pages:
                self._holes[i : i + 1] = [(start + pages, size - pages)] if size > pages else []
                return Region(start, pages)
        return None

    def fits(self, pages: int) -> bool:
        return any(size >= pages for _, size in self._holes)

    def give_back(self, region: Region) -> None:
        start, end = region.start, region.start + region.pages
        i = bisect_left(self._holes, (start, 0))
        if i < len(self._holes) and self._holes[i][0] == end:
            end += self._holes.pop(i)[1]
        if i and sum(self._holes[i - 1]) == start:
            i -= 1
            start = self._holes.pop(i)[0]
        self._holes.insert(i, (start, end - start))


class Buddy:
    """Runs of 2^k pages at multiples of their size; a freed one is merged with its other half when that is free too."""

    def __init__(self, num_pages: int) -> None:
        self._free: list[list[int]] = [[] for _ in range(num_pages.bit_length())]  # by k: starts, in order
        start = 0
        for k in reversed(range(num_pages.bit_length())):
            if num_pages >> k & 1:
                self._free[k].append(start)
                start += 1 << k

    def reserve(self, pages: int) -> Region | None:
        wanted = (pages - 1).bit_length()
        k = next((k for k in range(wanted, len(self._free)) if self._free[k]), None)
        if k is None:
            return None
        start = self._free[k].pop(0)
        while k > wanted:
            k -= 1
            insort(self._free[k], start + (1 << k))
        return Region(start, 1 << wanted)

    def fits(self, pages: int) -> bool:
        return any(self._free[(pages - 1).bit_length() :])

    def give_back(self, region: Region) -> None:
        start, k = region.start, region.pages.bit_length() - 1
        while k + 1 < len(self._free) and (start ^ 1 << k) in self._free[k]:
            self._free[k].remove(start ^ 1 << k)
            start &= ~(1 << k)
            k += 1
        insort(self._free[k], start)


class RegionPool(PagePool):
    """A pool whose pages are reserved in regions. A reserved page counts as held, whether it holds anything or not.

    Nothing is shared or cached. `available` is never short: who has a region may fill it without asking.
    """

    def __init__(self, num_pages: int, page_size: int, allocator: Allocator) -> None:
        super().__init__(num_pages, page_size)
        self._allocator = allocator
        self._retired: list[Region] = []

    @property
    def available(self) -> int:
        return self.num_pages

    def reserve(self, pages: int) -> Region | None:
        region = self._allocator.reserve(pages)
        if region is not None:
            self.pages_held += region.pages
        return region

    def fits(self, pages: int) -> bool:
        return self._allocator.fits(pages)

    def give_back(self, region: Region) -> None:
        self.pages_held -= region.pages
        self._allocator.give_back(region)

    def retire(self, region: Region) -> None:
        """Give the region back once the step that copies its pages has been made."""
        self._retired.append(region)

    def give_back_retired(self) -> None:
        while self._retired:
            self.give_back(self._retired.pop())

    def claim(self, page: int) -> None:
        """A reserved page gets its first token."""
        self.holders[page] = 1
        self._last_use[page] = self.now

    def release(self, pages: Sequence[int]) -> None:
        """Reserved pages hold nothing any more."""
        self.slots_filled -= int(self.filled[pages].sum()) if pages else 0
        self.filled[pages] = self.holders[pages] = 0

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that nobody shares a page and that every sequence's pages are consecutive."""
        pages = [page for table in tables for page in table]
        assert len(set(pages)) == len(pages), "a page is in two regions"
        assert sorted(pages) == np.flatnonzero(self.holders).tolist(), "holder counts differ from the block tables"
        assert self.slots_filled == int(self.filled.sum()), "the count of filled slots is wrong"
        assert len(pages) <= self.pages_held <= self.num_pages, "the count of reserved pages is wrong"
