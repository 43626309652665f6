"""Counters of the running sequences, one row per executor slot: a step touches them with a few array operations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.engine.groups import KvGroups
from octavo.engine.request import Finish, Tokens
from octavo.engine.sequence import NO_SLOT, Sequence

Ints = npt.NDArray[np.int32]
#: What indexes arrays. numpy gathers and scatters by it several times as fast as by int32, which it has to convert.
Index = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]


class SlotTable:
    """State of up to `num_slots` running sequences, in columns indexed by slot.

    known: tokens whose value is known. reach: with those that steps under way will add. scheduled: tokens fed to steps
    so far; computed: those whose step has been applied. An idle slot has zeros, so it never has anything to feed.
    capacity: token slots of its blocks, the last of which is the tail.
    frees_at: when so many tokens are computed, windows have passed a page (BlockTable.frees_at).
    epoch: changes whenever the slot is vacated, so a late result is recognised. vacated: how often any was.
    forking: running sequences of requests with several, beams too: the only ones that may share a page not full yet.
    """

    def __init__(self, num_slots: int, max_len: int, eos_ids: frozenset[int], num_groups: int = 1) -> None:
        def column() -> Index:
            return np.zeros(num_slots, np.intp)

        self.known, self.reach, self.scheduled, self.computed = column(), column(), column(), column()
        self.capacity, self.limit, self.min_tokens_at, self.frees_at = column(), column(), column(), column()
        self.epoch = column()
        self._tails: Index = np.zeros(num_groups * num_slots, np.intp)  # [groups][slots]
        self._groups = np.arange(num_groups)[:, None] * num_slots
        self.choice: Ints = np.zeros(num_slots, np.int32)
        self.cached_tokens: Ints = np.zeros(num_slots, np.int32)
        self.request_id = np.zeros(num_slots, np.int64)
        self.queued_s = np.zeros(num_slots, np.float32)
        self.stops_at_eos: Bools = np.zeros(num_slots, np.bool_)
        self.has_stop_ids: Bools = np.zeros(num_slots, np.bool_)
        self.searches: Bools = np.zeros(num_slots, np.bool_)  # is one of several beams
        self.tokens: Ints = np.zeros((num_slots, max_len), np.int32)
        self.ones: Index = np.ones(num_slots, np.intp)  # constants, of which a step of decodes shows a part
        self.trues: Bools = np.ones(num_slots, np.bool_)
        self.ones.flags.writeable = self.trues.flags.writeable = False
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.count = self.vacated = self.forking = 0
        self._stopping = 0  # running sequences that a token may end
        self._free = list(range(num_slots - 1, -1, -1))
        self._is_eos: Bools = np.zeros(max(eos_ids, default=0) + 2, np.bool_)  # the last entry stands for larger ids
        self._is_eos[list(eos_ids)] = True

    @property
    def free(self) -> int:
        return len(self._free)

    def running(self) -> list[Sequence]:
        """The sequences that have a slot, in order of rank."""
        return sorted((s for s in self.sequences if s is not None), key=lambda s: s.rank)

    def enter(self, sequence: Sequence, computed: int) -> int:
        """Give the sequence a free slot; its first `computed` tokens are in its pages already."""
        slot = self._free.pop()
        sequence.slot = slot
        self.sequences[slot] = sequence
        self.count += 1
        known = len(sequence.tokens)
        self.tokens[slot, :known] = sequence.tokens
        self.known[slot] = self.reach[slot] = known
        self.capacity[slot] = sequence.table.capacity
        self.set_tail(slot, sequence.table.tail)
        self.frees_at[slot] = sequence.table.frees_at
        self.scheduled[slot] = self.computed[slot] = computed
        self.limit[slot] = sequence.limit
        self.min_tokens_at[slot] = sequence.min_tokens_at
        self.request_id[slot] = sequence.request.request_id
        self.choice[slot] = sequence.choice
        self.cached_tokens[slot] = sequence.cached_tokens
        params = sequence.request.params
        self.stops_at_eos[slot] = not params.ignore_eos
        self.has_stop_ids[slot] = bool(sequence.stop_ids)
        self._stopping += sequence.stoppable
        self.forking += sequence.forks
        self.searches[slot] = sequence.family.beams is not None
        return slot

    def tails(self, slots: Index) -> Index:
        """The pages of these slots' tails, intp [groups * n]: first those of all in one KV group, then in the next."""
        return self._tails[slots if len(self._groups) == 1 else (slots + self._groups).reshape(-1)]

    def set_tails(self, slots: Index, pages: list[int]) -> None:
        """The slots have new tails: these pages, in the order of `tails`."""
        self._tails[slots if len(self._groups) == 1 else (slots + self._groups).reshape(-1)] = pages

    def set_tail(self, slot: int, pages: list[int]) -> None:
        """The slot's tail is made of these pages, one for each group; none if the sequence has no block."""
        if pages:
            self._tails[slot :: len(self._tails) // len(self._groups)] = pages

    def stamp(self, slot: int, now_s: float) -> None:
        """The slot's sequence runs from now on."""
        sequence = self.at(slot)
        if sequence.queued_s < 0:
            sequence.queued_s = max(0.0, now_s - sequence.request.arrival_s)
        self.queued_s[slot] = sequence.queued_s

    def leave(self, sequence: Sequence) -> None:
        """Vacate the sequence's slot; its tokens go back into `sequence.tokens`."""
        slot = sequence.slot
        sequence.tokens = self.tokens[slot, : self.known[slot]].copy()
        sequence.slot = NO_SLOT
        self.sequences[slot] = None
        self.count -= 1
        self._stopping -= sequence.stoppable
        self.forking -= sequence.forks
        self.searches[slot] = False
        self.idle(slot)
        self.capacity[slot] = 0
        self._free.append(slot)

    def idle(self, slot: int) -> None:
        """Nothing is known or fed of the slot's sequence any more, and results that come for it are late."""
        self.known[slot] = self.reach[slot] = self.scheduled[slot] = self.computed[slot] = 0
        self.epoch[slot] += 1
        self.vacated += 1

    def at(self, slot: int) -> Sequence:
        """The sequence that has this slot."""
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} is idle"
        return sequence

    def to_feed(self) -> Index:
        """intp [num_slots]: tokens each slot could feed now; 0 for those that wait for their last token's result."""
        left: Index = self.reach - self.scheduled
        left *= self.reach < self.limit
        return left

    def pages_owed(self, groups: KvGroups) -> int:
        """Pages that the running sequences still need for the tokens they have."""
        missing = self.reach - self.capacity
        if not groups.sliding:
            blocks: int = sum(-(-tokens // groups.page_size) for tokens in missing[missing > 0].tolist())
            return groups.count * blocks
        slots = missing > 0
        ends = zip(self.capacity[slots].tolist(), self.reach[slots].tolist(), strict=True)
        return sum(groups.pages_between(capacity, reach) for capacity, reach in ends)

    def grow(self, slot: int, token: int) -> None:
        """The slot's sequence has one token more."""
        self.tokens[slot, self.known[slot]] = token
        self.known[slot] += 1
        self.reach[slot] += 1

    def append(self, slots: Index, tokens: Tokens) -> npt.NDArray[np.uint8]:
        """Each of these slots has drawn a token. Returns uint8 [n]: Finish of each."""
        at = self.known[slots]
        self.tokens[slots, at] = tokens
        length = at + 1
        self.known[slots] = length
        finish = np.zeros(len(slots), np.uint8)
        finish[length >= self.limit[slots]] = Finish.LENGTH
        if self._stopping:
            finish[self._stopped(slots, tokens) & (length >= self.min_tokens_at[slots])] = Finish.STOP
        return finish

    def _stopped(self, slots: Index, tokens: Tokens) -> Bools:
        """Which of these tokens end their sequences, if those are long enough."""
        stop: Bools = self._is_eos[np.minimum(tokens, len(self._is_eos) - 1)] & self.stops_at_eos[slots]
        for i in self.has_stop_ids[slots].nonzero()[0].tolist():
            stop[i] |= int(tokens[i]) in self.at(slots[i]).stop_ids
        return stop
