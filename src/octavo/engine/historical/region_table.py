"""The block table of a sequence that owns a region: block i is the region's page i."""

from __future__ import annotations

from octavo.engine.block_table import BlockTable, PageWrites
from octavo.engine.historical.regions import Region, RegionPool


class RegionTable(BlockTable):
    """Pages enter the table when they are first written to, so a step's delta is the same as with paging."""

    __slots__ = ("_regions", "region")

    def __init__(self, pool: RegionPool, region: Region) -> None:
        super().__init__(pool)
        self._regions = pool
        self.region = region

    @property
    def reserved(self) -> int:
        """Token slots of the region."""
        return self.region.pages * self._regions.page_size

    def cost(self, start: int, end: int) -> int:
        """Nothing is taken that is not reserved."""
        return 0

    def write(self, start: int, end: int) -> PageWrites | None:
        """Make token slots start .. end - 1 count as filled. None when the region ends before."""
        if end > self.reserved:
            return None
        size = self._regions.page_size
        appended = []
        while self.capacity < end:
            appended.append(self.next_page())
        first, behind = start // size, -(-end // size)
        self._regions.fill_run(self.pages[first:behind], end - (behind - 1) * size)
        return PageWrites(appended)

    def next_page(self) -> int:
        """The region's next page enters the table."""
        page = self.region.start + len(self.pages)
        assert len(self.pages) < self.region.pages, "a sequence writes beyond its region"
        self._regions.claim(page)
        self.append(page)
        return page

    def move(self, region: Region) -> list[tuple[int, int, int]]:
        """Continue in another region. Returns the (block, source page, target page) to copy; the old one is retired."""
        pool, old = self._regions, self.pages
        filled = pool.filled[old].tolist()
        pool.release(old)
        pool.retire(self.region)
        self.region, self.pages = region, []
        for count in filled:
            pool.fill(self.next_page(), count)
        return [(block, source, target) for block, (source, target) in enumerate(zip(old, self.pages, strict=True))]

    def free(self) -> None:
        self._regions.release(self.pages)
        self.pages = []
        if self.region.pages:
            self._regions.give_back(self.region)
            self.region = Region(0, 0)
