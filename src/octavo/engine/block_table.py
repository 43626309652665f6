"""A sequence's block table: logical block i -> its page in each KV group."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.groups import NO_PAGE, first_seen
from octavo.engine.pages import PagePool


@dataclass(frozen=True, slots=True)
class PageWrites:
    """What `BlockTable.write` changed: pages appended, block by block, and (block, source page, target page) of those
    that it made private, one for each group."""

    appended: list[int]
    copies: list[tuple[int, int, int]] = field(default_factory=list)


class BlockTable:
    """The pages of one sequence, in order: those of a block stand together, one for each group of the pool.

    It holds each of them once. Where a group's window has passed a block, NO_PAGE stands in its place; so blocks keep
    their numbers.
    """

    __slots__ = ("_freed", "_pool", "pages")

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self._freed = [0] * len(pool.groups.sliding)  # for each window: its groups hold no block before this one

    @property
    def capacity(self) -> int:
        """Token slots of all blocks, those included that windows have passed."""
        return len(self.pages) // self._pool.num_groups * self._pool.page_size

    @property
    def held(self) -> list[int]:
        """The pages without the gaps."""
        return [page for page in self.pages if page != NO_PAGE] if any(self._freed) else self.pages

    @property
    def tail(self) -> list[int]:
        """The last block's pages; empty if there is none."""
        return self.pages[-self._pool.num_groups :]

    def cost(self, start: int, end: int) -> int:
        """Pages that `write(start, end)` would take."""
        groups = self._pool.num_groups
        pages = max(0, -(-end // self._pool.page_size) * groups - len(self.pages))
        return pages + groups if self._must_copy(start) else pages

    def write(self, start: int, end: int) -> PageWrites | None:
        """Make token slots start .. end - 1 writable and count them as filled; start is the sequence's length so far.

        Takes the missing pages. A partly filled block that somebody else can read is replaced by a private one, whose
        bytes the executor copies (copy-on-write). None (and no change) when the pool has too few pages.
        """
        size, groups = self._pool.page_size, self._pool.num_groups
        taken = self._pool.take(self.cost(start, end))
        if taken is None:
            return None
        copies = self._replace(start // size, taken) if self._must_copy(start) else []
        self.pages += taken
        first, behind = start // size, -(-end // size)
        self._pool.fill_run(self.pages[first * groups : behind * groups], end - (behind - 1) * size)
        return PageWrites(taken, copies)

    def append(self, page: int) -> None:
        """One more page, already held for this table: of the last block's next group, or of a new block's first."""
        self.pages.append(page)

    def share(self, pages: list[int], num_tokens: int) -> None:
        """An empty table gets the pages of its first `num_tokens` tokens, which others hold or the prefix index keeps;
        without those that nobody can see who comes after these tokens."""
        self.pages = pages
        self._leave_behind(num_tokens)
        self._pool.share(self.held)

    def fork(self, num_tokens: int) -> BlockTable:
        """A table that shares the pages of this one's first `num_tokens` tokens, a partly filled last page included.

        This table must cover them.
        """
        assert self.covers(num_tokens), "a fork needs pages that were given back"
        child = BlockTable(self._pool)
        child.share(self.pages[: self._pool.groups.blocks(num_tokens) * self._pool.num_groups], num_tokens)
        return child

    def covers(self, num_tokens: int) -> bool:
        """All that a token behind the first `num_tokens` ones can see of them is still held."""
        freed, size = self._freed, self._pool.page_size
        return all(
            freed[i] <= first_seen(window, num_tokens, size) for i, (window, _) in enumerate(self._pool.groups.sliding)
        )

    def free_behind(self, computed: int) -> None:
        """The first `computed` tokens are computed: give back the pages that none behind them can see."""
        self._pool.release(self._leave_behind(computed))

    @property
    def frees_at(self) -> int:
        """So many tokens must be computed before `free_behind` can give back a page."""
        size = self._pool.page_size
        return min(
            ((self._freed[i] + 1) * size + window - 1 for i, (window, _) in enumerate(self._pool.groups.sliding)),
            default=0,
        )

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens, which this table must cover; pages behind them are released."""
        assert self.covers(num_tokens), "what is left would have gaps"
        size, groups = self._pool.page_size, self._pool.num_groups
        kept = self._pool.groups.blocks(num_tokens) * groups
        gone = self.pages[kept:]
        del self.pages[kept:]
        self._pool.release([page for page in gone if page != NO_PAGE])
        if num_tokens % size:
            for page in self.tail:
                if self._pool.writable(page):
                    self._pool.fill(page, num_tokens % size)

    def free(self) -> None:
        """Release every page."""
        self._pool.release(self.held)
        self.pages = []
        self._freed = [0] * len(self._freed)

    def _leave_behind(self, computed: int) -> list[int]:
        """Put gaps where no token behind the first `computed` ones sees anything. Returns the pages that were there."""
        groups, size = self._pool.num_groups, self._pool.page_size
        left: list[int] = []
        for i, (window, members) in enumerate(self._pool.groups.sliding):
            first = first_seen(window, computed, size)
            for block in range(self._freed[i], first):
                for at in (block * groups + group for group in members):
                    if self.pages[at] != NO_PAGE:
                        left.append(self.pages[at])
                        self.pages[at] = NO_PAGE
            self._freed[i] = max(first, self._freed[i])
        return left

    def _must_copy(self, start: int) -> bool:
        size = self._pool.page_size
        return start % size != 0 and not self._writable(start // size)

    def _writable(self, block: int) -> bool:
        first, groups = block * self._pool.num_groups, self._pool.num_groups
        return all(self._pool.writable(page) for page in self.pages[first : first + groups])

    def _replace(self, block: int, taken: list[int]) -> list[tuple[int, int, int]]:
        """Put the last of the pages taken in the places of a block's, which are released."""
        groups = self._pool.num_groups
        at = slice(block * groups, (block + 1) * groups)
        sources, targets = self.pages[at], taken[-groups:]
        del taken[-groups:]
        self.pages[at] = targets
        self._pool.release(sources)
        return [(block, source, target) for source, target in zip(sources, targets, strict=True)]
