"""Puts one step together: takes the pages that it will write, and collects what it changes and computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.engine.block_table import PageWrites
from octavo.engine.budget import StepBudget
from octavo.engine.cost import StepShape
from octavo.engine.pages import PagePool
from octavo.engine.sequence import Sequence
from octavo.engine.slots import Bools, Index, SlotTable
from octavo.engine.step import SequenceStart, Step

_NO_SLOTS = np.empty(0, np.intp)
_NO_INTS = np.empty(0, np.int32)
_NO_COPIES = np.empty((0, 4), np.int32)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step under way: what `apply` needs to know when its result comes.

    The first `num_decodes` rows are decodes, the others chunks. epochs: intp [S], of the rows' slots when scheduled;
    vacated: how many slots had been vacated by then (since nobody has gone as long as it stays).
    sampled: intp [R]; the slots for which a token is drawn. after: intp [S]; tokens computed when it has been applied.
    """

    step: Step
    epochs: Index
    vacated: int
    num_decodes: int
    shape: StepShape
    sampled: Index
    after: Index

    def only(self, rows: Bools) -> Flight:
        """The flight without the rows, bool [S], that are False; its shape stays what was computed."""
        step = self.step
        kept = replace(
            step,
            slots=step.slots[rows],
            num_tokens=step.num_tokens[rows],
            num_computed=step.num_computed[rows],
            sample=step.sample[rows],
        )
        decodes = int(np.count_nonzero(rows[: self.num_decodes]))
        return replace(
            self,
            step=kept,
            epochs=self.epochs[rows],
            num_decodes=decodes,
            sampled=step.slots[rows & step.sample],
            after=self.after[rows],
        )


