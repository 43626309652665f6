"""The scheduler with memory in one piece for each sequence, with static batches, or with both.

The same queue, slots, steps and executor as the paged, continuous one; what differs is here and in the files beside.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.engine.admission import Admission
from octavo.engine.budget import StepBudget
from octavo.engine.historical.region_table import RegionTable
from octavo.engine.historical.regions import RegionPool
from octavo.engine.historical.reserving import RegionBuilder, ReservingAdmission, make_allocator
from octavo.engine.historical.static_batch import FinishedRows
from octavo.engine.pages import PagePool
from octavo.engine.scheduler import Scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.sequence import Sequence
from octavo.engine.stats import EngineStats, Occupancy
from octavo.engine.step_builder import Flight, StepBuilder


def make_scheduler(config: SchedulerConfig) -> Scheduler:
    """The scheduler that the config's policies ask for."""
    return HistoricalScheduler(config) if config.historical else Scheduler(config)


class HistoricalScheduler(Scheduler):
    """Scheduler whose config has another kv_policy than "paged", or another batch_policy than "continuous".

    Contiguous memory: a sequence enters when there is a region for it (ReservingAdmission). Under "buddy" it moves to
    one of twice the size when it has filled its own; when there is none, the latest sequence is preempted.

    Static batches: when nobody runs, as many as slots and memory allow enter together; all prompts are computed before
    the first decode, and nobody enters until all have finished. With padding, rows that have finished are computed on.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._regions: RegionPool | None = None
        super().__init__(config)
        self._static = config.batch_policy == "static"
        self._padding = self._static and config.static_padding
        self._finished = FinishedRows(self._slots, self.pool, config.max_model_len)
        self._copies: list[tuple[int, int, int, int]] = []

    def _make_pool(self) -> PagePool:
        config = self.config
        if config.kv_policy == "paged":
            return super()._make_pool()
        self._regions = RegionPool(config.num_pages, config.page_size, make_allocator(config))
        return self._regions

    def _make_admission(self, max_running: int) -> Admission:
        if self._regions is None:
            return super()._make_admission(max_running)
        return ReservingAdmission(self.config, self._regions, self._slots, self._waiting, self._counters, max_running)

    # Memory

    def _make_room(self) -> bool:
        if self._regions is not None:
            self._regions.give_back_retired()
            return self._grow_regions(self._regions)
        while len(self._finished) and self._pages_wanted() > self.pool.available:
            self._vacate(self._finished.take())
        return super()._make_room()

    def _grow_regions(self, pool: RegionPool) -> bool:
        """Every decode whose region is full moves to a larger one, first in rank first.

        True if any was preempted and others run: nobody should be admitted then. A lone one that was is admitted again
        at once, to a region that it could not have beside its old one.
        """
        before = self._counters.preemptions
        full = [
            s
            for s in self._slots.running()
            if isinstance(s.table, RegionTable)
            and self._slots.known[s.slot]
            and int(self._slots.scheduled[s.slot]) >= s.table.reserved
        ]
        for sequence in full:
            while sequence.slot >= 0 and not self._move(pool, sequence):
                self._preempt(self._slots.running()[-1])
        return self._counters.preemptions > before and self._slots.count > 0

    def _move(self, pool: RegionPool, sequence: Sequence) -> bool:
        """Move to a region of twice the size; rows that have finished give way."""
        table = sequence.table
        assert isinstance(table, RegionTable)
        region = pool.reserve(2 * table.region.pages)
        while region is None and len(self._finished):
            self._vacate(self._finished.take())
            region = pool.reserve(2 * table.region.pages)
        if region is None:
            return False
        self._copies += [(sequence.slot, *copy) for copy in table.move(region)]
        self._slots.set_tail(sequence.slot, table.tail)
        return True

    def _vacate(self, sequence: Sequence) -> None:
        self._copies = [copy for copy in self._copies if copy[0] != sequence.slot]
        super()._vacate(sequence)

    # Batches

    def _fill(self, shortage: bool) -> StepBuilder:
        if not self._static:
            return super()._fill(shortage)
        builder = self._new_builder()
        prefills = self._prefills(self._slots.to_feed())
        if prefills or not self._slots.count:
            budget = StepBudget(self.config.max_num_batched_tokens, self.config.max_num_seqs)
            for sequence in prefills:
                builder.offer(budget, sequence)
            if not prefills:
                self._admission.form_batch(builder, budget)
        else:
            builder.decodes((self._slots.to_feed() == 1).nonzero()[0])
        return builder

    def _new_builder(self) -> StepBuilder:
        if self._regions is None:
            return super()._new_builder()
        builder = RegionBuilder(self._slots, self.pool)
        builder.copy(self._copies)
        self._copies = []
        return builder

    def _build(self, builder: StepBuilder) -> Flight:
        flight = super()._build(builder)
        return self._finished.join(flight) if flight.num_decodes else flight

    def _finish(self, sequence: Sequence) -> None:
        if not self._padding:
            return self._vacate(sequence)
        self._finished.park(sequence)
        if len(self._finished) == self._slots.count:
            while len(self._finished):
                self._vacate(self._finished.take())

    # What it holds

    def stats(self) -> EngineStats:
        running = self._slots.count - len(self._finished)
        return replace(super().stats(), running=running, waiting=self._num_sequences - running)

    def occupancy(self) -> Occupancy:
        occupancy, slots = super().occupancy(), self._slots
        if self._regions is None:
            return replace(occupancy, finished_slots=self._finished.held_slots)
        assert isinstance(self._admission, ReservingAdmission)
        wanted = self._admission.refused_pages
        live = np.flatnonzero(slots.known).tolist()
        tables = [slots.at(slot).table for slot in live]
        held = np.array([table.reserved for table in tables if isinstance(table, RegionTable)], np.intp)
        return replace(
            occupancy,
            held=held,
            finished_slots=self.pool.slots_held - int(held.sum()),
            memory_refused=wanted > 0
            and not self._static
            and len(self._waiting) > 0
            and not self._regions.fits(wanted),
        )
