"""Admission, chunks, decodes, endings and preemption of the scheduler, on the fake executor."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.engine.driver import Driver, config, expected, request

from octavo.engine.params import ParamError
from octavo.engine.request import Finish


def test_one_request_gets_the_tokens_it_would_get_alone() -> None:
    driver = Driver(config())
    asked = request(1, 150, 20)
    driver.scheduler.add(asked)
    driver.run()
    assert driver.tokens[1, 0] == expected(asked.prompt.tolist(), 20)
    assert driver.finish[1, 0] == Finish.LENGTH
    assert [step.num_tokens_total for step in driver.steps[:3]] == [64, 64, 22]


@pytest.mark.parametrize("length", [0, 256, 1000])
def test_a_prompt_that_does_not_fit_is_refused(length: int) -> None:
    driver = Driver(config())
    with pytest.raises(ParamError) as error:
        driver.scheduler.add(request(1, length))
    assert error.value.param == "prompt"
    assert not driver.scheduler.has_work


def test_the_context_is_filled_to_its_end() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 255, None))
    driver.scheduler.add(request(2, 250, None))
    driver.run()
    assert [len(driver.tokens[i, 0]) for i in (1, 2)] == [1, 6]
    assert driver.finish[2, 0] == Finish.LENGTH


def test_all_pages_are_free_in_the_end_and_more_fit_in_the_batch_than_one() -> None:
    driver = Driver(config())
    for i in range(20):
        driver.scheduler.add(request(i, 5 + i, 10))
    driver.run()
    assert all(len(driver.tokens[i, 0]) == 10 for i in range(20))
    assert max(len(step.slots) for step in driver.steps) == 8
    assert driver.scheduler.stats().pages_held == 0


def test_aborted_sequences_are_gone_after_the_step() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 100, 50))
    driver.scheduler.add(request(2, 10, 5))
    step = driver.scheduler.schedule(0.0)
    assert step is not None
    result = driver.executor.execute(step)
    assert driver.scheduler.abort(1) == 1
    assert driver.scheduler.abort(1) == 0
    assert 1 not in driver.scheduler.apply(step, result, 0.0).request_ids
    driver.run()
    assert len(driver.tokens[2, 0]) == 5
    assert driver.scheduler.stats().pages_held == 0


def test_dc01_leaving_during_a_long_prefill_frees_its_pages_at_once() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 200, 50))
    for computed in (64, 128):
        driver.step()
        stats = driver.scheduler.stats()
        assert (stats.computed_tokens, stats.pages_held) == (computed, computed // 4)
    driver.scheduler.abort(1)
    assert driver.step() is None
    stats = driver.scheduler.stats()
    assert (stats.pages_held, stats.running, stats.waiting, stats.aborted) == (0, 0, 0, 1)
    driver.scheduler.add(request(1, 200, 50))
    driver.run()
    assert driver.cached[1, 0] == 128, "what was computed is not lost"


def test_preempted_sequences_go_on_with_the_same_tokens() -> None:
    driver = Driver(config(num_pages=64, max_num_seqs=16))
    asked = [request(i, 40, 60) for i in range(12)]
    for one in asked:
        driver.scheduler.add(one)
    driver.run()
    for one in asked:
        assert driver.tokens[one.request_id, 0] == expected(one.prompt.tolist(), 60)
    assert driver.scheduler.stats().preemptions > 0


def test_results_must_come_in_order() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 100, 2))
    step = driver.scheduler.schedule(0.0)
    assert step is not None
    result = driver.executor.execute(step)
    driver.scheduler.apply(step, result, 0.0)
    with pytest.raises(ValueError, match="not the oldest step"):
        driver.scheduler.apply(step, result, 0.0)


def test_columns_of_the_outputs_have_the_promised_types() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 3, 1))
    step = driver.scheduler.schedule(0.0)
    assert step is not None
    outputs = driver.scheduler.apply(step, driver.executor.execute(step), 0.0)
    types = [outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish, outputs.cached_tokens]
    assert [column.dtype for column in types] == [np.int64, np.int32, np.int32, np.uint8, np.int32]


def test_outputs_tell_how_long_a_request_waited_for_its_place() -> None:
    driver = Driver(config(max_num_seqs=1))
    driver.scheduler.add(request(1, 8, max_tokens=3))
    driver.scheduler.add(request(2, 8, max_tokens=1))
    queued: dict[int, list[float]] = {}
    while driver.scheduler.has_work:
        driver.now_s += 1.0
        step = driver.scheduler.schedule(driver.now_s)
        assert step is not None
        assert driver.executor is not None
        outputs = driver.scheduler.apply(step, driver.executor.execute(step), driver.now_s)
        for row, request_id in enumerate(outputs.request_ids.tolist()):
            queued.setdefault(request_id, []).append(float(outputs.queued_s[row]))
    assert queued == {1: [1.0, 1.0, 1.0], 2: [4.0]}


def test_the_same_history_gives_the_same_steps_whatever_the_prefix_key() -> None:
    def history(prefix_key: bytes | None) -> list[tuple[bytes, ...]]:
        rng = random.Random(3)
        driver = Driver(config(num_pages=64, max_num_seqs=6, prefix_key=prefix_key))
        shared = [rng.randrange(10, 900) for _ in range(100)]
        for i in range(60):
            prompt = shared[: rng.randrange(100)] + [rng.randrange(10, 900) for _ in range(rng.randrange(1, 40))]
            driver.scheduler.add(request(i, prompt, rng.randrange(1, 60), n=rng.choice([1, 1, 3]), seed=i))
            for _ in range(rng.randrange(6)):
                driver.step()
            if rng.random() < 0.2:
                driver.scheduler.abort(rng.randrange(i + 1))
        driver.run()
        assert driver.scheduler.stats().preemptions > 0
        columns = ("append_slots", "append_pages", "copies", "slots", "num_tokens", "num_computed", "sample")
        return [tuple(getattr(step, name).tobytes() for name in columns) for step in driver.steps]

    assert history(b"a" * 16) == history(None)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_a_step_of_decodes_that_is_timed_passes_over_the_first_prefill_only_once(policy: str) -> None:
    driver = Driver(config(max_num_seqs=5, max_num_batched_tokens=7, prefix_caching=False, policy=policy))
    lengths = random.Random(1)
    for index in range(60):
        driver.scheduler.add(request(index, lengths.choice([2, 3, 40]), lengths.choice([2, 5, 9]), ignore_eos=True))
    waits, most = 0, 0
    while driver.scheduler.has_work:
        before = driver.scheduler._slots.running()
        step = driver.step()
        assert step is not None
        kept = [s for s in before if s in driver.scheduler._slots.running()]
        first = min(kept, key=lambda s: s.rank, default=None)
        waits = 0 if first is None or first.slot in step.slots else waits + 1
        most = max(most, waits)
    assert most == 1
