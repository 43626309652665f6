"""The page pool, block tables and the prefix index against a model that is too simple to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as StateBundle
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, rule

from octavo.engine.block_table import BlockTable
from octavo.engine.pages import CACHED, HELD, PagePool
from octavo.engine.prefix import Entry, PrefixIndex, keyed_hash

PAGES, SIZE = 12, 4


class Held:
    """A block table, and the marks that its reader must find: what was written to each of its token slots."""

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.content: list[int] = []
        self.tips: list[Entry] = []


class PoolMachine(RuleBasedStateMachine):
    """Tables grow, fork, shrink, register their pages and match others'; memory is a plain array of marks."""

    tables = StateBundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.index = PrefixIndex(self.pool, keyed_hash(b"0" * 16))
        self.memory = np.full((PAGES, SIZE), -1)
        self.live: list[Held] = []

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
        assert self.index.probe(keys) <= len(keys)
        held.tips = self.index.match(keys, b"", ids, len(keys))
        pages = [entry.page for entry in held.tips]
        self.pool.share(pages)
        for page in pages:
            held.table.append(page)
        held.content = tokens[: len(pages) * SIZE]
        return self.adopt(held)

    @rule(held=tables, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def write(self, held: Held, tokens: list[int]) -> None:
        start, end = len(held.content), len(held.content) + len(tokens)
        cost, available = held.table.cost(start, end), self.pool.available
        writes = held.table.write(start, end)
        assert (writes is None) == (cost > available)
        if writes is None:
            return
        copied = writes.copy is not None  # the page that was copied may be cached now
        assert cost - copied <= available - self.pool.available <= cost
        if writes.copy is not None:
            _, source, target = writes.copy
            self.memory[target] = self.memory[source]
        for at, token in enumerate(tokens, start):
            self.memory[held.table.pages[at // SIZE], at % SIZE] = token
        held.content = held.content + tokens

    @rule(held=tables)
    def register(self, held: Held) -> None:
        """Make all full pages known."""
        ids = np.array(held.content, np.int32)
        keys: list[bytes] = []
        self.index.extend_keys(keys, b"", ids, len(ids) // SIZE)
        for block in range(len(held.tips), len(keys)):
            parent = held.tips[-1] if held.tips else None
            content = ids[block * SIZE : (block + 1) * SIZE].tobytes()
            tip = self.index.insert(parent, b"", keys[block], content, held.table.pages[block])
            if tip is None:
                assert parent is not None
                assert not parent.alive
                return
            held.tips.append(tip)

    @rule(target=tables, held=tables, data=st.data())
    def fork(self, held: Held, data: st.DataObject) -> Held:
        length = data.draw(st.integers(0, len(held.content)))
        child = Held(held.table.fork(length))
        child.content = held.content[:length]
        child.tips = held.tips[: length // SIZE]
        return self.adopt(child)

    @rule(held=tables, data=st.data())
    def truncate(self, held: Held, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(held.content)))
        held.table.truncate(length)
        held.content = held.content[:length]
        held.tips = held.tips[: length // SIZE]

    @rule(held=consumes(tables))
    def free(self, held: Held) -> None:
        held.table.free()
        self.live.remove(held)

    @invariant()
    def sound(self) -> None:
        self.pool.check(held.table.pages for held in self.live)
        self.index.check()

    @invariant()
    def everybody_reads_what_it_wrote(self) -> None:
        for held in self.live:
            assert len(held.table.pages) == -(-len(held.content) // SIZE)
            assert self.memory[held.table.pages].reshape(-1)[: len(held.content)].tolist() == held.content

    @invariant()
    def report_adds_up(self) -> None:
        report = self.pool.report(self.index.depth)
        assert report.pages_held == int((report.state == HELD).sum())
        assert report.pages_cached == int((report.state == CACHED).sum())
        assert report.slots_filled == int(report.filled[report.state == HELD].sum())
        assert 0.0 <= report.waste_ratio < 1.0
        assert self.pool.available == PAGES - report.pages_held
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
