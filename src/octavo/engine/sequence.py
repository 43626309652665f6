"""One growing list of tokens. A request with n = 4 has four."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.block_table import BlockTable
from octavo.engine.request import Request, Tokens

#: (time key, serial number): the smaller is served first and preempted last. Total and fixed for a sequence's life.
Rank = tuple[float, int]

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """What does not change with every token; the counters of a sequence that has a slot are in `SlotTable`.

    tokens: int32 [n]; all tokens known, valid while the sequence has no slot (with one, they are in the slot's row).
    limit: the sequence ends when it has so many tokens. min_tokens_at: eos and stop ids don't end it below so many.
    cached_tokens: prompt tokens whose K and V came from the prefix index, as of the first admission; -1 before it.
    preemptions: how often its pages were taken away. passed: how often a later sequence was admitted before it.
    """

    request: Request
    choice: int
    rank: Rank
    tokens: Tokens
    table: BlockTable
    limit: int
    min_tokens_at: int
    stop_ids: frozenset[int]
    slot: int = NO_SLOT
    queued: bool = False
    cached_tokens: int = -1
    preemptions: int = 0
    passed: int = 0
    keys: list[bytes] = field(default_factory=list)

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)
