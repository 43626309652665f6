"""Prefix sharing for sequences: matching at admission, registering what was computed, and waiting for one another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from octavo.engine.pages import PagePool
from octavo.engine.prefix import PrefixIndex
from octavo.engine.request import Tokens
from octavo.engine.sequence import Sequence

#: From the first hold on, a sequence is held for at most so many steps; then it computes its blocks itself.
HOLD_STEPS = 512

_BROKEN = -1


class PrefixSharing:
    """Lets sequences share pages through the index, also pages that are only being computed.

    A running sequence announces the blocks of its known tokens. A waiting one whose next block is announced is held
    until the last announced block that both have in common is there, or its owner has gone. That costs it no more
    than computing these blocks itself would. `wake` takes back a sequence that was held.
    """

    def __init__(self, pool: PagePool, index: PrefixIndex, wake: Callable[[Sequence], None]) -> None:
        self.index = index
        self.num_held = 0
        self._pool = pool
        self._wake = wake
        self._owners: dict[bytes, Sequence] = {}
        self._held: dict[bytes, list[Sequence]] = {}
        self._deadlines: deque[Sequence] = deque()

    def known_blocks(self, sequence: Sequence) -> int:
        """Blocks that a waiting sequence can probably share; the one of its last token is never among them."""
        blocks = self._shareable(sequence)
        self.index.extend_keys(sequence.keys, sequence.salt, sequence.tokens, blocks)
        return self.index.probe(sequence.keys[:blocks])

    def hold(self, sequence: Sequence, known_blocks: int, step_id: int) -> bool:
        """Put a waiting sequence aside if a running one is computing its next block. O(blocks)."""
        blocks, keys = self._shareable(sequence), sequence.keys
        owner = self._owners.get(keys[known_blocks]) if known_blocks < blocks else None
        if owner is None or 0 <= sequence.held_until <= step_id:
            return False
        last = known_blocks
        while last + 1 < blocks and self._owners.get(keys[last + 1]) is owner:
            last += 1
        if sequence.held_until < 0:
            sequence.held_until = step_id + HOLD_STEPS
            self._deadlines.append(sequence)
        sequence.held = True
        self.num_held += 1
        self._held.setdefault(keys[last], []).append(sequence)
        return True

    def drop(self, sequence: Sequence) -> None:
        """A held sequence is held no longer."""
        sequence.held = False
        self.num_held -= 1

    def wake_overdue(self, step_id: int) -> None:
        """Give back those that have been held for too long. O(1) when there are none."""
        while self._deadlines and self._deadlines[0].held_until <= step_id:
            sequence = self._deadlines.popleft()
            if sequence.held:
                self.drop(sequence)
                self._wake(sequence)

    def attach(self, sequence: Sequence) -> int:
        """Share all known pages with a sequence that has none, and announce the other blocks. Returns tokens shared."""
        found = self.index.match(sequence.keys, sequence.salt, sequence.tokens, self._shareable(sequence))
        shared = len(found) * self._pool.page_size
        sequence.table.share([page for entry in found for page in entry.pages], shared)
        sequence.indexed = len(found)
        sequence.tip = found[-1] if found else None
        self._announce(sequence)
        return shared

    def inherit(self, sequence: Sequence, source: Sequence, num_tokens: int) -> None:
        """The sequence, which has no slot yet, is a fork of the first `num_tokens` tokens of a running one."""
        blocks = num_tokens // self._pool.page_size
        sequence.keys = source.keys[:blocks]
        sequence.indexed = min(source.indexed, blocks)
        tip = source.tip if sequence.indexed > 0 else None
        while tip is not None and tip.depth >= sequence.indexed:
            tip = tip.parent
        sequence.tip, sequence.announced = tip, 0

    def computed(self, sequence: Sequence, tokens: Tokens, count: int) -> None:
        """The first `count` of the sequence's tokens (int32 [>= count]) are computed: register its full pages."""
        size, groups = self._pool.page_size, self._pool.num_groups
        if sequence.indexed == _BROKEN:
            return
        keys = sequence.keys
        for block in range(sequence.indexed, count // size):
            content = tokens[block * size : (block + 1) * size].tobytes()
            if block == len(keys):
                keys.append(self.index.next_key(keys, sequence.salt, content))
            key = keys[block]
            pages = sequence.table.pages[block * groups : (block + 1) * groups]
            tip = self.index.insert(sequence.tip, sequence.salt, key, content, pages)
            if tip is None:
                self.detach(sequence)
                sequence.indexed = _BROKEN
                return
            sequence.tip = tip
            sequence.indexed = block + 1
            self._settle(sequence, key)

    def detach(self, sequence: Sequence) -> None:
        """A running sequence leaves its slot (or can't register further blocks): take back what it has announced."""
        for key in sequence.keys[max(0, sequence.indexed) : sequence.announced]:
            self._settle(sequence, key)
        sequence.indexed, sequence.tip, sequence.announced = 0, None, 0

    def _shareable(self, sequence: Sequence) -> int:
        return sequence.shareable_tokens // self._pool.page_size

    def _announce(self, sequence: Sequence) -> None:
        sequence.announced = len(sequence.tokens) // self._pool.page_size
        self.index.extend_keys(sequence.keys, sequence.salt, sequence.tokens, sequence.announced)
        for key in sequence.keys[sequence.indexed : sequence.announced]:
            self._owners.setdefault(key, sequence)

    def _settle(self, owner: Sequence, key: bytes) -> None:
        """`owner` has computed the block, or will not: whoever is held for it may look again."""
        if self._owners.get(key) is owner:
            del self._owners[key]
            for sequence in self._held.pop(key, ()):
                if sequence.held:
                    self.drop(sequence)
                    self._wake(sequence)
