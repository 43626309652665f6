"""Requests in, steps out: which sequences the next forward pass carries, and what its result means for them."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import replace

import numpy as np

from octavo.engine.admission import Admission
from octavo.engine.beam_forks import BeamForks, answers
from octavo.engine.budget import StepBudget
from octavo.engine.cost import CostModel
from octavo.engine.intake import make_family
from octavo.engine.pages import MemoryReport, PagePool
from octavo.engine.policies import make_queue
from octavo.engine.prefix import PrefixIndex, keyed_hash
from octavo.engine.request import Finish, PromptLogprobs, Request, StepOutputs
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.sequence import NO_SLOT, Family, Sequence
from octavo.engine.sharing import PrefixSharing
from octavo.engine.slots import Index, SlotTable
from octavo.engine.stats import Counters, EngineStats, Occupancy
from octavo.engine.step import PromptScores, Step, StepResult
from octavo.engine.step_builder import Flight, StepBuilder

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler:
    """Decides step after step. A deterministic function of what it is told: it has no clock and no random numbers.

    Every sequence that can decode does so in every step. What is left of the step goes to chunks of running prefills,
    then to waiting sequences. `schedule` may be called again before the last step's result is applied.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = self._make_pool()
        self._slots = SlotTable(config.max_num_seqs, config.max_model_len, config.eos_ids, self.pool.num_groups)
        self._waiting = make_queue(config.policy)
        self._sharing: PrefixSharing | None = None
        if config.prefix_caching:
            index = PrefixIndex(self.pool, keyed_hash(config.prefix_key or secrets.token_bytes(32)))
            self._sharing = PrefixSharing(self.pool, index, self._waiting.push)
        # One token of every step is left for a prefill, so that decodes can't starve it.
        max_running = min(config.max_num_seqs, max(1, config.max_num_batched_tokens - 1))
        self._counters = Counters()
        self._admission = self._make_admission(max_running)
        self._beams = BeamForks(
            self._slots, self.pool, self._sharing, max_running, self._forget, self._waiting.push, self._join
        )
        self._cost = CostModel(config.target_itl_s)
        self._families: dict[int, Family] = {}
        self._released: list[int] = []
        self._flights: deque[Flight] = deque()
        self._step_id = 0
        self._num_added = 0
        self._num_sequences = 0

    def _make_pool(self) -> PagePool:
        config = self.config
        return PagePool(config.num_pages, config.page_size, config.windows, config.max_num_batched_tokens)

    def _make_admission(self, max_running: int) -> Admission:
        return Admission(self.pool, self._slots, self._waiting, self._sharing, self._counters, max_running)

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises ParamError when its prompt (and output so far) leaves no room for a token."""
        if request.request_id in self._families:
            raise ValueError(f"request id {request.request_id} is in use")
        family = make_family(request, self.config, self.pool, self._num_added)
        self._families[request.request_id] = family
        self._num_added += len(family.sequences)
        self._num_sequences += len(family.sequences)
        leader, *family.followers = family.sequences.values()
        self._waiting.push(leader)

    def abort(self, request_id: int, choice: int = -1) -> int:
        """End a request, or one choice of it, without further output. Returns how many sequences that ended.

        One choice alone ends because its text is complete (a stop string): that isn't counted as aborted.
        """
        family = self._families.get(request_id)
        if family is not None and family.beams is not None and choice != -1:
            return 0  # its sequences are no choices
        ended = [s for s in family.sequences.values() if choice in (-1, s.choice)] if family else []
        for sequence in ended:
            self._end(sequence)
        if choice == -1:
            self._counters.aborted += len(ended)
        return len(ended)

    @property
    def has_work(self) -> bool:
        """Some sequence has not ended yet."""
        return bool(self._families)

    # The next step

    def schedule(self, now_s: float) -> Step | None:
        """The next step, or None when there is nothing to run before a step under way has ended."""
        self.pool.now = self._step_id
        if self._sharing:
            self._sharing.wake_overdue(self._step_id)
        if self._flights and self.pool.groups.sliding and self._short_of_pages():
            return None  # what is under way gives pages back; to preempt for want of those could go on for ever
        shortage = self._make_room()
        self._admission.adapt(shortage)
        builder = self._fill(shortage)
        if builder.empty and not self._flights and self._slots.searches.any():
            builder = self._press_on()
        if builder.empty:
            return None
        flight = self._build(builder)
        self._beams.entered.clear()
        for start in flight.step.starts:
            self._slots.stamp(start.slot, now_s)
        self._flights.append(flight)
        self._released.clear()
        self._step_id += 1
        return flight.step

    def _fill(self, shortage: bool) -> StepBuilder:
        """Who goes on in this step, and who enters it."""
        to_feed = self._slots.to_feed()
        builder = self._new_builder()
        for sequence in self._beams.entered:
            if sequence.slot != NO_SLOT:  # else preempted meanwhile
                builder.announce(sequence)
        decodes = (to_feed == 1).nonzero()[0]
        builder.decodes(decodes)
        prefills = self._prefills(to_feed) if len(decodes) < self._slots.count else []
        admit = not shortage and self._admission.possible
        if prefills or admit:
            self._prefill(builder, prefills, admit)
        return builder

    def _new_builder(self) -> StepBuilder:
        return StepBuilder(self._slots, self.pool)

    def _build(self, builder: StepBuilder) -> Flight:
        return builder.build(self._step_id, tuple(self._released))

    def _prefill(self, builder: StepBuilder, prefills: list[Sequence], admit: bool) -> None:
        """Fill the step beside its decodes: running prefills in order of rank, then waiting sequences if `admit`.

        When the first one will not end in this step, half of the room is offered to those behind it that would: a
        short prompt doesn't wait for a long one.
        """
        decodes = builder.decode_shape
        if decodes.sequences and self._cost.probe_due:
            return
        prompts = len(prefills) + len(self._waiting)
        room = self._cost.room(decodes, prompts) if decodes.sequences else None
        budget = StepBudget(
            self.config.max_num_batched_tokens - decodes.tokens, self.config.max_num_seqs - decodes.sequences, room
        )
        if prefills and not builder.would_end(budget, prefills[0]):
            lane = budget.half()
            prefills[1:] = [s for s in prefills[1:] if not builder.offer(lane, s, whole=True)]
            if admit:
                self._admission.fill(builder, lane, self._step_id, whole=True)
            budget.absorb(lane)
        for sequence in prefills:
            builder.offer(budget, sequence)
        if admit:
            self._admission.fill(builder, budget, self._step_id, whole=False)

    def _prefills(self, to_feed: Index) -> list[Sequence]:
        found = [self._slots.at(slot) for slot in (to_feed > 1).nonzero()[0].tolist()]
        return sorted(found, key=lambda s: s.rank) if len(found) > 1 else found

    def _make_room(self) -> bool:
        """Preempt, last in rank first, until every decode and the first of the prefills can have its next page.

        True if that was necessary; then nobody should be admitted to the step.
        """
        before = self._counters.preemptions
        while self._short_of_pages():
            self._preempt(self._slots.running()[-1])
        return self._counters.preemptions > before

    def _short_of_pages(self) -> bool:
        pool = self.pool
        return pool.available < self._slots.count * pool.num_groups and self._pages_wanted() > pool.available

    def _pages_wanted(self) -> int:
        to_feed = self._slots.to_feed()
        going_on = [self._slots.at(slot) for slot in np.flatnonzero(to_feed == 1).tolist()]
        going_on += self._prefills(to_feed)[:1]
        starts = ((s, int(self._slots.scheduled[s.slot])) for s in going_on)
        return sum(s.table.cost(start, start + 1) for s, start in starts)

    def _preempt(self, sequence: Sequence) -> None:
        """Take the sequence's slot and pages; it waits, and will be computed again from its tokens."""
        self._vacate(sequence)
        if sequence.family.beams is not None:
            sequence.family.beams.offers.pop(sequence.choice, None)  # it will be made again
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self._waiting.push(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        if self._sharing:
            self._sharing.detach(sequence)
        self._released.append(sequence.slot)
        self._slots.leave(sequence)
        sequence.table.free()

    def _forget(self, sequence: Sequence) -> None:
        """A running beam that is not continued."""
        self._vacate(sequence)
        del sequence.family.sequences[sequence.choice]
        self._num_sequences -= 1

    def _join(self) -> None:
        """A request has gained a sequence."""
        self._num_sequences += 1

    def _press_on(self) -> StepBuilder:
        """Nobody can go on, since beams that have their offers hold the memory that others of their kind need."""
        self._admission.pressing = True
        builder = self._fill(shortage=False)
        while builder.empty and self._unblock():
            builder = self._fill(shortage=False)
        self._admission.pressing = False
        return builder

    def _unblock(self) -> bool:
        """The last search gives way to the others. One that is alone, and too large for the pool, goes on with one beam
        less. False if no beam has memory to give."""
        held = [s for s in self._slots.running() if s.family.beams is not None]
        if not held:
            return False
        last, beams = held[-1].family, held[-1].family.beams
        assert beams is not None
        if any(sequence.family is not last for sequence in held):
            for sequence in held:
                if sequence.family is last:
                    self._preempt(sequence)
            return True
        worst = min(held, key=lambda s: end.total if (end := beams.ends[s.choice]) is not None else 0.0)
        beams.offers.pop(worst.choice, None)
        del beams.ends[worst.choice]
        self._forget(worst)
        beams.search.beams = len(last.sequences)
        return True

    def _finish(self, sequence: Sequence) -> None:
        """A running sequence has ended."""
        self._vacate(sequence)

    def _end(self, sequence: Sequence) -> None:
        """The sequence leaves wherever it is; a follower takes the lead if it was the leader."""
        family = sequence.family
        if sequence.slot != NO_SLOT:
            self._finish(sequence)
        elif sequence.queued:
            self._waiting.remove(sequence)
        elif sequence.held and self._sharing:
            self._sharing.drop(sequence)
        else:
            family.followers.remove(sequence)
        del family.sequences[sequence.choice]
        self._num_sequences -= 1
        if family.followers and len(family.followers) == len(family.sequences):
            self._waiting.push(family.followers.pop(0))
        if not family.sequences:
            del self._families[sequence.request.request_id]

    # Its result

    def apply(self, step: Step, result: StepResult, now_s: float) -> StepOutputs:
        """Take in a step's result, in the order of scheduling. Sequences that have gone meanwhile are passed over.

        Raises ValueError when this is not the oldest step under way, or the result has not a token for each sample.
        """
        if not self._flights or self._flights[0].step is not step or result.step_id != step.step_id:
            raise ValueError(f"step {step.step_id} with result {result.step_id} is not the oldest step under way")
        flight, slots = self._flights[0], self._slots
        if len(result.tokens) != len(flight.sampled):
            raise ValueError(f"a result of {len(result.tokens)} tokens for {len(flight.sampled)} samples")
        self._flights.popleft()
        self._observe(flight, result)
        gone = step.slots[:0]
        if result.refused or slots.vacated != flight.vacated:
            alive = slots.epoch[step.slots] == flight.epochs
            refused = alive & np.isin(step.slots, list(result.refused))
            gone, alive = step.slots[refused], alive & ~refused
            if not alive.all():
                flight, result = flight.only(alive), result.only(alive[step.sample])
        self._computed(flight)
        prompt = None if result.prompt is None else self._prompt_logprobs(flight, result.prompt)
        drawn, over = flight.sampled, list[Family]()
        if slots.forking and (searches := slots.searches[drawn]).any():
            over = self._beams.offered(drawn[searches], result.only(searches))
            drawn, result = drawn[~searches], result.only(~searches)
        outputs = self._outputs(drawn, result)
        if prompt is not None:
            outputs = replace(outputs, prompt=prompt)
        for at in outputs.finish.nonzero()[0].tolist():
            self._end(slots.at(int(drawn[at])))
        self._counters.generated_tokens += len(flight.sampled)
        for family in over:
            outputs = outputs.followed_by(answers(family))
            self._end_all(family)
        if len(gone):
            outputs = outputs.followed_by(self._give_up(gone, result.refused[int(gone[0])]))
        self._counters.sample_waste(self.pool.slots_filled, self.pool.slots_held)
        return outputs

    def fail(self, step: Step, message: str = "") -> StepOutputs:
        """The step brought nothing but an error: end all it carried with Finish.ERROR; their pages are given back.

        message: one sentence on why, which the outputs carry.
        """
        if not self._flights or self._flights[0].step is not step:
            raise ValueError(f"step {step.step_id} is not the oldest step under way")
        flight = self._flights.popleft()
        return self._give_up(step.slots[self._slots.epoch[step.slots] == flight.epochs], message)

    def _give_up(self, slots: Index, message: str) -> StepOutputs:
        """End the sequences in these slots, and all beams beside them, with Finish.ERROR and one sentence on why."""
        sequences = [self._slots.at(slot) for slot in slots.tolist()]
        rows: list[tuple[Sequence, int]] = []  # and the choices that end
        for sequence in sequences:
            family = sequence.family
            if family.beams is None:
                rows.append((sequence, sequence.choice))
                self._end(sequence)
            elif family.sequences:
                rows += [(sequence, choice) for choice in range(sequence.request.params.n)]
                self._end_all(family)
        return StepOutputs(
            request_ids=np.array([sequence.request.request_id for sequence, _ in rows], np.int64),
            choices=np.array([choice for _, choice in rows], np.int32),
            tokens=np.full(len(rows), -1, np.int32),
            finish=np.full(len(rows), Finish.ERROR, np.uint8),
            cached_tokens=np.array([sequence.cached_tokens for sequence, _ in rows], np.int32),
            queued_s=np.array([sequence.queued_s for sequence, _ in rows], np.float32),
            message=message,
        )

    def _end_all(self, family: Family) -> None:
        for sequence in list(family.sequences.values()):
            self._end(sequence)

    def _observe(self, flight: Flight, result: StepResult) -> None:
        """How long the step took."""
        shape = flight.shape
        self._cost.observe(shape, shape.tokens - flight.num_decodes, result.total_s)
        self._counters.count_step(shape.tokens, result.forward_s, result.total_s)

    def _computed(self, flight: Flight) -> None:
        """K and V of the step's tokens are in their pages now: register full pages, let followers go."""
        step, after, slots, size = flight.step, flight.after, self._slots, self.pool.page_size
        slots.computed[step.slots] = after
        if self._waiting.counts_service:
            work = (step.num_tokens + step.sample).tolist()
            self._waiting.served(zip(map(slots.at, step.slots.tolist()), work, strict=True))
        if self._sharing:
            filled = after % size < step.num_tokens  # a page has become full
            for slot, count in zip(step.slots[filled].tolist(), after[filled].tolist(), strict=True):
                self._sharing.computed(slots.at(slot), slots.tokens[slot], count)
        if self.pool.groups.sliding:
            self._free_behind(step.slots, after)
        for slot in step.slots[flight.num_decodes :].tolist():
            sequence = slots.at(slot)
            if sequence.scores_prompt:
                family = sequence.family
                family.scored = max(family.scored, min(int(slots.computed[slot]), sequence.prompt_len - 1))
            self._admission.release_followers(sequence)

    def _free_behind(self, slots: Index, computed: Index) -> None:
        """Give back what windows have passed, now that the prefix index knows it. Later steps, even one that is under
        way, begin behind these tokens."""
        passed = computed >= self._slots.frees_at[slots]
        for slot, count in zip(slots[passed].tolist(), computed[passed].tolist(), strict=True):
            table = self._slots.at(slot).table
            table.free_behind(count)
            self._slots.frees_at[slot] = table.frees_at

    def _outputs(self, slots: Index, result: StepResult) -> StepOutputs:
        """Append the drawn tokens to the sequences in these slots."""
        table, tokens = self._slots, result.tokens[:, 0]
        return StepOutputs(
            request_ids=table.request_id[slots],
            choices=table.choice[slots],
            tokens=tokens,
            finish=table.append(slots, tokens),
            cached_tokens=table.cached_tokens[slots],
            queued_s=table.queued_s[slots],
            logprobs=None if result.logprobs is None else result.logprobs[:, 0],
            top_ids=None if result.top_ids is None else result.top_ids[:, 0],
            top_logprobs=None if result.top_logprobs is None else result.top_logprobs[:, 0],
        )

    def _prompt_logprobs(self, flight: Flight, found: PromptScores) -> PromptLogprobs | None:
        """Those of sequences that are still there."""
        alive = np.isin(found.slots, flight.step.slots)
        if not alive.any():
            return None
        return PromptLogprobs(
            request_ids=self._slots.request_id[found.slots[alive]],
            positions=found.positions[alive],
            logprobs=found.logprobs[alive],
            top_ids=found.top_ids[alive],
            top_logprobs=found.top_logprobs[alive],
        )

    # What it holds

    def stats(self) -> EngineStats:
        """Gauges of this moment and totals since start. O(1)."""
        counters, pool = self._counters, self.pool
        return EngineStats(
            running=self._slots.count,
            waiting=self._num_sequences - self._slots.count,
            pages_total=pool.num_pages,
            pages_held=pool.pages_held,
            pages_cached=pool.pages_cached,
            slots_held=pool.slots_held,
            slots_filled=pool.slots_filled,
            waste_ratio_mean=counters.waste_sum / max(1, counters.waste_samples),
            steps=counters.steps,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            aborted=counters.aborted,
            forward_s=counters.forward_s,
            executor_s=counters.executor_s,
        )

    def owners(self, slots: Index) -> list[tuple[int, int]]:
        """(request id, choice) of the sequences in these slots; (-1, 0) where one has gone. O(n); for replays."""
        table = self._slots
        ids = np.where(table.known[slots] > 0, table.request_id[slots], -1)
        return list(zip(ids.tolist(), np.where(ids >= 0, table.choice[slots], 0).tolist(), strict=True))

    def occupancy(self) -> Occupancy:
        """Who has how many token slots at this moment. O(pages); for benchmarks."""
        slots, groups, size = self._slots.known.nonzero()[0], self.pool.num_groups, self.pool.page_size
        tables = [self._slots.at(slot).table for slot in slots.tolist()]
        gaps = np.array([(len(table.pages) - len(table.held)) * size for table in tables], np.intp)
        filled, held = self._slots.computed[slots] * groups - gaps, self._slots.capacity[slots] * groups - gaps
        return Occupancy(self._slots.request_id[slots], filled, held)

    def memory_report(self) -> MemoryReport:
        """Every page at this moment. O(pages); for a dashboard, not for every step."""
        return self.pool.report(self._sharing.index.depth.copy() if self._sharing else None)

    def check(self) -> None:
        """Prove the invariants of pool and index. Raises AssertionError. O(pages); for tests."""
        self.pool.check(s.table.held for s in self._slots.running())
        if self._sharing:
            self._sharing.index.check()
