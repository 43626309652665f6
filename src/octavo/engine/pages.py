"""The page pool: every KV page there is, who holds it, and in which order unheld ones are given away.

A page is an integer. It is *free* (nobody knows it), *held* (by one or more block tables) or *cached* (held by nobody,
but the prefix index knows what it contains, so it may be shared again until it is evicted).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.engine.groups import KvGroups

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]

FREE, HELD, CACHED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The pool at one moment. One array entry per page, then the totals that follow from them.

    state uint8 [N] (FREE, HELD, CACHED); holders int32 [N]: block tables that contain the page; filled int32 [N]: slots
    written (cached pages are full); depth int32 [N]: block number within its prefix, -1 when the index doesn't know it;
    last_use int64 [N]: step in which the page was last taken, shared or released, -1 for never.

    slots_held, slots_filled: token slots of held pages, each page counted once however many hold it; with several KV
    groups a token has a slot in each.
    holders_total: sum of `holders`; holders_total - pages_held pages are saved by sharing.
    """

    page_size: int
    state: npt.NDArray[np.uint8]
    holders: Ints
    filled: Ints
    depth: Ints
    last_use: npt.NDArray[np.int64]
    pages_total: int
    pages_held: int
    pages_cached: int
    slots_held: int
    slots_filled: int
    holders_total: int

    @property
    def waste_ratio(self) -> float:
        """Unfilled slots / slots of held pages; 0 when nothing is held."""
        return 1.0 - self.slots_filled / self.slots_held if self.slots_held else 0.0


