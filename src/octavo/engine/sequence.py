"""One growing list of tokens. A request with n = 4 has four."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.beams import Beams
from octavo.engine.block_table import BlockTable
from octavo.engine.prefix import Entry
from octavo.engine.request import Request, Tokens

#: (time key, serial number), and for beams of a search a further number: the smaller is served first and preempted
#: last. Total and fixed for a sequence's life.
Rank = tuple[float, ...]

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Family:
    """The sequences of one request that have not ended, by choice.

    followers: those that wait until another one, the leader, has computed the prompt up to its last token.
    counted: the request's prompt is in the statistics.
    scored: where `prompt_logprobs` is asked for, the first so many positions have told theirs.
    beams: of a request that searches.
    """

    sequences: dict[int, Sequence] = field(default_factory=dict)
    followers: list[Sequence] = field(default_factory=list)
    counted: bool = False
    scored: int = 0
    beams: Beams | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """What does not change with every token; the counters of a sequence that has a slot are in `SlotTable`.

    A sequence is in one place: it has a slot, or is queued (WaitingQueue), or is held (PrefixSharing: a running one
    computes its next block), or is a follower in its family.

    tokens: int32 [n]; all tokens known, valid while the sequence has no slot (with one, they are in the slot's row).
    limit: the sequence ends when it has so many tokens. min_tokens_at: eos and stop ids don't end it below so many.
    cached_tokens: prompt tokens whose K and V came from the prefix index, as of the first admission; -1 before it.
    queued_s: seconds from arrival to the first admission; -1 before it.
    preemptions: how often its pages were taken away. passed: how often a later sequence was admitted before it.
    """

    request: Request
    choice: int
    family: Family
    rank: Rank
    tokens: Tokens
    table: BlockTable
    limit: int
    min_tokens_at: int
    stop_ids: frozenset[int]
    salt: bytes = b""
    slot: int = NO_SLOT
    queued: bool = False
    cached_tokens: int = -1
    queued_s: float = -1.0
    preemptions: int = 0
    passed: int = 0
    # PrefixSharing's: keys of the leading blocks; how many of these the index knows, and the entry of the last of them;
    # the block up to which the sequence has announced what it will compute; whether it is held, and until which step.
    keys: list[bytes] = field(default_factory=list)
    indexed: int = 0
    tip: Entry | None = None
    announced: int = 0
    held: bool = False
    held_until: int = -1

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def forks(self) -> bool:
        """Others may have a fork of its block table."""
        return self.request.params.n > 1 or self.family.beams is not None

    @property
    def stoppable(self) -> bool:
        """A token may end it, not only its length."""
        return bool(self.stop_ids) or not self.request.params.ignore_eos

    @property
    def scores_prompt(self) -> bool:
        """Log-probabilities of its prompt are asked for."""
        return self.request.params.prompt_logprobs is not None

    @property
    def shareable_tokens(self) -> int:
        """So many leading tokens need not be computed if their K and V are known: not the last one, and none whose
        logits somebody waits for."""
        known, scored = len(self.tokens) - 1, self.family.scored
        return scored if self.scores_prompt and scored < self.prompt_len - 1 else known
