"""Prefix sharing through the scheduler. CASES PC-01, PC-02, PC-06, PC-07, PC-08 and the shared prefill."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.driver import Driver, config, expected, request

from octavo.engine import sharing
from octavo.engine.pages import CACHED, HELD
from octavo.engine.prefix import PrefixIndex, encode_salt

PAGE = 4


def large(**changes: object) -> Driver:
    return Driver(config(max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=512, num_pages=2000, **changes))


def ids(length: int, kind: int = 1) -> list[int]:
    return [(i * i * kind + i) % 900 + 10 for i in range(length)]


@pytest.mark.parametrize("count", [16, 40])
def test_equal_prompts_that_arrive_together_cost_one_prefill(count: int) -> None:
    driver = large()
    prompt = ids(1000)
    for i in range(count):
        driver.scheduler.add(request(i, prompt, 2, seed=i))
    driver.run()
    first_alone = 1000
    last_block = PAGE  # each of the others computes what follows the last full page that it may share
    assert driver.executor.tokens_fed <= first_alone + count + (count - 1) * last_block
    assert all(driver.tokens[i, 0] == expected(prompt, 2, seed=i) for i in range(count))
    assert [driver.cached[i, 0] for i in range(1, count)] == [996] * (count - 1)
    assert driver.cached[0, 0] == 0


def test_prompts_that_share_a_head_wait_only_for_the_head() -> None:
    driver = large()
    head = ids(400)
    for i in range(8):
        driver.scheduler.add(request(i, head + ids(100, kind=i + 3), 2))
    driver.run()
    assert driver.executor.tokens_fed == 400 + 8 * 100 + 8
    assert [driver.cached[i, 0] for i in range(8)] == [0] + [400] * 7


def test_those_held_go_on_when_the_one_they_wait_for_is_aborted() -> None:
    driver = large()
    prompt = ids(1000)
    for i in range(4):
        driver.scheduler.add(request(i, prompt, 3))
    driver.step()
    assert driver.scheduler.stats().running == 1
    driver.scheduler.abort(0)
    driver.run()
    assert driver.cached[1, 0] == 512, "what the aborted one had computed is used"
    assert all(driver.tokens[i, 0] == expected(prompt, 3) for i in (1, 2, 3))


def test_a_held_one_can_be_aborted() -> None:
    driver = large()
    for i in range(3):
        driver.scheduler.add(request(i, ids(1000), 3))
    driver.step()
    assert driver.scheduler.abort(1) == 1
    driver.run()
    assert set(driver.finish) == {(0, 0), (2, 0)}


def test_holding_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "HOLD_STEPS", 5)
    driver = Driver(config(max_model_len=2048, max_num_batched_tokens=16, num_pages=2000))
    for i in range(2):
        driver.scheduler.add(request(i, ids(1000), 1))
    held = []
    for _ in range(8):
        driver.step()
        held.append(driver.scheduler._sharing.num_held)
    assert held == [0] + [1] * 5 + [0] * 2
    driver.run()


@pytest.mark.parametrize("length", [k * PAGE + d for k in (1, 2, 5) for d in (-1, 0, 1)])
def test_every_length_around_a_page_edge_gives_the_same_tokens_cold_and_cached(length: int) -> None:
    driver = Driver(config())
    prompt = ids(length)
    for i in range(3):
        driver.scheduler.add(request(i, prompt, 9))
        driver.run()
        assert driver.tokens[i, 0] == expected(prompt, 9)
        assert driver.cached[i, 0] == ((length - 1) // PAGE * PAGE if i else 0), "the last token is always computed"


def test_a_wholly_cached_prompt_in_a_batch_with_others() -> None:
    driver = Driver(config())
    prompts = [ids(2 * PAGE), ids(3 * PAGE), ids(3 * PAGE, kind=2)]
    for round_ in range(2):
        for i, prompt in enumerate(prompts):
            driver.scheduler.add(request(10 * round_ + i, prompt, 1))
        driver.run()
    for i, prompt in enumerate(prompts):
        assert driver.tokens[10 + i, 0] == driver.tokens[i, 0] == expected(prompt, 1)
    assert [driver.cached[10 + i, 0] for i in range(3)] == [PAGE, 2 * PAGE, 2 * PAGE]


def test_the_open_page_is_never_shared() -> None:
    driver = Driver(config())
    prompt = ids(PAGE + 1)
    driver.scheduler.add(request(1, prompt, 12, seed=1))
    driver.scheduler.add(request(2, prompt, 12, seed=2))
    driver.run()
    driver.scheduler.add(request(3, prompt, 12, seed=1))
    driver.run()
    assert driver.tokens[1, 0] == driver.tokens[3, 0] == expected(prompt, 12, seed=1)
    assert driver.tokens[2, 0] == expected(prompt, 12, seed=2)


def test_generated_pages_are_shared_too() -> None:
    driver = Driver(config())
    prompt = ids(10)
    driver.scheduler.add(request(1, prompt, 20))
    driver.run()
    driver.scheduler.add(request(2, prompt + driver.tokens[1, 0] + [11, 12], 5))
    driver.run()
    assert driver.cached[2, 0] == 28, "29 of the 30 tokens had been computed"


def test_hits_only_within_one_salt() -> None:
    driver = large()
    prompt = ids(1000)
    salts = [(("salt", "a"),), (("salt", "a"),), (("salt", "b"),), (), (("adapter", "a"),), (("salt", "a"),)]
    for i, salt in enumerate(salts):
        driver.scheduler.add(request(i, prompt, 1, salt=salt))
        driver.run()
    assert [driver.cached[i, 0] for i in range(6)] == [0, 996, 0, 0, 0, 996]


def test_a_forced_collision_is_a_miss_and_never_other_text() -> None:
    driver = large()
    sharing_ = driver.scheduler._sharing
    assert sharing_ is not None
    sharing_.index = PrefixIndex(driver.scheduler.pool, lambda parent, content: b"\0" * 16)
    prompts = [ids(64), ids(64, kind=2), ids(64), ids(64, kind=2)]
    for i, prompt in enumerate(prompts):
        driver.scheduler.add(request(i, prompt, 8))
        driver.run()
        assert driver.tokens[i, 0] == expected(prompt, 8)
        driver.scheduler.check()
    assert [driver.cached[i, 0] for i in range(4)] == [0, 0, PAGE, 0]
    for i, prompt in enumerate(prompts):
        driver.scheduler.add(request(10 + i, prompt, 8))
    driver.run()
    assert all(driver.tokens[10 + i, 0] == expected(prompt, 8) for i, prompt in enumerate(prompts))


def test_two_servers_have_different_keys_unless_told_otherwise() -> None:
    def key(prefix_key: bytes | None) -> bytes:
        sharing_ = Driver(config(prefix_key=prefix_key)).scheduler._sharing
        assert sharing_ is not None
        keys: list[bytes] = []
        sharing_.index.extend_keys(keys, encode_salt(()), np.arange(4, dtype=np.int32), 1)
        return keys[0]

    assert key(None) != key(None)
    assert key(b"s" * 32) == key(b"s" * 32)


def test_without_prefix_caching_nothing_is_shared_or_kept() -> None:
    driver = Driver(config(prefix_caching=False))
    for i in range(2):
        driver.scheduler.add(request(i, ids(30), 3))
        driver.run()
    assert driver.cached == {(0, 0): 0, (1, 0): 0}
    assert driver.scheduler.stats().pages_cached == 0


def test_statistics_and_report_follow_the_pages() -> None:
    driver = large()
    prompt = ids(100)
    driver.scheduler.add(request(1, prompt, 50))
    driver.step()
    driver.scheduler.add(request(2, prompt, 50))
    driver.step()
    report, stats = driver.scheduler.memory_report(), driver.scheduler.stats()
    assert report.holders_total - report.pages_held == 24, "96 tokens are shared by two"
    assert report.pages_held == stats.pages_held == 26 + 1
    assert report.slots_filled == stats.slots_filled == 101 + 4
    assert report.waste_ratio == pytest.approx(1 - 105 / (27 * PAGE))
    assert sorted(report.depth[report.holders == 2].tolist()) == list(range(24))
    assert set(report.last_use[report.state == HELD].tolist()) == {0, 1}
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (200, 96, 105)
    driver.run()
    report = driver.scheduler.memory_report()
    assert report.pages_held == 0
    assert int((report.state == CACHED).sum()) == report.pages_cached == 149 // PAGE, "equal pages are kept once"
    assert driver.scheduler.stats().waste_ratio_mean < 0.05
