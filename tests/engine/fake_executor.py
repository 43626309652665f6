"""An executor without a model: it keeps marks where K and V would be, and checks that every step reads what it should.

Every KV slot holds (token, position, KV group). A step writes the marks of the tokens it feeds, then reads each
sequence's pages in every group, as attention would: from position 0 on, or as far as the group's window reaches back
from the first token fed; and compares them with the sequence's tokens. So wrong sharing, a missing copy, a page given
away too early and a lost preemption all show at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.engine.params import SamplingParams
from octavo.engine.step import SequenceStart, Step, StepResult

VOCAB = 1000


def draw(tokens: np.ndarray, seed: int, choice: int) -> int:
    """The fake model: the next token depends on every token so far, their order, the seed and the choice."""
    weights = np.arange(1, len(tokens) + 1, dtype=np.int64)
    return int((np.dot(tokens, weights) * 31 + seed * 7 + choice * 13 + len(tokens)) % (VOCAB - 10)) + 10


@dataclass
class FakeSequence:
    tokens: list[int]
    prompt_len: int
    pages: list[list[int]]  # of each group
    params: SamplingParams
    seed: int
    choice: int
    computed: int


class FakeExecutor:
    """`execute` is one forward pass over fake pages, which takes cost(step) seconds of virtual time."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        eos_ids: frozenset[int] = frozenset(),
        next_token: Callable[[np.ndarray, int, int], int] = draw,
        cost: Callable[[Step], float] = lambda step: 0.001,
        windows: tuple[int, ...] = (0,),
    ) -> None:
        self.marks = np.full((num_pages, page_size, 3), -1, np.int64)
        self.windows = windows
        self.page_size = page_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.slots: list[FakeSequence | None] = [None] * max_num_seqs
        self.eos_ids = eos_ids
        self.next_token = next_token
        self.cost = cost
        self.tokens_fed = 0
        self.padding_rows: int | None = None  # None: rows that feed a token again are an error; else their count

    def execute(self, step: Step) -> StepResult:
        for slot in step.released:
            assert self.slots[slot] is not None, f"slot {slot} is released but idle"
            self.slots[slot] = None
        for start in step.starts:
            self._start(start)
        groups = len(self.windows)
        appended = step.append_pages.reshape(len(step.append_slots), groups)
        for slot, block in zip(step.append_slots.tolist(), appended.tolist(), strict=True):
            for pages, page in zip(self._at(slot).pages, block, strict=True):
                pages.append(page)
        for index, (slot, block, source, target) in enumerate(step.copies.tolist()):
            pages = self._at(slot).pages[index % groups]
            assert pages[block] == source, "a copy's source is not the page in the block table"
            self.marks[target] = self.marks[source]
            pages[block] = target
        return self._forward(step)

    def _start(self, start: SequenceStart) -> None:
        assert self.slots[start.slot] is None, f"slot {start.slot} is given away twice"
        self.slots[start.slot] = FakeSequence(
            tokens=start.tokens.tolist(),
            prompt_len=start.prompt_len,
            pages=start.pages.reshape(-1, len(self.windows)).T.tolist(),
            params=start.params,
            seed=start.seed,
            choice=start.choice,
            computed=-1,
        )

    def _forward(self, step: Step) -> StepResult:
        rows = list(zip(step.slots.tolist(), step.num_tokens.tolist(), step.num_computed.tolist(), strict=True))
        assert rows, "an empty step"
        assert len({slot for slot, _, _ in rows}) == len(rows), "a slot is scheduled twice"
        assert step.num_tokens_total == sum(count for _, count, _ in rows) <= self.max_num_batched_tokens
        written: set[tuple[int, int]] = set()
        padding = {slot for slot, count, computed in rows if self._is_padding(slot, count, computed)}
        for slot, count, computed in rows:
            if slot not in padding:
                self._write(slot, count, computed, written)
        for slot, _, computed in rows:
            self._read(slot, computed)
        drawn = []
        for (slot, _, _), sample in zip(rows, step.sample.tolist(), strict=True):
            sequence = self._at(slot)
            if slot in padding:
                drawn += [0] * sample
                continue
            assert sample == (sequence.computed == len(sequence.tokens)), "`sample` does not follow from the counts"
            if sample:
                drawn.append(self._draw(sequence))
        self.tokens_fed += step.num_tokens_total
        seconds = self.cost(step)
        return StepResult(
            step_id=step.step_id,
            tokens=np.array(drawn, np.int32).reshape(-1, 1),
            counts=np.ones(len(drawn), np.int32),
            forward_s=seconds,
            total_s=seconds,
        )

    def _is_padding(self, slot: int, count: int, computed: int) -> bool:
        """The last token that was fed, fed again."""
        if self.padding_rows is None or count != 1 or self._at(slot).computed != computed + 1:
            return False
        self.padding_rows += 1
        return True

    def _write(self, slot: int, count: int, computed: int, written: set[tuple[int, int]]) -> None:
        sequence = self._at(slot)
        assert count >= 1
        assert sequence.computed in (-1, computed), "num_computed is not what was fed so far"
        assert computed + count <= len(sequence.tokens), "tokens are fed that nobody knows"
        for group, pages in enumerate(sequence.pages):
            for position in range(computed, computed + count):
                place = (pages[position // self.page_size], position % self.page_size)
                assert place not in written, f"two sequences write slot {place}"
                written.add(place)
                self.marks[place] = (sequence.tokens[position], position, group)
        sequence.computed = computed + count

    def _read(self, slot: int, start: int) -> None:
        """What tokens from `start` on see."""
        sequence = self._at(slot)
        length, size = sequence.computed, self.page_size
        for group, (pages, window) in enumerate(zip(sequence.pages, self.windows, strict=True)):
            assert len(pages) == -(-length // size), "pages beyond what is written"
            first = max(0, start + 1 - window) if window else 0
            block = first // size
            assert min(pages[block:]) >= 0, f"slot {slot} reads a page that was given back"
            marks = self.marks[pages[block:]].reshape(-1, 3)[first - block * size : length - block * size]
            assert np.array_equal(marks[:, 0], sequence.tokens[first:length]), f"slot {slot} reads tokens not its own"
            assert np.array_equal(marks[:, 1], np.arange(first, length)), f"slot {slot} reads other positions"
            assert (marks[:, 2] == group).all(), f"slot {slot} reads the page of another group"

    def _draw(self, sequence: FakeSequence) -> int:
        token = self.next_token(np.array(sequence.tokens, np.int64), sequence.seed, sequence.choice)
        if token in self.eos_ids and len(sequence.tokens) - sequence.prompt_len < sequence.params.min_tokens:
            token = next(t for t in range(token + 1, VOCAB) if t not in self.eos_ids)
        sequence.tokens.append(token)
        return token

    def _at(self, slot: int) -> FakeSequence:
        sequence = self.slots[slot]
        assert sequence is not None, f"slot {slot} is idle"
        return sequence
