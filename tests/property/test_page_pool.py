"""The page pool, block tables and the prefix index against a model that is too simple to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as StateBundle
from hypothesis.stateful import RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from octavo.engine.block_table import BlockTable
from octavo.engine.groups import NO_PAGE
from octavo.engine.pages import CACHED, HELD, PagePool
from octavo.engine.prefix import Entry, PrefixIndex, keyed_hash

BLOCKS, SIZE = 12, 4


class Held:
    """A block table, and the marks that its reader must find: what was written to each of its token slots.

    registers: all of its full pages can be made known; not once some of them have been given back before.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.content: list[int] = []
        self.tips: list[Entry] = []
        self.registers = True


class PoolMachine(RuleBasedStateMachine):
    """Tables grow, fork, shrink, register their pages and match others'; memory is a plain array of marks."""

    tables = StateBundle("tables")

    @initialize(windows=st.sampled_from([(0,), (0,), (5,), (1,), (0, 6), (9, 0, 3, 3)]))
    def start(self, windows: tuple[int, ...]) -> None:
        self.windows, self.groups = windows, len(windows)
        self.pool = PagePool(BLOCKS * self.groups, SIZE, windows)
        self.index = PrefixIndex(self.pool, keyed_hash(b"0" * 16))
        self.memory = np.full((BLOCKS * self.groups, SIZE), -1)
        self.live: list[Held] = []

    def first(self, group: int, tokens: int) -> int:
        """The first token that one behind so many can see."""
        return max(0, tokens + 1 - self.windows[group]) if self.windows[group] else 0

    def adopt(self, held: Held) -> Held:
        self.live.append(held)
        return held

    @rule(target=tables, tokens=st.lists(st.integers(0, 1), max_size=20))
    def new(self, tokens: list[int]) -> Held:
        """A prompt: share what is known of it; the rest is written by `write`."""
        held = Held(BlockTable(self.pool))
        ids = np.array(tokens, np.int32)
        keys: list[bytes] = []
        self.index.extend_keys(keys, b"", ids, len(ids) // SIZE)
        held.tips = self.index.match(keys, b"", ids, len(keys))
        assert len(held.tips) == self.longest_match(keys)
        assert self.index.probe(keys) == len(held.tips)
        shared = len(held.tips) * SIZE
        held.table.share([page for entry in held.tips for page in entry.pages], shared)
        held.content = tokens[:shared]
        return self.adopt(held)

    def longest_match(self, keys: list[bytes]) -> int:
        """Spelled out: known blocks, as far as each group has all pages of its window before the end."""
        known: list[Entry] = []
        while len(known) < len(keys) and (entry := self.index._entries.get(keys[len(known)])) is not None:
            known.append(entry)
        return max(
            count
            for count in range(len(known) + 1)
            if all(
                known[block].pages[group] != NO_PAGE
                for group in range(self.groups)
                for block in range(self.first(group, count * SIZE) // SIZE, count)
            )
        )

    @rule(held=tables, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def write(self, held: Held, tokens: list[int]) -> None:
        start, end = len(held.content), len(held.content) + len(tokens)
        cost, available = held.table.cost(start, end), self.pool.available
        writes = held.table.write(start, end)
        assert (writes is None) == (cost > available)
        if writes is None:
            return
        copied = len(writes.copies)  # the pages that were copied may be cached now
        assert copied in (0, self.groups)
        assert cost - copied <= available - self.pool.available <= cost
        for _, source, target in writes.copies:
            self.memory[target] = self.memory[source]
        for at, token in enumerate(tokens, start):
            for group in range(self.groups):
                self.memory[held.table.pages[at // SIZE * self.groups + group], at % SIZE] = token + 10 * group
        held.content = held.content + tokens

    @rule(held=tables)
    def register(self, held: Held) -> None:
        """Make all full pages known."""
        if not held.registers:
            return
        ids = np.array(held.content, np.int32)
        keys: list[bytes] = []
        self.index.extend_keys(keys, b"", ids, len(ids) // SIZE)
        for block in range(len(held.tips), len(keys)):
            parent = held.tips[-1] if held.tips else None
            content = ids[block * SIZE : (block + 1) * SIZE].tobytes()
            tip = self.index.insert(parent, b"", keys[block], content, self.block(held, block))
            if tip is None:
                assert parent is not None
                assert not parent.alive
                return
            held.tips.append(tip)

    def block(self, held: Held, block: int) -> list[int]:
        return held.table.pages[block * self.groups : (block + 1) * self.groups]

    @precondition(lambda self: any(self.windows))
    @rule(held=tables, first_register=st.booleans())
    def free_behind(self, held: Held, first_register: bool) -> None:
        """Windows move on; what was not made known by then never is."""
        if first_register:
            self.register(held)
        held.registers = held.registers and len(held.tips) == len(held.content) // SIZE
        frees = held.table.frees_at <= len(held.content)
        before = len(held.table.held)
        held.table.free_behind(len(held.content))
        assert (len(held.table.held) < before) == frees
        assert held.table.frees_at > len(held.content)

    @rule(target=tables, held=tables, data=st.data())
    def fork(self, held: Held, data: st.DataObject) -> Held:
        length = data.draw(st.integers(0, len(held.content)))
        if not held.table.covers(length):
            length = len(held.content)
        child = Held(held.table.fork(length))
        child.content = held.content[:length]
        child.tips = held.tips[: length // SIZE]
        child.registers = len(child.tips) == length // SIZE or not any(self.windows)
        return self.adopt(child)

    @rule(held=tables, data=st.data())
    def truncate(self, held: Held, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(held.content)))
        if not held.table.covers(length):
            return
        held.table.truncate(length)
        held.content = held.content[:length]
        held.tips = held.tips[: length // SIZE]

    @rule(held=consumes(tables))
    def free(self, held: Held) -> None:
        held.table.free()
        self.live.remove(held)

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def sound(self) -> None:
        self.pool.check(held.table.held for held in self.live)
        self.index.check()

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def everybody_reads_what_it_wrote(self) -> None:
        for held in self.live:
            length = len(held.content)
            assert held.table.capacity == -(-length // SIZE) * SIZE
            for group in range(self.groups):
                pages = held.table.pages[group :: self.groups]
                first = self.first(group, length)
                block = first // SIZE
                assert NO_PAGE not in pages[block:]
                marks = self.memory[pages[block:]].reshape(-1)[first - block * SIZE : length - block * SIZE]
                assert marks.tolist() == [token + 10 * group for token in held.content[first:]]

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def report_adds_up(self) -> None:
        report = self.pool.report(self.index.depth)
        assert report.pages_held == int((report.state == HELD).sum())
        assert report.pages_cached == int((report.state == CACHED).sum())
        assert report.slots_filled == int(report.filled[report.state == HELD].sum())
        assert 0.0 <= report.waste_ratio < 1.0
        assert self.pool.available == BLOCKS * self.groups - report.pages_held
        assert np.array_equal(report.depth >= 0, self.pool.kept)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_page_that_nobody_holds_cannot_be_released() -> None:
    pool = PagePool(2, 4)
    pages = pool.take(1)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release(pages)
