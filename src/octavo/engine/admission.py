"""Who of the waiting enters a step, and with which pages."""

from __future__ import annotations

from octavo.engine.budget import StepBudget
from octavo.engine.pages import PagePool
from octavo.engine.policies import WaitingQueue
from octavo.engine.sequence import NO_SLOT, Sequence
from octavo.engine.sharing import PrefixSharing
from octavo.engine.slots import SlotTable
from octavo.engine.stats import Counters
from octavo.engine.step_builder import StepBuilder

#: A step looks at so many waiting sequences beyond those that it admits.
LOOKAHEAD = 8
#: A waiting sequence for which there are too few pages is passed by so many later ones, then it blocks the way.
MAX_PASSED = 16
#: Token slots kept free for the growth of each running sequence at most; what a step without shortage leaves of them.
#: Measured on mixes of lengths in a pool that was much too small: less recomputation, about the same parallelism.
RESERVE_TOKENS = 128.0
RESERVE_DECAY = 0.995


class Admission:
    """Takes sequences from the waiting queue into slots.

    One enters when the pool has pages for all its tokens, for all tokens of those that run, and a reserve for each of
    these to grow; or when nothing runs. The reserve is a block. Every shortage doubles it, up to RESERVE_TOKENS, and it
    shrinks while there is none. For a sequence it is doubled again each time that this one has been preempted, so that
    it isn't preempted over and over. (A block is a page of every KV group: where a window has passed, a sequence gives
    back as many as it takes, so there this is a little more than it needs.) pressing: nobody can go on unless somebody
    enters, so nothing is kept in reserve.
    """

    def __init__(
        self,
        pool: PagePool,
        slots: SlotTable,
        waiting: WaitingQueue,
        sharing: PrefixSharing | None,
        counters: Counters,
        max_running: int,
    ) -> None:
        self._pool = pool
        self._slots = slots
        self._waiting = waiting
        self._sharing = sharing
        self._counters = counters
        self._reserve_tokens = float(pool.page_size)
        self._max_running = max_running
        self.pressing = False

    @property
    def possible(self) -> bool:
        """Somebody waits and there is a slot."""
        return len(self._waiting) > 0 and self._slots.count < self._max_running

    def adapt(self, shortage: bool) -> None:
        """Once for each step: whether pages were short, so that somebody was preempted."""
        factor = 2.0 if shortage else RESERVE_DECAY
        size = float(self._pool.page_size)
        self._reserve_tokens = max(size, min(RESERVE_TOKENS, self._reserve_tokens * factor))

    def fill(self, builder: StepBuilder, budget: StepBudget, step_id: int, whole: bool) -> None:
        """Admit sequences in the queue's order, with their first chunks, while the budget allows.

        whole: pass over, without prejudice, those whose tokens don't all fit into the budget.
        """
        if self._slots.count and self._spare_pages(self._reserve_tokens) < 1:
            return
        set_aside: list[Sequence] = []
        no_pages: list[Sequence] = []
        looked_at = 0
        while self.possible and budget.open and looked_at < LOOKAHEAD:
            sequence = self._waiting.pop()
            if sequence is None:
                break
            known = self._sharing.known_blocks(sequence) if self._sharing else 0
            start = known * self._pool.page_size
            wanted = len(sequence.tokens) - start
            allowed = budget.chunk(wanted, start, wanted)
            if self._sharing and self._sharing.hold(sequence, known, step_id):
                looked_at += 1
            elif whole and allowed < wanted:
                looked_at += 1
                set_aside.append(sequence)
            elif allowed < 1:  # who enters without a token to compute only holds a slot
                set_aside.append(sequence)
                break
            elif self._enter(builder, sequence, known):
                builder.offer(budget, sequence)
                for passed in no_pages:
                    passed.passed += 1
            else:
                looked_at += 1
                no_pages.append(sequence)
                if sequence.passed >= MAX_PASSED:
                    break
        for sequence in set_aside + no_pages:
            self._waiting.put_back(sequence)

    def form_batch(self, builder: StepBuilder, budget: StepBudget) -> None:
        """Static batches (engine/historical): admit as many as slots and memory allow, now or never.

        The budget limits only whose prompt is computed in this step already.
        """
        while self.possible:
            sequence = self._waiting.pop()
            if sequence is None:
                break
            if not self._enter(builder, sequence, 0):
                self._waiting.put_back(sequence)
                break
            builder.offer(budget, sequence)

    def release_followers(self, leader: Sequence) -> None:
        """The leader is running; once its prompt is computed up to the last token, the others may fork it."""
        followers = leader.family.followers
        if followers and self._slots.computed[leader.slot] >= leader.prompt_len - 1:
            for follower in followers:
                self._waiting.push(follower)
            followers.clear()

    def _enter(self, builder: StepBuilder, sequence: Sequence, known_blocks: int) -> bool:
        """Give the sequence a slot and the pages that can be shared with it; False if too few pages are left."""
        size = self._pool.page_size
        source = self._fork_source(sequence)
        if source is not None and sequence.prompt_len - 1 > known_blocks * size:
            computed = sequence.prompt_len - 1
            if not self._fits(sequence, self._missing(sequence, computed) + self._pool.num_groups):
                return False
            sequence.table = source.table.fork(computed)
            cached = source.cached_tokens
            if self._sharing:
                self._sharing.inherit(sequence, source, computed)
        else:
            if not self._fits(sequence, self._missing(sequence, known_blocks * size)):
                return False
            computed = self._sharing.attach(sequence) if self._sharing else 0
            if not self._fits(sequence, self._missing(sequence, computed)):
                self._detach(sequence)  # fewer blocks were known than it seemed, or their pages were not held
                return False
            cached = min(computed, sequence.prompt_len)
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = cached
            self._count(sequence)
        builder.start(sequence, computed)
        self.release_followers(sequence)
        return True

    def _count(self, sequence: Sequence) -> None:
        """A first admission: the request's prompt counts once, however many sequences it has."""
        if not sequence.family.counted:
            sequence.family.counted = True
            self._counters.prompt_tokens += sequence.prompt_len
            self._counters.cached_tokens += sequence.cached_tokens

    def _missing(self, sequence: Sequence, computed: int) -> int:
        """Pages for the sequence's tokens beyond those of its first `computed` ones."""
        return self._pool.groups.pages_between(computed, len(sequence.tokens))

    def _fits(self, sequence: Sequence, pages: int) -> bool:
        reserve = 0.0 if self.pressing else self._reserve_tokens * (1 << min(sequence.preemptions, 30))
        return not self._slots.count or self._spare_pages(reserve) >= pages

    def _spare_pages(self, reserve_tokens: float) -> float:
        """Pages beyond what those that run need for their tokens and the reserve for each."""
        pool = self._pool
        reserve = self._slots.count * reserve_tokens / pool.page_size * pool.num_groups
        return pool.available - self._slots.pages_owed(pool.groups) - reserve

    def _detach(self, sequence: Sequence) -> None:
        sequence.table.free()
        if self._sharing:
            self._sharing.detach(sequence)

    def _fork_source(self, sequence: Sequence) -> Sequence | None:
        """A running sequence of the same request that has computed the prompt up to its last token and still holds what
        that one sees."""
        end = sequence.prompt_len - 1
        for other in sequence.family.sequences.values() if len(sequence.family.sequences) > 1 else ():
            if other.slot != NO_SLOT and self._slots.computed[other.slot] >= end and other.table.covers(end):
                return other
        return None
