"""Replicas behind routers."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.fleet import ROUTERS, Fleet, make_router
from octavo.simulate.machine import VirtualMachine
from octavo.simulate.report import Outcome, text
from octavo.simulate.scenario import EngineChoice, Traffic, analytic_machine


class RowCost:
    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        return 0.01 + 0.001 * tokens


CONFIG = SchedulerConfig(4096, 16, 256, 16, 4096, prefix_key=bytes(16))


def run(router: str, traffic: Traffic, replicas: int = 4) -> Fleet:
    work = traffic.build(CONFIG.max_model_len)
    fleet = Fleet(replicas, CONFIG, lambda number: VirtualMachine(RowCost()), work.load)
    assert fleet.run(make_router(router, fleet.replicas, work.prefix_of), work.prompt)
    return fleet


@pytest.mark.parametrize("router", ROUTERS)
def test_everyone_is_served_once_and_in_the_same_way_every_time(router: str) -> None:
    traffic = Traffic(count=200, rate=20, prompt_tokens=100, output_tokens=20, prefix_groups=8, prefix_tokens=64)
    one, two = run(router, traffic), run(router, traffic)
    assert one.timeline.done.all()
    assert np.array_equal(one.timeline.finish_s, two.timeline.finish_s)
    assert (one.timeline.first_s >= one.timeline.arrival_s).all()
    outcome = Outcome.of(one, True, 0.1)
    assert outcome.completed == 200
    assert "200 complete" in text(outcome)


def test_least_loaded_is_better_than_round_robin_with_uneven_requests() -> None:
    traffic = Traffic(count=300, rate=4, prompt_tokens=400, output_tokens=60)
    lines = [run(router, traffic).timeline for router in ("round-robin", "least-loaded")]
    means = [float((line.finish_s - line.arrival_s).mean()) for line in lines]
    assert means[1] < 0.95 * means[0]


def test_prefix_affinity_finds_more_in_the_caches() -> None:
    traffic = Traffic(count=300, rate=10, prompt_tokens=50, output_tokens=10, prefix_groups=40, prefix_tokens=512)
    shares = {router: run(router, traffic).cached_share for router in ROUTERS}
    assert shares["prefix-affine"] > shares["round-robin"] + 0.05


def test_a_fleet_that_is_stopped_says_so() -> None:
    work = Traffic(count=300).build(4096)
    fleet = Fleet(1, CONFIG, lambda number: VirtualMachine(RowCost()), work.load)
    assert not fleet.run(make_router("round-robin", fleet.replicas, work.prefix_of), work.prompt, stop=lambda _: True)


def test_an_analytic_machine_has_room_for_what_the_device_has() -> None:
    machine = analytic_machine("a100-80g", "llama-3-8b", 1, "bf16", 2.0)
    assert 400_000 < machine.kv_tokens < 450_000  # 72 GB less 16 GB, 131,072 bytes a token
    config = machine.config(EngineChoice())
    assert (config.max_model_len, config.page_size) == (8192, 16)
    with pytest.raises(ValueError, match="less than one sequence"):
        machine.config(EngineChoice(max_model_len=10_000_000))