class PagePool:
    """All pages. `take`, `share` and `release` are O(1) amortised for each page.

    The free list is LIFO (a page just given back is still in the CPU's caches). Among cached pages the least recently
    used goes first, and of pages released together the last one does: a prefix is useless without its head.
    """

    def __init__(self, num_pages: int, page_size: int, windows: tuple[int, ...] = (0,), chunk: int = 1) -> None:
        """windows, chunk: of the groups that take pages from here, see KvGroups."""
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least 1 page of 1 token; got {num_pages} pages of {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.groups = KvGroups(page_size, windows, chunk)
        self.num_groups = self.groups.count
        self.holders: Ints = np.zeros(num_pages, np.int32)
        self.filled: Ints = np.zeros(num_pages, np.int32)
        self.kept: npt.NDArray[np.bool_] = np.zeros(num_pages, np.bool_)  # known to the prefix index
        self.pages_held = 0
        self.slots_filled = 0
        self.now = 0  # step number, for last_use
        self.on_evict: Callable[[int], None] = lambda page: None
        self._last_use: npt.NDArray[np.int64] = np.full(num_pages, -1, np.int64)
        self._free = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that `take` can give: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def pages_cached(self) -> int:
        return len(self._cached)

    @property
    def slots_held(self) -> int:
        return self.pages_held * self.page_size

    def take(self, count: int) -> list[int] | None:
        """`count` empty pages with one holder each, or None (and no change) when there are not so many."""
        if count > self.available:
            return None
        if count == 0:
            return []
        while len(self._free) < count:
            self._evict()
        pages = self._free[-count:]
        pages.reverse()
        del self._free[-count:]
        index = np.array(pages, np.intp)
        self.holders[index] = 1
        self._last_use[index] = self.now
        self.pages_held += count
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Add a holder to each of these distinct held or cached pages."""
        if not pages:
            return
        before = self.holders[pages]
        for page in np.asarray(pages)[before == 0].tolist():
            del self._cached[page]  # KeyError: the page is free, so its content means nothing
            self.pages_held += 1
            self.slots_filled += int(self.filled[page])
        self.holders[pages] = before + 1
        self._last_use[pages] = self.now

    def release(self, pages: Sequence[int]) -> None:
        """Take a holder from each of these distinct held pages, given in block order."""
        if not pages:
            return
        index = np.array(pages, np.intp)
        left = self.holders[index] - 1
        if left.min() < 0:
            raise ValueError(f"page {pages[int(left.argmin())]} is released but nobody holds it")
        self.holders[index] = left
        self._last_use[index] = self.now
        gone = index[left == 0][::-1]
        self.pages_held -= len(gone)
        self.slots_filled -= int(self.filled[gone].sum())
        kept = self.kept[gone]
        self._cached.update(dict.fromkeys(gone[kept].tolist()))
        empty = gone[~kept]
        self.filled[empty] = 0
        self._free += empty.tolist()

    def fill(self, page: int, count: int) -> None:
        """A held page now has its first `count` slots written (or about to be, by a step under way)."""
        self.slots_filled += count - int(self.filled[page])
        self.filled[page] = count

    def fill_run(self, pages: Sequence[int], last_count: int) -> None:
        """`fill` for the distinct pages of consecutive blocks: all are full now but those of the last block, which have
        `last_count` slots written."""
        index = np.array(pages, np.intp)
        before = int(self.filled[index].sum())
        self.filled[index] = self.page_size
        last = self.num_groups
        self.filled[index[-last:]] = last_count
        self.slots_filled += (len(pages) - last) * self.page_size + last * last_count - before

    def fill_next(self, pages: Index) -> None:
        """Each of these distinct held pages has one more slot written. intp [n]."""
        self.filled[pages] += 1
        self.slots_filled += len(pages)

    def writable(self, page: int) -> bool:
        """One holder, and nobody counts on its content."""
        return self.holders[page] == 1 and not self.kept[page]

    def shared(self, pages: Index) -> npt.NDArray[np.bool_]:
        """The opposite of `writable` for each of these held pages, in the shape of `pages`."""
        shared: npt.NDArray[np.bool_] = (self.holders[pages] > 1) | self.kept[pages]
        return shared

    def keep(self, page: int) -> None:
        """The prefix index knows this held page from now on: without holders it is cached, not free."""
        self.kept[page] = True

    def forget(self, page: int) -> None:
        """The prefix index no longer knows this page; if it was cached, it is free now."""
        self.kept[page] = False
        if page in self._cached:
            del self._cached[page]
            self.filled[page] = 0
            self._free.append(page)

    def _evict(self) -> None:
        page = next(iter(self._cached))
        self.forget(page)
        self.on_evict(page)  # may forget further pages: those that continue this one

    def report(self, depth: Ints | None = None) -> MemoryReport:
        """A snapshot; `depth` int32 [N] comes from the prefix index."""
        state = np.where(self.holders > 0, HELD, FREE).astype(np.uint8)
        state[list(self._cached)] = CACHED
        return MemoryReport(
            page_size=self.page_size,
            state=state,
            holders=self.holders.copy(),
            filled=self.filled.copy(),
            depth=np.full(self.num_pages, -1, np.int32) if depth is None else depth,
            last_use=self._last_use.copy(),
            pages_total=self.num_pages,
            pages_held=self.pages_held,
            pages_cached=self.pages_cached,
            slots_held=self.slots_held,
            slots_filled=self.slots_filled,
            holders_total=int(self.holders.sum()),
        )

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove the invariants, given the pages that each block table holds. Raises AssertionError. O(pages)."""
        holders = np.zeros(self.num_pages, np.int32)
        for pages in tables:
            np.add.at(holders, list(pages), 1)
        assert np.array_equal(holders, self.holders), "holder counts differ from the block tables"
        held = set(np.flatnonzero(holders).tolist())
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a page is in the free list twice"
        assert not free & held, "a free page is held"
        assert not free & cached, "a page is both free and cached"
        assert not cached & held, "a cached page is held"
        assert len(free) + len(cached) + len(held) == self.num_pages, "a page is lost"
        assert all(self.kept[page] for page in cached), "a cached page is unknown to the index"
        assert not any(self.kept[page] or self.filled[page] for page in free), "a free page is known or filled"
        assert all(self.filled[page] == self.page_size for page in np.flatnonzero(self.kept).tolist()), (
            "the index knows a page that is not full"
        )
        assert self.pages_held == len(held), "the count of held pages is wrong"
        assert self.slots_filled == int(self.filled[sorted(held)].sum()), "the count of filled slots is wrong"
