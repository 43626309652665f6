"""Beams as sequences: each holds a block table that it shares with the beams it comes from, up to where they differ.

The sequences of a search move in step: one that has its offer waits, neither fed nor changed, until all have theirs.
Then beams that were continued more than once are forked, and those that were not are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.engine.beams import Link, Offer
from octavo.engine.block_table import BlockTable
from octavo.engine.pages import PagePool
from octavo.engine.request import Finish, StepOutputs
from octavo.engine.sequence import Family, Sequence
from octavo.engine.sharing import PrefixSharing
from octavo.engine.slots import Index, SlotTable
from octavo.engine.step import StepResult


class BeamForks:
    """Moves searches on.

    `leave(sequence)` takes a running sequence's slot and pages, and forgets it; `wait(sequence)` queues one; `join()`
    counts a new one.

    Attributes: entered, those that got a slot since the last step was made; the next one has to announce them.
    """

    def __init__(
        self,
        slots: SlotTable,
        pool: PagePool,
        sharing: PrefixSharing | None,
        max_running: int,
        leave: Callable[[Sequence], None],
        wait: Callable[[Sequence], None],
        join: Callable[[], None],
    ) -> None:
        self.entered: list[Sequence] = []
        self._slots = slots
        self._pool = pool
        self._sharing = sharing
        self._max_running = max_running
        self._leave = leave
        self._wait = wait
        self._join = join

    def offered(self, slots: Index, result: StepResult) -> list[Family]:
        """Take in what a step offers to the beams in these slots. Returns the families whose search is over."""
        assert result.top_ids is not None
        assert result.top_logprobs is not None
        touched: dict[int, Family] = {}
        columns = (slots.tolist(), result.tokens[:, 0].tolist(), result.top_ids[:, 0], result.top_logprobs[:, 0])
        for slot, drawn, ids, logprobs in zip(*columns, strict=True):
            sequence = self._slots.at(slot)
            family = sequence.family
            assert family.beams is not None
            params = sequence.request.params
            width = max(2 * params.width, params.logprobs or 0)
            family.beams.offers[sequence.choice] = Offer(drawn, ids[:width].tolist(), logprobs[:width].tolist())
            self._slots.reach[slot] -= 1
            touched[id(family)] = family
        return [family for family in touched.values() if _complete(family) and not self._advance(family)]

    def _advance(self, family: Family) -> bool:
        """All offers are there. False if the search is over."""
        beams = family.beams
        assert beams is not None
        parents = sorted(family.sequences.values(), key=lambda s: s.choice)
        offers = [beams.offers[parent.choice] for parent in parents]
        children = beams.search.advance([beams.ends[parent.choice] for parent in parents], offers)
        beams.offers.clear()
        if not children:
            return False
        kept: dict[int, Link] = {}
        forks: list[tuple[Sequence, Link]] = []
        for index, link in children:
            # The likeliest continuation is what the executor has appended already.
            if link.token == offers[index].drawn and index not in kept:
                kept[index] = link
            else:
                forks.append((self._fork(parents[index], link), link))
        for index, parent in enumerate(parents):
            if index in kept:
                self._slots.grow(parent.slot, kept[index].token)
                beams.ends[parent.choice] = kept[index]
            else:
                del beams.ends[parent.choice]
        for index, parent in enumerate(parents):
            if index not in kept:
                self._leave(parent)
        for sequence, link in forks:
            self._enter(family, sequence, link)
        return True

    def _fork(self, parent: Sequence, link: Link) -> Sequence:
        """A sequence that is the parent's and one more token; it holds all of the parent's pages."""
        known = int(self._slots.known[parent.slot])
        beams = parent.family.beams
        assert beams is not None
        beams.last_choice += 1
        sequence = Sequence(
            request=parent.request,
            choice=beams.last_choice,
            family=parent.family,
            rank=(*parent.rank[:2], beams.last_choice),
            tokens=np.append(self._slots.tokens[parent.slot, :known], np.int32(link.token)),
            table=parent.table.fork(known),
            limit=parent.limit,
            min_tokens_at=parent.min_tokens_at,
            stop_ids=parent.stop_ids,
            salt=parent.salt,
            cached_tokens=parent.cached_tokens,
            queued_s=parent.queued_s,
        )
        if self._sharing:
            self._sharing.inherit(sequence, parent, known)
        return sequence

    def _enter(self, family: Family, sequence: Sequence, link: Link) -> None:
        beams = family.beams
        assert beams is not None
        family.sequences[sequence.choice] = sequence
        beams.ends[sequence.choice] = link
        self._join()
        if self._slots.free and self._slots.count < self._max_running:
            self._slots.enter(sequence, len(sequence.tokens) - 1)
            self.entered.append(sequence)
            return
        sequence.table.free()  # it would hold pages without being able to use them
        sequence.table = BlockTable(self._pool)
        if self._sharing:
            self._sharing.detach(sequence)
        self._wait(sequence)


def answers(family: Family) -> StepOutputs:
    """All tokens of the best hypotheses, in entries one after another."""
    assert family.beams is not None
    leader = next(iter(family.sequences.values()))
    request, found = leader.request, family.beams.search.answers
    rows: list[tuple[int, Finish, Link | None]] = []
    for choice in range(request.params.n):
        if choice >= len(found):  # masks left so few continuations
            rows.append((choice, Finish.STOP, None))
            continue
        links = found[choice].link.tokens()
        rows += [(choice, Finish.RUNNING, link) for link in links[:-1]]
        rows.append((choice, found[choice].finish, links[-1]))
    outputs = StepOutputs(
        request_ids=np.full(len(rows), request.request_id, np.int64),
        choices=np.array([choice for choice, _, _ in rows], np.int32),
        tokens=np.array([-1 if link is None else link.token for _, _, link in rows], np.int32),
        finish=np.array([finish for _, finish, _ in rows], np.uint8),
        cached_tokens=np.full(len(rows), leader.cached_tokens, np.int32),
        queued_s=np.full(len(rows), leader.queued_s, np.float32),
    )
    asked = request.params.logprobs
    return outputs if asked is None else _with_logprobs(outputs, [link for _, _, link in rows], asked)


def _with_logprobs(outputs: StepOutputs, links: list[Link | None], width: int) -> StepOutputs:
    logprobs = np.zeros(len(links), np.float32)
    top_ids, top_logprobs = np.full((len(links), width), -1, np.int32), np.zeros((len(links), width), np.float32)
    for row, link in enumerate(links):
        if link is not None:
            logprobs[row] = link.logprob
            top = min(width, len(link.offer.ids))
            top_ids[row, :top], top_logprobs[row, :top] = link.offer.ids[:top], link.offer.logprobs[:top]
    return replace(outputs, logprobs=logprobs, top_ids=top_ids, top_logprobs=top_logprobs)


def _complete(family: Family) -> bool:
    return family.beams is not None and len(family.beams.offers) == len(family.sequences)
