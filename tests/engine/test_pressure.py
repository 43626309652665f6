"""Too few pages, too few slots, and clients that leave. CASES PC-05, SC-01, SC-02, SC-04."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.engine.driver import Driver, config, expected, request

from octavo.engine.request import Finish
from octavo.engine.scheduler import SchedulerConfig


def test_a_pool_smaller_than_one_sequence_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="less than one sequence of max_model_len 2048; lower max_model_len or give"):
        config(max_model_len=2048, page_size=16, num_pages=32)


def test_a_request_as_large_as_the_pool_runs_to_the_end_of_its_context_while_others_are_served() -> None:
    driver = Driver(config(max_model_len=512, page_size=16, num_pages=32))
    driver.scheduler.add(request(1, 300, 1000, ignore_eos=True))
    for i in range(2, 6):
        driver.scheduler.add(request(i, 20, 10))
    driver.run()
    assert len(driver.tokens[1, 0]) == 212
    assert driver.finish[1, 0] == Finish.LENGTH
    assert all(len(driver.tokens[i, 0]) == 10 for i in range(2, 6))


def test_a_nearly_full_pool_makes_progress_with_few_preemptions() -> None:
    driver = Driver(config(max_model_len=512, max_num_seqs=16, max_num_batched_tokens=128, page_size=16, num_pages=40))
    asked = [request(i, 100, 200, ignore_eos=True) for i in range(32)]
    for one in asked:
        driver.scheduler.add(one)
    most, preemptions = 0, 0
    while driver.step() is not None:
        running = driver.scheduler._slots.running()
        most = max(most, len(running))
        stats = driver.scheduler.stats()
        assert stats.steps == len(driver.steps)
        assert stats.preemptions - preemptions <= 2
        preemptions = stats.preemptions
    for one in asked:
        assert driver.tokens[one.request_id, 0] == expected(one.prompt.tolist(), 200)
    assert most > 2, "the pool is used, not reserved"
    assert 0 < preemptions <= 3 * len(asked)
    useful = 32 * 300
    assert driver.executor.tokens_fed < 1.3 * useful


def test_the_oldest_is_never_preempted_for_a_younger_one() -> None:
    driver = Driver(config(max_model_len=128, page_size=4, num_pages=40, max_num_seqs=8))
    for i in range(8):
        driver.scheduler.add(request(i, 30, 90, ignore_eos=True, arrival_s=float(i)))
    driver.run()
    ends = [driver.times[i, 0][-1] for i in range(8)]
    assert ends == sorted(ends)
    gaps = np.diff(driver.times[0, 0])
    assert gaps.max() < 0.0015, "the first one decodes in every step"
    assert driver.scheduler.stats().preemptions > 0


def test_priority_decides_who_is_preempted() -> None:
    driver = Driver(config(max_model_len=128, page_size=4, num_pages=40, policy="priority"))
    driver.scheduler.add(request(1, 40, 80, priority=1, ignore_eos=True, arrival_s=0.0))
    driver.scheduler.add(request(2, 40, 80, priority=0, ignore_eos=True, arrival_s=1.0))
    driver.run()
    assert driver.scheduler.stats().preemptions > 0
    assert driver.times[2, 0][-1] < driver.times[1, 0][-1]
    assert np.diff(driver.times[2, 0]).max() < 0.0015


def test_every_page_is_free_or_cached_after_500_aborts_at_random_moments() -> None:
    rng = random.Random(5)
    driver = Driver(config(max_model_len=256, page_size=8, num_pages=64, max_num_seqs=6))
    shared = [rng.randrange(10, 900) for _ in range(60)]
    live: list[int] = []
    for i in range(500):
        prompt = shared[: rng.randrange(1, 60)] + [rng.randrange(10, 900) for _ in range(rng.randrange(1, 150))]
        driver.scheduler.add(request(i, prompt, rng.randrange(1, 40), n=rng.choice([1, 1, 3]), seed=i))
        live.append(i)
        for _ in range(rng.randrange(3)):
            driver.step()
        while len(live) > rng.randrange(12):
            victim = live.pop(rng.randrange(len(live)))
            step = driver.scheduler.schedule(driver.now_s) if rng.random() < 0.3 else None
            driver.scheduler.abort(victim)
            if step is not None:
                driver.scheduler.apply(step, driver.executor.execute(step), driver.now_s)
        driver.scheduler.check()
    for i in live:
        driver.scheduler.abort(i)
    assert not driver.scheduler.has_work
    stats = driver.scheduler.stats()
    assert stats.running == stats.waiting == stats.pages_held == 0
    assert driver.scheduler.pool.available == 64
    assert stats.aborted > 300
    driver.scheduler.check()
    probe = request(1000, 30, 20)
    driver.scheduler.add(probe)
    driver.run()
    assert driver.tokens[1000, 0] == expected(probe.prompt.tolist(), 20)


def arriving(driver: Driver, number: int, until: float, every: float, **fields: object) -> None:
    """Short requests, with ids from `number` on, keep coming while the driver runs."""
    due = driver.now_s
    while driver.now_s < until:
        while due <= driver.now_s:
            driver.scheduler.add(request(number, 20, 30, arrival_s=due, ignore_eos=True, **fields))  # type: ignore[arg-type]
            number += 1
            due += every
        driver.step()


@pytest.mark.parametrize(("policy", "priority"), [("fcfs", 0), ("priority", 5), ("fair", 0)])
def test_a_long_prompt_begins_in_bounded_time_while_slots_are_saturated(policy: str, priority: int) -> None:
    driver = Driver(
        SchedulerConfig(2048, 4, 64, 8, 300, policy=policy, ageing_s=0.5, prefix_key=b"0" * 16), lambda step: 0.01
    )
    arriving(driver, 1000, 1.0, 0.05, salt=(("tenant", "crowd"),))
    begin = driver.now_s
    driver.scheduler.add(request(1, 1500, 1, arrival_s=begin, priority=priority, salt=(("tenant", "one"),)))
    arriving(driver, 2000, begin + 8.0, 0.05, salt=(("tenant", "crowd"),))
    assert (1, 0) in driver.tokens


def test_nobody_enters_a_step_that_has_no_token_left_for_him() -> None:
    """He would hold a slot for nothing, and all behind him with him."""
    fields: dict[str, object] = {"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 256}
    driver = Driver(config(**fields, num_pages=4096), lambda step: 0.03 + 0.0007 * step.num_tokens_total)
    driver.scheduler.add(request(1, 20, 400, ignore_eos=True))
    for _ in range(20):
        driver.step()
    for i in range(2, 42):
        driver.scheduler.add(request(i, 30 + 7 * i % 50, 20, ignore_eos=True))
    entered = 0
    while driver.scheduler.stats().waiting:
        step = driver.step()
        assert step is not None
        assert {start.slot for start in step.starts} <= set(step.slots.tolist())
        entered = max(entered, len(step.starts))
    assert 1 < entered < 8
    driver.run()


def test_one_that_does_not_fit_is_passed_only_a_bounded_number_of_times() -> None:
    """Small requests may use pages that are too few for a large one, but it does not wait for ever."""
    driver = Driver(config(max_model_len=256, page_size=4, num_pages=64, max_num_seqs=8, prefix_caching=False))
    driver.scheduler.add(request(1, 100, 100, ignore_eos=True))
    driver.step()
    driver.scheduler.add(request(2, 200, 5))
    number, passed = 10, 0
    while (2, 0) not in driver.tokens:
        if driver.scheduler.stats().waiting < 3:
            driver.scheduler.add(request(number, 5, 20, ignore_eos=True))
            number += 1
        driver.step()
        passed = sum(1 for key in driver.tokens if key[0] >= 10)
    assert passed >= 8, "small ones are not stopped by a large one"
    assert passed <= 40
    driver.run()