class StepBuilder:
    """Decodes come first, then chunks. A sequence's counters in `slots` are brought up to date by `build`."""

    def __init__(self, slots: SlotTable, pool: PagePool) -> None:
        self._slots = slots
        self._pool = pool
        self._starts: list[SequenceStart] = []
        self._append_slots: list[int] = []
        self._append_pages: list[int] = []
        self._copies: list[tuple[int, int, int, int]] = []
        self._decodes = self._decodes_at = _NO_SLOTS
        self._chunks: list[tuple[int, int, int, bool]] = []
        self.decode_shape = StepShape(0, 0, 0, 0)

    @property
    def empty(self) -> bool:
        return not self._chunks and not len(self._decodes)

    def decodes(self, decodes: Index) -> None:
        """One token of each of these slots, from which the next one is drawn; there are enough pages."""
        if not len(decodes):
            return
        slots, pool = self._slots, self._pool
        at = slots.scheduled[decodes]
        growing = decodes[at == slots.capacity[decodes]]
        if len(growing):
            self._grow(growing)
        tails = slots.tails(decodes)
        if slots.forking:
            shared = pool.shared(tails).reshape(pool.num_groups, -1).any(axis=0)
            for slot in decodes[shared].tolist():
                self._write(slot, int(slots.scheduled[slot]), 1)
            tails = slots.tails(decodes[~shared])
        pool.fill_next(tails)
        self._decodes, self._decodes_at = decodes, at
        context = int(at.sum()) + len(at)
        self.decode_shape = StepShape(len(at), len(at), context, context)

    def start(self, sequence: Sequence, computed: int) -> None:
        """The sequence takes a slot; its table holds the pages of its first `computed` tokens."""
        self._slots.enter(sequence, computed)
        self.announce(sequence)

    def announce(self, sequence: Sequence) -> None:
        """The sequence has taken a slot since the last step."""
        self._starts.append(
            SequenceStart(
                slot=sequence.slot,
                tokens=sequence.tokens,
                prompt_len=sequence.prompt_len,
                pages=np.array(sequence.table.pages, np.int32),
                params=sequence.request.params,
                seed=sequence.request.seed,
                choice=sequence.choice,
                score_from=sequence.family.scored if sequence.scores_prompt else -1,
            )
        )

    def offer(self, budget: StepBudget, sequence: Sequence, whole: bool = False) -> bool:
        """Offer a running prefill to the budget and feed what it allows. whole: all that is left, or nothing."""
        slot, start, wanted, allowed = sequence.slot, *self._chunk(budget, sequence)
        if allowed < (wanted if whole else 1):
            return False
        self._write(slot, start, allowed)
        self._chunks.append((slot, allowed, start, start + allowed == int(self._slots.reach[slot])))
        budget.spend_chunk(allowed, start)
        return True

    def would_end(self, budget: StepBudget, sequence: Sequence) -> bool:
        """The budget allows all that is left of a running prefill."""
        _, wanted, allowed = self._chunk(budget, sequence)
        return allowed == wanted

    def _chunk(self, budget: StepBudget, sequence: Sequence) -> tuple[int, int, int]:
        """(position, tokens left to feed, tokens allowed) of a running prefill.

        A leader stops before the last token of its prompt, so that its followers can fork there.
        """
        start, end = int(self._slots.scheduled[sequence.slot]), int(self._slots.reach[sequence.slot])
        if sequence.family.followers and start < sequence.prompt_len - 1:
            end = sequence.prompt_len - 1
        table = sequence.table
        pages = self._pool.available - table.cost(start, start)
        blocks = pages // self._pool.num_groups
        slots = table.capacity - start + blocks * self._pool.page_size if pages >= 0 else 0
        return start, end - start, budget.chunk(end - start, start, slots)

    def build(self, step_id: int, released: tuple[int, ...]) -> Flight:
        slots, at, table = self._decodes, self._decodes_at, self._slots
        num_decodes = len(slots)
        num_tokens, sample = table.ones[:num_decodes], table.trues[:num_decodes]
        shape, sampled = self.decode_shape, slots
        if self._chunks:
            rows = np.empty((4, num_decodes + len(self._chunks)), np.intp)
            rows[:, num_decodes:] = np.array(self._chunks, np.intp).T
            rows[0, :num_decodes], rows[1, :num_decodes] = slots, num_tokens
            rows[2, :num_decodes], rows[3, :num_decodes] = at, sample
            slots, num_tokens, at = rows[0], rows[1], rows[2]
            sample = rows[3] != 0
            shape, sampled = self._shape(), slots[sample]
        step = Step(
            step_id=step_id,
            released=released,
            starts=tuple(self._starts),
            append_slots=np.array(self._append_slots, np.int32) if self._append_slots else _NO_INTS,
            append_pages=np.array(self._append_pages, np.int32) if self._append_slots else _NO_INTS,
            copies=np.array(self._copies, np.int32) if self._copies else _NO_COPIES,
            slots=slots,
            num_tokens=num_tokens,
            num_computed=at,
            sample=sample,
            num_tokens_total=shape.tokens,
        )
        after = at + num_tokens
        table.scheduled[slots] = after
        table.reach[sampled] += 1
        return Flight(step, table.epoch[slots], table.vacated, num_decodes, shape, sampled, after)

    def _shape(self) -> StepShape:
        tokens, sequences, context, pairs = self.decode_shape
        for _, count, start, _ in self._chunks:
            tokens += count
            context += start + count
            pairs += count * start + count * (count + 1) // 2
        return StepShape(tokens, sequences + len(self._chunks), context, pairs)

    def _grow(self, slots: Index) -> None:
        groups, count = self._pool.num_groups, len(slots)
        pages = self._pool.take(groups * count)
        assert pages is not None, "a step must have made room before it is filled"
        growing = slots.tolist()
        for first in range(0, groups * count, count):
            for slot, page in zip(growing, pages[first : first + count], strict=True):
                self._slots.at(slot).table.append(page)
        self._append_slots += growing
        self._append_pages += pages if groups == 1 else np.array(pages).reshape(groups, count).T.ravel().tolist()
        self._slots.capacity[slots] += self._pool.page_size
        self._slots.set_tails(slots, pages)

    def _write(self, slot: int, start: int, count: int) -> None:
        table = self._slots.at(slot).table
        writes = table.write(start, start + count)
        assert writes is not None, "a step must have made room before it is filled"
        self._record(slot, writes)
        self._slots.capacity[slot] = table.capacity
        self._slots.set_tail(slot, table.tail)

    def _record(self, slot: int, writes: PageWrites) -> None:
        self._append_slots += [slot] * (len(writes.appended) // self._pool.num_groups)
        self._append_pages += writes.appended
        self._copies += [(slot, *copy) for copy in writes.copies]
