"""The loop around the scheduler on a virtual clock, and what it notes."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.scheduler import Scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.figures import Latencies, good, shortest_quarter
from octavo.simulate.load import Load
from octavo.simulate.machine import VirtualMachine
from octavo.simulate.replica import Replica, Timeline, prefixed_prompts, random_prompts, run_load


class Flat:
    """Every step takes a second; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        self.asked.append((tokens, sequences, context, pairs, samples))
        return 1.0


def replica(load: Load, **changes: object) -> tuple[Replica, Flat]:
    cost = Flat()
    fields: dict[str, object] = {"prefix_caching": False, **changes}
    config = SchedulerConfig(1000, 4, 64, 4, 1000, **fields)  # type: ignore[arg-type]
    return Replica(Scheduler(config), VirtualMachine(cost), Timeline.of(load.arrival_s), load), cost


def test_times_follow_from_the_cost_model() -> None:
    load = Load(np.array([0.0, 50.5, 100.0]), np.array([10, 20, 70]), np.array([3, 1, 2]))
    one, cost = replica(load)
    run_load(one, load, random_prompts(load, 100))
    line = one._timeline
    assert line.first_s.tolist() == [1.0, 51.5, 102.0]  # 70 tokens need two steps of 64
    assert line.finish_s.tolist() == [3.0, 51.5, 103.0]
    assert line.tokens.tolist() == [3, 1, 2]
    assert one.machine.now_s == 103.0
    assert cost.asked[0] == (10, 1, 10, 55, 1)
    assert cost.asked[1] == (1, 1, 11, 11, 1)
    assert cost.asked[4:6] == [(64, 1, 64, 64 * 65 // 2, 0), (6, 1, 70, 6 * 64 + 21, 1)]
    assert (one.open_requests, one.open_tokens) == (0, 0)


def test_a_client_that_stops_listening_ends_its_request_early() -> None:
    load = Load(np.zeros(1), np.array([10]), np.array([5]))
    one, _ = replica(load)
    run_load(one, load, random_prompts(load, 100), max_tokens=50)
    assert one._timeline.tokens.tolist() == [5]
    assert one._timeline.finish_s.tolist() == [5.0]
    assert not one.scheduler.has_work


def test_prompts_share_what_their_prefix_says() -> None:
    load = Load(np.zeros(4), np.array([100, 120, 100, 10]), np.ones(4, np.int64))
    prompt = prefixed_prompts(load, 1000, np.array([0, 0, 1, 1]), 64)
    assert np.array_equal(prompt(0)[:64], prompt(1)[:64])
    assert not np.array_equal(prompt(0)[64:80], prompt(1)[64:80])
    assert not np.array_equal(prompt(0)[:64], prompt(2)[:64])
    assert np.array_equal(prompt(2)[:9], prompt(3)[:9])
    assert len(prompt(3)) == 10


def test_latencies_are_of_what_is_done() -> None:
    line = Timeline(np.zeros(3), np.array([1.0, 2.0, np.nan]), np.array([3.0, 2.0, np.nan]), np.array([3, 1, 0]))
    found = Latencies.of(line)
    assert found.ttft_ms.p50 == pytest.approx(1500)
    assert found.tpot_ms.p50 == pytest.approx(1000)
    assert good(line, 1.5, 1.0).tolist() == [True, False, False]
    assert shortest_quarter(np.array([1, 5, 5, 9])).tolist() == [True, False, False, False]
