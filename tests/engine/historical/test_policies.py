"""Contiguous memory and static batches: the same tokens as ever, and the limits that made them history."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from tests.engine.driver import Driver, config, expected, request

from octavo.engine.historical.scheduler import HistoricalScheduler, make_scheduler
from octavo.engine.policies import BATCH_POLICIES, KV_POLICIES
from octavo.engine.scheduler import Scheduler

COMBINATIONS = [
    (kv, batch, padding)
    for kv in KV_POLICIES
    for batch in BATCH_POLICIES
    for padding in ((True, False) if batch == "static" else (True,))
    if (kv, batch) != ("paged", "continuous")
]


def driver(kv: str = "paged", batch: str = "continuous", padding: bool = True, **changes: object) -> Driver:
    return Driver(config(kv_policy=kv, batch_policy=batch, static_padding=padding, prefix_caching=False, **changes))


@pytest.mark.parametrize(("kv", "batch", "padding"), COMBINATIONS)
@pytest.mark.parametrize("seed", range(2))
def test_everyone_gets_its_tokens_whatever_the_policies(kv: str, batch: str, padding: bool, seed: int) -> None:
    rng = random.Random(seed)
    run = driver(kv, batch, padding, num_pages=rng.choice([64, 70, 128]), page_size=4)
    asked, aborted = {}, set()
    for i in range(24):
        fields = {"n": rng.choice([1, 1, 1, 3]), "ignore_eos": rng.random() < 0.5}
        asked[i] = request(i, rng.randint(1, 120), rng.choice([1, 2, 10, 60, None]), **fields)
    waiting = list(asked.values())
    while waiting or run.scheduler.has_work:
        for _ in range(min(len(waiting), rng.choice([0, 0, 1, 5]))):
            run.scheduler.add(waiting.pop(0))
        if rng.random() < 0.02:
            victim = rng.randrange(24)
            if run.scheduler.abort(victim):
                aborted.add(victim)
        run.step()
        run.scheduler.check()
        stats = run.scheduler.stats()
        assert stats.slots_filled <= stats.slots_held <= run.config.num_pages * 4
    for i, one in asked.items():
        for choice in range(one.params.n):
            tokens = run.tokens.get((i, choice), [])
            assert tokens == expected(one.prompt.tolist(), len(tokens), choice=choice)
            assert i in aborted or (i, choice) in run.finish
    stats = run.scheduler.stats()
    assert (stats.pages_held, stats.running, stats.waiting, stats.slots_filled) == (0, 0, 0, 0)
    assert stats.generated_tokens == sum(map(len, run.tokens.values()))


@pytest.mark.parametrize("kv", ["contiguous", "contiguous-limit", "buddy"])
def test_a_sequence_lies_in_consecutive_pages(kv: str) -> None:
    run = driver(kv)
    for i in range(20):
        run.scheduler.add(request(i, 5 + 3 * i, 30))
    while run.step() is not None:
        for sequence in run.executor.slots:
            assert sequence is None or all(b == a + 1 for a, b in pairwise(sequence.pages))


def test_contiguous_reserves_the_longest_length_there_is() -> None:
    run = driver("contiguous", num_pages=128, page_size=4, max_model_len=100)  # 25 pages each
    for i in range(8):
        run.scheduler.add(request(i, 5, 3))
    run.step()
    assert run.scheduler.stats().running == 5
    assert run.scheduler.stats().slots_held == 500
    assert run.scheduler.stats().slots_filled == 25
    occupancy = run.scheduler.occupancy()
    assert occupancy.held.tolist() == [100] * 5
    assert occupancy.filled.tolist() == [5] * 5
    assert occupancy.memory_refused
    run.run()
    assert len(run.finish) == 8


def test_contiguous_limit_reserves_prompt_and_max_tokens() -> None:
    run = driver("contiguous-limit", num_pages=128, page_size=4)
    run.scheduler.add(request(0, 9, 12))
    run.step()
    assert run.scheduler.stats().slots_held == 24  # 21 tokens in whole pages


def test_contiguous_limit_leaves_holes_that_fit_nobody() -> None:
    run = driver("contiguous-limit", num_pages=24, page_size=4, max_model_len=96)
    run.scheduler.add(request(0, 31, 1))  # 32 slots at the beginning, soon free
    run.scheduler.add(request(1, 17, 15, ignore_eos=True))  # 32 slots in the middle
    run.step()
    run.scheduler.add(request(2, 40, 24))  # 64 slots, as many as are free
    run.step()
    assert run.scheduler.stats().slots_held == 32
    assert run.scheduler.stats().waiting == 1
    assert run.scheduler.occupancy().memory_refused
    run.run()


def test_buddy_doubles_and_copies() -> None:
    run = driver("buddy", num_pages=128, page_size=4)
    run.scheduler.add(request(0, 4, 60))
    run.run()
    copies = [len(step.copies) for step in run.steps]
    assert [count for count in copies if count] == [1, 2, 4, 8]
    assert run.tokens[0, 0] == expected(request(0, 4).prompt.tolist(), 60)


def test_buddy_preempts_when_there_is_no_larger_region() -> None:
    run = driver("buddy", num_pages=64, page_size=4)
    for i in range(8):
        run.scheduler.add(request(i, 30, 40))
    run.run()
    assert run.scheduler.stats().preemptions > 0
    assert all(run.tokens[i, 0] == expected(request(i, 30).prompt.tolist(), 40) for i in range(8))


def test_a_lone_sequence_may_fill_the_whole_buddy_pool() -> None:
    run = driver("buddy", num_pages=64, page_size=4, max_model_len=256)
    run.scheduler.add(request(0, 100, None, ignore_eos=True))
    run.run()
    assert len(run.tokens[0, 0]) == 156


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("kv", KV_POLICIES)
def test_nobody_enters_a_static_batch_before_all_have_finished(kv: str, padding: bool) -> None:
    run = driver(kv, "static", padding, num_pages=512, max_num_seqs=4, max_num_batched_tokens=16)
    for i in range(10):
        run.scheduler.add(request(i, 10, 2 + 3 * (i % 4), ignore_eos=True))
    run.run()
    finished_at = {key[0]: times[-1] for key, times in run.times.items()}
    ended = sorted(finished_at, key=lambda i: finished_at[i])
    assert set(ended[:4]) == {0, 1, 2, 3}
    assert set(ended[4:8]) == {4, 5, 6, 7}
    first = {i: run.times[i, 0][0] for i in range(10)}
    assert min(first[i] for i in (4, 5, 6, 7)) > max(finished_at[i] for i in range(4))


def test_all_prompts_of_a_static_batch_are_computed_before_the_first_decode() -> None:
    run = driver("paged", "static", max_num_seqs=4, max_num_batched_tokens=16)
    for i in range(4):
        run.scheduler.add(request(i, 20, 5, ignore_eos=True))
    run.run()
    decodes = [bool((step.num_computed >= 20).any()) for step in run.steps]
    chunks = [bool((step.num_computed < 20).any()) for step in run.steps]
    assert decodes.index(True) > max(i for i, chunk in enumerate(chunks) if chunk)


def test_padding_computes_rows_that_have_finished_and_dropping_does_not() -> None:
    rows = {}
    for padding in (True, False):
        run = driver("contiguous", "static", padding, max_num_seqs=4, num_pages=512)
        for i, count in enumerate([1, 2, 30]):
            run.scheduler.add(request(i, 10, count, ignore_eos=True))
        run.run()
        rows[padding] = sum(len(step.slots) for step in run.steps)
        assert (run.executor.padding_rows or 0) == (57 if padding else 0)  # 29 and 28 steps
    assert rows[True] == rows[False] + 57


def test_padding_outlasts_the_room_of_the_token_row() -> None:
    run = driver("contiguous", "static", max_model_len=20, max_num_seqs=2, num_pages=512)
    run.scheduler.add(request(0, 18, 1, ignore_eos=True))
    run.scheduler.add(request(1, 2, 18, ignore_eos=True))
    run.run()
    for step in run.steps:
        drawn = dict(zip(step.slots.tolist(), step.sample.tolist(), strict=True))
        assert drawn
    sampled = sum(int(step.sample[step.slots == 0].sum()) for step in run.steps)
    assert sampled <= 3  # its own token, and two for which a row of 21 has room


def test_finished_rows_give_way_when_pages_are_short() -> None:
    run = driver("paged", "static", num_pages=64, page_size=4, max_num_seqs=8)
    for i in range(8):
        run.scheduler.add(request(i, 20, 1 if i < 4 else 60, ignore_eos=True))
    run.run()
    assert all(run.tokens[i, 0] == expected(request(i, 20).prompt.tolist(), 1 if i < 4 else 60) for i in range(8))


def test_the_defaults_are_the_plain_scheduler() -> None:
    assert type(make_scheduler(config())) is Scheduler
    assert type(make_scheduler(config(kv_policy="buddy", prefix_caching=False))) is HistoricalScheduler


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_policy": "slab"}, "kv_policy is 'slab'; it must be one of paged, contiguous, contiguous-limit, buddy"),
        ({"batch_policy": "dynamic"}, "batch_policy is 'dynamic'; it must be one of continuous, static"),
        ({"kv_policy": "contiguous", "prefix_caching": True}, "turn it off"),
        ({"kv_policy": "buddy", "num_pages": 100, "max_model_len": 300}, "power of two"),
    ],
)
def test_a_config_that_can_not_work_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**{"prefix_caching": False, **changes})


def test_reports_name_live_and_finished_rows_apart() -> None:
    run = driver("contiguous", "static", max_model_len=40, num_pages=128, max_num_seqs=4)
    for i, count in enumerate([1, 10]):
        run.scheduler.add(request(i, 10, count, ignore_eos=True))
    run.step()
    run.step()
    occupancy = run.scheduler.occupancy()
    assert occupancy.request_ids.tolist() == [1]
    assert occupancy.held.tolist() == [40]
    assert occupancy.finished_slots == 40
    assert run.scheduler.stats().running == 1
    assert np.array_equal(occupancy.filled, [11])
