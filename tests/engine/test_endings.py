"""When a sequence ends: eos, stop ids, limits, resumed output; and sequences that share one prompt (n > 1)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.driver import EOS, Driver, config, expected, request
from tests.engine.fake_executor import FakeExecutor

from octavo.engine.params import ParamError
from octavo.engine.request import Finish


def scripted(script: list[int], **changes: object) -> Driver:
    """A driver whose model says these tokens, by position behind a prompt of 4."""
    driver = Driver(config(**changes))
    driver.executor.next_token = lambda tokens, seed, choice: script[len(tokens) - 4]
    return driver


def test_the_end_token_is_given_and_ends_the_answer() -> None:
    driver = scripted([10, 11, 5, 12])
    driver.scheduler.add(request(1, 4, 10))
    driver.run()
    assert driver.tokens[1, 0] == [10, 11, 5]
    assert driver.finish[1, 0] == Finish.STOP


def test_an_end_token_as_the_last_allowed_one_is_a_stop() -> None:
    driver = scripted([10, 5])
    driver.scheduler.add(request(1, 4, 2))
    driver.run()
    assert driver.finish[1, 0] == Finish.STOP


def test_ignore_eos() -> None:
    driver = scripted([3, 5, 3, 11])
    driver.scheduler.add(request(1, 4, 4, ignore_eos=True))
    driver.run()
    assert driver.tokens[1, 0] == [3, 5, 3, 11]
    assert driver.finish[1, 0] == Finish.LENGTH


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids(ignore_eos: bool) -> None:
    driver = scripted([10, 42, 11])
    driver.scheduler.add(request(1, 4, 3, stop_token_ids=(42,), ignore_eos=ignore_eos))
    driver.scheduler.add(request(2, 4, 3, ignore_eos=ignore_eos))
    driver.run()
    assert driver.tokens[1, 0] == [10, 42]
    assert driver.finish[1, 0] == Finish.STOP
    assert driver.tokens[2, 0] == [10, 42, 11]


def test_min_tokens_holds_for_end_and_stop_tokens() -> None:
    driver = scripted([42, 42, 42, 42, 42])
    driver.scheduler.add(request(1, 4, 5, stop_token_ids=(42,), min_tokens=3))
    driver.run()
    assert driver.tokens[1, 0] == [42, 42, 42]
    assert driver.finish[1, 0] == Finish.STOP


def test_min_tokens_with_an_executor_that_does_not_ban_the_end_token() -> None:
    driver = scripted([5, 5, 5, 5, 5])
    driver.executor.eos_ids = frozenset()
    driver.scheduler.add(request(1, 4, 5, min_tokens=3))
    driver.run()
    assert driver.tokens[1, 0] == [5, 5, 5]


def test_an_end_token_beyond_all_known_ids_is_no_index_error() -> None:
    driver = scripted([900, max(EOS) + 1, 2**31 - 1])
    driver.scheduler.add(request(1, 4, 3))
    driver.run()
    assert driver.finish[1, 0] == Finish.LENGTH


def test_a_resumed_request_goes_on_where_it_was() -> None:
    prompt = [20, 21, 22, 23, 24]
    answer = expected(prompt, 12, seed=9, choice=2)
    driver = Driver(config())
    driver.scheduler.add(request(1, prompt, 12, seed=9, choice=2, output=tuple(answer[:7])))
    driver.run()
    assert driver.tokens[1, 2] == answer[7:]
    assert driver.finish[1, 2] == Finish.LENGTH


def test_what_cannot_be_resumed_is_refused() -> None:
    driver = Driver(config())
    with pytest.raises(ParamError, match="at its limit") as error:
        driver.scheduler.add(request(1, 5, 3, output=(10, 11, 12)))
    assert error.value.param == "output"
    with pytest.raises(ValueError, match="must have n = 1"):
        driver.scheduler.add(request(1, 5, 3, output=(10,), n=2))
    driver.scheduler.add(request(1, 5, 3))
    with pytest.raises(ValueError, match="in use"):
        driver.scheduler.add(request(1, 5, 3))


@pytest.mark.parametrize("prompt_len", [1, 2, 4, 5, 9, 150])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_choices_share_one_prefill(prompt_len: int, prefix_caching: bool) -> None:
    driver = Driver(config(prefix_caching=prefix_caching))
    asked = request(1, prompt_len, 6, n=4, seed=3)
    driver.scheduler.add(asked)
    driver.run()
    for choice in range(4):
        assert driver.tokens[1, choice] == expected(asked.prompt.tolist(), 6, seed=3, choice=choice)
    assert driver.executor.tokens_fed == prompt_len - 1 + 4 + 4 * 5
    stats = driver.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (prompt_len, 0)


def test_choices_that_come_later_for_want_of_slots_fork_a_running_one() -> None:
    driver = Driver(config(max_num_seqs=2, prefix_caching=False))
    asked = request(1, 50, 6, n=5)
    driver.scheduler.add(asked)
    driver.run()
    for choice in range(5):
        assert driver.tokens[1, choice] == expected(asked.prompt.tolist(), 6, choice=choice)
    assert driver.executor.tokens_fed < 3 * 50 + 5 * 6


def test_a_fork_copies_the_open_page_and_nothing_else() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 11, 3, n=2))
    driver.step()
    step = driver.step()
    assert step is not None
    assert step.copies[:, 1].tolist() == [2], "10 of 11 tokens are shared: two pages and half of the third"
    assert step.starts[0].pages[2] == step.copies[0, 2]
    report = driver.scheduler.memory_report()
    assert sorted(report.holders[report.holders > 0].tolist()) == [1, 1, 2, 2]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_when_the_first_choice_is_gone_the_others_go_on(prefix_caching: bool) -> None:
    driver = Driver(config(prefix_caching=prefix_caching))
    asked = request(1, 150, 6, n=3)
    driver.scheduler.add(asked)
    driver.step()
    driver.scheduler.abort(1, 0)
    driver.run()
    assert set(driver.finish) == {(1, 1), (1, 2)}
    assert driver.tokens[1, 2] == expected(asked.prompt.tolist(), 6, choice=2)


def test_a_choice_can_be_aborted_before_it_has_begun() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 150, 6, n=3))
    driver.step()
    driver.scheduler.abort(1, 1)
    driver.run()
    assert set(driver.finish) == {(1, 0), (1, 2)}


def test_a_choice_that_a_stop_string_ended_does_not_count_as_aborted() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 10, 50, n=2))
    driver.step()
    driver.scheduler.abort(1, 0)
    assert driver.scheduler.stats().aborted == 0
    driver.scheduler.abort(1)
    assert driver.scheduler.stats().aborted == 1


def test_a_failed_step_ends_what_it_carried_and_nothing_else() -> None:
    driver = Driver(config(max_num_seqs=1))
    driver.scheduler.add(request(1, 10, 5))
    driver.scheduler.add(request(2, 10, 5))
    step = driver.scheduler.schedule(0.0)
    assert step is not None
    outputs = driver.scheduler.fail(step)
    assert outputs.request_ids.tolist() == [1]
    assert outputs.finish.tolist() == [Finish.ERROR]
    assert outputs.tokens.tolist() == [-1]
    driver.executor = FakeExecutor(128, 4, 1, 64, EOS)
    driver.executor.execute(step)
    driver.run()
    assert set(driver.finish) == {(2, 0)}
    with pytest.raises(ValueError, match="not the oldest step"):
        driver.scheduler.fail(step)


def test_a_result_with_too_few_tokens_is_refused() -> None:
    driver = Driver(config())
    driver.scheduler.add(request(1, 10, 5))
    step = driver.scheduler.schedule(0.0)
    assert step is not None
    result = driver.executor.execute(step)
    short = type(result)(result.step_id, np.empty((0, 1), np.int32), np.empty(0, np.int32), 0.0, 0.0)
    with pytest.raises(ValueError, match="0 tokens for 1 samples"):
        driver.scheduler.apply(step, short, 0.0)
