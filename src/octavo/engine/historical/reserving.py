"""Admission by reservation: a sequence enters when there is a region for it, and keeps that until it ends."""

from __future__ import annotations

import math

from octavo.engine.admission import Admission
from octavo.engine.historical.region_table import RegionTable
from octavo.engine.historical.regions import Allocator, Buddy, FirstFit, RegionPool
from octavo.engine.policies import WaitingQueue
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.sequence import Sequence
from octavo.engine.slots import Index, SlotTable
from octavo.engine.stats import Counters
from octavo.engine.step_builder import StepBuilder


def make_allocator(config: SchedulerConfig) -> Allocator:
    return Buddy(config.num_pages) if config.kv_policy == "buddy" else FirstFit(config.num_pages)


def tokens_to_reserve(config: SchedulerConfig, sequence: Sequence) -> int:
    """contiguous: the longest that any sequence may get. contiguous-limit: the longest that this one may get (prompt
    and max_tokens). buddy: what it has; the allocator rounds up to a power of two of pages, and it moves when it grows.
    """
    if config.kv_policy == "contiguous":
        return config.max_model_len
    return sequence.limit if config.kv_policy == "contiguous-limit" else len(sequence.tokens)


class ReservingAdmission(Admission):
    """Takes sequences in that get a region. No prefix is shared.

    refused_pages: what the latest one that was looked at would have needed and did not find; 0: it found a region.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: RegionPool,
        slots: SlotTable,
        waiting: WaitingQueue,
        counters: Counters,
        max_running: int,
    ) -> None:
        super().__init__(pool, slots, waiting, None, counters, max_running)
        self._config = config
        self._regions = pool
        self.refused_pages = 0

    def _enter(self, builder: StepBuilder, sequence: Sequence, known_blocks: int) -> bool:
        pages = -(-tokens_to_reserve(self._config, sequence) // self._regions.page_size)
        region = self._regions.reserve(pages)
        self.refused_pages = 0 if region is not None else pages
        if region is None:
            return False
        sequence.table = RegionTable(self._regions, region)
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = 0
            self._count(sequence)
        builder.start(sequence, 0)
        self.release_followers(sequence)
        return True

    def _spare_pages(self, reserve_tokens: float) -> float:
        """Regions are all there is to ask for."""
        return math.inf


class RegionBuilder(StepBuilder):
    """A decode's next page is the next one of its region."""

    def _grow(self, slots: Index) -> None:
        for slot in slots.tolist():
            table = self._slots.at(slot).table
            assert isinstance(table, RegionTable)
            page = table.next_page()
            self._append_slots.append(slot)
            self._append_pages.append(page)
            self._slots.set_tail(slot, [page])
        self._slots.capacity[slots] += self._pool.page_size

    def copy(self, copies: list[tuple[int, int, int, int]]) -> None:
        """(slot, block, source, target): the step copies these pages before it computes."""
        self._copies += copies
