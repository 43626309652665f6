"""KV groups with sliding windows: what a sequence holds, what a prefix needs to be found, how many pages that takes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.driver import Driver, config, expected, request

from octavo.engine.block_table import BlockTable
from octavo.engine.groups import NO_PAGE, KvGroups
from octavo.engine.pages import PagePool
from octavo.engine.prefix import PrefixIndex, keyed_hash

PROMPT = [(i * i + 3 * i) % 700 + 20 for i in range(160)]


def held_by_group(driver: Driver, choice: int = 0) -> list[int]:
    windows = driver.config.windows
    sequence = next(s for s in driver.scheduler._slots.running() if s.choice == choice)
    return [sum(page != NO_PAGE for page in sequence.table.pages[g :: len(windows)]) for g in range(len(windows))]


def test_a_windowed_group_holds_its_window_and_no_more() -> None:
    driver = Driver(config(windows=(0, 16, 30), num_pages=1000))
    driver.scheduler.add(request(1, PROMPT, 40))
    for _ in range(30):
        driver.step()
        driver.scheduler.check()
    assert driver.executor.tokens_fed > 180
    blocks, *windowed = held_by_group(driver)
    assert blocks == -(-driver.executor.tokens_fed // 4)
    assert 4 <= windowed[0] <= 5
    assert 8 <= windowed[1] <= 9
    driver.run()
    assert driver.tokens[1, 0] == expected(PROMPT, 40)


def test_a_prompt_longer_than_a_pool_without_windows_could_hold() -> None:
    """200 tokens take 50 pages in each of 4 groups; with 3 windows of 8 tokens and chunks of 8 they take 50 + 3 x 5."""
    groups = KvGroups(4, (0, 8, 8, 8), chunk=8)
    assert groups.pages_for(200) == 50 + 3 * 5
    driver = Driver(
        config(max_model_len=200, windows=groups.windows, num_pages=groups.pages_for(200), max_num_batched_tokens=8)
    )
    driver.scheduler.add(request(1, PROMPT, 40))
    driver.scheduler.add(request(2, PROMPT[80:], 30))
    while driver.step() is not None:
        driver.scheduler.check()
    assert driver.tokens[1, 0] == expected(PROMPT, 40)
    assert driver.tokens[2, 0] == expected(PROMPT[80:], 30)


def test_waste_counts_every_group_and_stays_below_a_block() -> None:
    driver = Driver(config(windows=(0, 8), num_pages=600))
    driver.scheduler.add(request(1, 50, 60))
    while driver.step() is not None:
        stats = driver.scheduler.stats()
        assert stats.slots_held - stats.slots_filled < 4 * 2
        assert stats.slots_held == 4 * stats.pages_held


@pytest.mark.parametrize("windows", [(20,), (0, 20), (20, 0, 9)])
def test_a_prefix_is_found_with_the_pages_of_its_window(windows: tuple[int, ...]) -> None:
    driver = Driver(config(windows=windows, num_pages=600))
    driver.scheduler.add(request(1, PROMPT, 2))
    driver.run()
    driver.scheduler.add(request(2, [*PROMPT, 1, 2, 3], 20))
    driver.step()
    sequence = driver.scheduler._slots.running()[0]
    driver.run()
    assert driver.cached[2, 0] == 160
    assert driver.tokens[2, 0] == expected([*PROMPT, 1, 2, 3], 20)
    assert sequence.cached_tokens == 160


def test_a_shorter_prefix_of_a_long_text_is_found_while_its_pages_are_cached() -> None:
    """Pages that windows have passed are cached until their turn, so other texts may part anywhere."""
    driver = Driver(config(windows=(0, 20), num_pages=600))
    driver.scheduler.add(request(1, PROMPT, 2))
    driver.run()
    driver.scheduler.add(request(2, [*PROMPT[:81], 1, 2], 2))
    driver.run()
    assert driver.cached[2, 0] == 80


def registered(pool: PagePool, index: PrefixIndex, blocks: int) -> tuple[list[bytes], np.ndarray]:
    """A text of so many blocks is known, and nobody holds it; its blocks are released from its beginning on."""
    ids = np.arange(blocks * 4, dtype=np.int32)
    keys: list[bytes] = []
    index.extend_keys(keys, b"", ids, blocks)
    table, tip = BlockTable(pool), None
    table.write(0, blocks * 4)
    for block in range(blocks):
        pages = table.pages[block * pool.num_groups : (block + 1) * pool.num_groups]
        tip = index.insert(tip, b"", keys[block], ids[block * 4 : (block + 1) * 4].tobytes(), pages)
    for tokens in range(blocks * 4 + 1):
        table.free_behind(tokens)
    table.free()
    index.check()
    return keys, ids


def matched(index: PrefixIndex, keys: list[bytes], ids: np.ndarray) -> int:
    found = len(index.match(keys, b"", ids, len(keys)))
    assert index.probe(keys) == found
    return found


def test_an_entry_outlives_its_page_only_where_a_window_is() -> None:
    pool = PagePool(40, 4, (0, 8))
    index = PrefixIndex(pool, keyed_hash(b"0" * 16))
    keys, ids = registered(pool, index, 10)
    assert matched(index, keys, ids) == 10
    assert pool.take(pool.available - 18) is not None  # the windowed pages of the first blocks were released first
    index.check()
    assert len(index) == 10
    assert matched(index, keys, ids) == 10, "behind a window nothing is needed"
    assert matched(index, keys[:3], ids) == 0, "these have lost what their window sees"


def test_a_page_that_everything_sees_takes_all_that_continues_it_along() -> None:
    pool = PagePool(20, 4, (8, 0))
    index = PrefixIndex(pool, keyed_hash(b"0" * 16))
    keys, _ = registered(pool, index, 10)
    for block in (4, 3):
        page = index._entries[keys[block]].pages[1]
        pool.forget(page)  # as the pool does before it tells the index
        pool.on_evict(page)
        index.check()
    assert len(index) == 3
    pool.check([])


def test_a_chain_without_any_pages_is_dropped() -> None:
    pool = PagePool(10, 4, (8,))
    index = PrefixIndex(pool, keyed_hash(b"0" * 16))
    keys, ids = registered(pool, index, 10)
    taken = pool.take(8)
    assert taken is not None
    index.check()
    assert len(index) == 10, "the last blocks are still of use, and lead back to the first"
    assert matched(index, keys, ids) == 10
    assert pool.take(1) is not None
    assert matched(index, keys, ids) < 10
    assert pool.take(1) is not None
    index.check()
    assert len(index) == 0


def test_an_equal_block_gives_back_what_an_entry_has_lost() -> None:
    pool = PagePool(40, 4, (8,))
    index = PrefixIndex(pool, keyed_hash(b"0" * 16))
    keys, ids = registered(pool, index, 10)
    pool.take(pool.available - 3)
    assert matched(index, keys[:5], ids) == 0
    for page in np.flatnonzero(pool.holders).tolist():
        pool.release([page])
    registered(pool, index, 5)
    assert matched(index, keys[:5], ids) == 5
    assert matched(index, keys, ids) == 10


def test_choices_fork_as_long_as_the_leader_holds_what_they_see() -> None:
    """Two slots for three choices: the third comes when windows have moved on, and finds the prompt in the index."""
    driver = Driver(config(windows=(0, 8), num_pages=600, max_num_seqs=2))
    driver.scheduler.add(request(1, PROMPT, 30, n=3))
    driver.run()
    for choice in range(3):
        assert driver.tokens[1, choice] == expected(PROMPT, 30, choice=choice)
    assert any(len(step.copies) for step in driver.steps)
    assert all(len(step.copies) % 2 == 0 for step in driver.steps)
    assert driver.executor.tokens_fed < len(PROMPT) + 3 * 30 + 16, "the prompt was computed again"


def test_a_fork_of_what_was_given_back_is_refused() -> None:
    table = BlockTable(PagePool(40, 4, (8,)))
    table.write(0, 40)
    table.free_behind(40)
    assert table.covers(40)
    assert not table.covers(32)
    with pytest.raises(AssertionError, match="given back"):
        table.fork(32)


@pytest.mark.parametrize("windows", [(0,), (9,), (0, 1), (7, 0, 30), (64, 64)])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_counts_of_pages_are_those_of_tables(windows: tuple[int, ...], page_size: int) -> None:
    """pages_for and pages_between against tables that grow chunk by chunk."""
    for chunk in (1, 5, 24):
        groups = KvGroups(page_size, windows, chunk)
        pool = PagePool(2000, page_size, windows, chunk)
        for start in (0, 3, 40):
            table, computed, most = BlockTable(pool), 0, 0
            held_at_start = 0
            while computed < 150:
                if computed == start:
                    held_at_start = most = len(table.held)
                end = min(computed + (chunk if computed >= start else start), 150)
                table.write(computed, end)
                most = max(most, len(table.held))
                computed = end
                table.free_behind(computed)
            assert most - held_at_start <= groups.pages_between(start, 150)
            assert start > 0 or most <= groups.pages_for(150)
        for pages in (groups.pages_for(100), groups.pages_for(101) - 1):
            longest = groups.longest(pages, 10_000)
            if longest < 10_000:
                assert groups.pages_for(longest) <= pages < groups.pages_for(longest + 1)


def test_without_a_group_that_sees_all_a_pool_holds_any_length() -> None:
    groups = KvGroups(4, (8,), chunk=16)
    assert groups.pages_for(1_000_000) == groups.pages_for(100) == 7
    assert groups.longest(7, 1_000_000) == 1_000_000
    assert groups.longest(6, 1_000_000) == 24


def test_a_pool_too_small_for_the_longest_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the pool holds 80 tokens, less than one sequence of max_model_len 100"):
        config(max_model_len=100, windows=(0, 8), num_pages=20 + 3)
    assert config(max_model_len=100, windows=(0, 8), num_pages=25 + 3).windows == (0, 8)
    with pytest.raises(ValueError, match=r"windows are \(0, 8\), but kv_policy contiguous"):
        config(windows=(0, 8), kv_policy="contiguous", prefix_caching=False)
    with pytest.raises(ValueError, match="none negative"):
        config(windows=())


def test_a_step_ahead_waits_for_pages_instead_of_preempting() -> None:
    """A step under way holds a window and its chunk; only its result gives back what the next step needs."""
    driver = Driver(config(windows=(1,), num_pages=1, max_model_len=48, max_num_batched_tokens=7))
    driver.scheduler.add(request(1, PROMPT[:21], 4))
    flights = []
    for _ in range(200):
        step = driver.scheduler.schedule(0.0) if len(flights) < 2 else None
        if step is not None:
            flights.append((step, driver.executor.execute(step)))
        elif flights:
            driver.scheduler.apply(*flights.pop(0), 0.0)
            driver.scheduler.check()
    assert not driver.scheduler.has_work
    assert driver.scheduler.stats().generated_tokens == 4
    assert driver.scheduler.stats().preemptions == 0
