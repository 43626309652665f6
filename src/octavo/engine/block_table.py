"""A sequence's block table: logical block i -> page."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.pages import PagePool


@dataclass(frozen=True, slots=True)
class PageWrites:
    """What `BlockTable.write` changed: pages appended, and the (block, source page, target page) it made private."""

    appended: list[int]
    copy: tuple[int, int, int] | None = None


class BlockTable:
    """The pages of one sequence, in order. It holds each of them once in the pool."""

    __slots__ = ("_pool", "pages")

    def __init__(self, pool: PagePool, pages: list[int] | None = None) -> None:
        """`pages` are already held for this table (taken or shared by the caller)."""
        self._pool = pool
        self.pages: list[int] = pages or []

    @property
    def capacity(self) -> int:
        """Token slots of all pages."""
        return len(self.pages) * self._pool.page_size

    def cost(self, start: int, end: int) -> int:
        """Pages that `write(start, end)` would take."""
        pages = max(0, -(-end // self._pool.page_size) - len(self.pages))
        return pages + 1 if self._must_copy(start) else pages

    def write(self, start: int, end: int) -> PageWrites | None:
        """Make token slots start .. end - 1 writable and count them as filled; start is the sequence's length so far.

        Takes the missing pages. A partly filled page that somebody else can read is replaced by a private one, whose
        bytes the executor copies (copy-on-write). None (and no change) when the pool has too few pages.
        """
        size = self._pool.page_size
        taken = self._pool.take(self.cost(start, end))
        if taken is None:
            return None
        copy = None
        if self._must_copy(start):
            block = start // size
            source, target = self.pages[block], taken.pop()
            self.pages[block] = target
            self._pool.release([source])
            copy = (block, source, target)
        self.pages += taken
        first, behind = start // size, -(-end // size)
        self._pool.fill_run(self.pages[first:behind], end - (behind - 1) * size)
        return PageWrites(taken, copy)

    def append(self, page: int) -> None:
        """One more page, already held for this table."""
        self.pages.append(page)

    def fork(self, num_tokens: int) -> BlockTable:
        """A table that shares the pages of this one's first `num_tokens` tokens, a partly filled last page included."""
        pages = self.pages[: -(-num_tokens // self._pool.page_size)]
        self._pool.share(pages)
        return BlockTable(self._pool, pages)

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens; pages behind them are released."""
        size = self._pool.page_size
        blocks = -(-num_tokens // size)
        self._pool.release(self.pages[blocks:])
        del self.pages[blocks:]
        if num_tokens % size and self._pool.writable(self.pages[-1]):
            self._pool.fill(self.pages[-1], num_tokens % size)

    def free(self) -> None:
        """Release every page."""
        self._pool.release(self.pages)
        self.pages = []

    def _must_copy(self, start: int) -> bool:
        size = self._pool.page_size
        return start % size != 0 and not self._pool.writable(self.pages[start // size])
