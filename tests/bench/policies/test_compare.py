"""The comparison of policies on a cost model: what it counts, and how it is reported."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.bench.policies.observe import KINDS
from octavo.bench.policies.page_sizes import RowCost, waste_by_page_size
from octavo.bench.policies.report import Comparison, ratios, text
from octavo.bench.policies.run import ALL, Combination, Outcome, run_combination
from octavo.bench.policies.workload import PolicyWork, build
from octavo.bench.workload import Workload
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.load import Load
from octavo.simulate.machine import VirtualMachine
from octavo.simulate.replica import random_prompts

CONFIG = SchedulerConfig(1024, 64, 256, 4, 8 * 256, prefix_caching=False)


def work(count: int = 48) -> PolicyWork:
    rng = np.random.default_rng(1)
    load = Load(np.zeros(count), rng.integers(8, 100, count), rng.integers(8, 128, count))
    return PolicyWork(load, random_prompts(load, 1000), "random")


def outcome(combination: Combination, asked: PolicyWork, config: SchedulerConfig = CONFIG) -> Outcome:
    return run_combination(
        combination,
        config,
        lambda: VirtualMachine(RowCost()),
        asked.load,
        asked.prompt,
        128,
        lambda name, done, total: None,
    )


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {one.name: outcome(one, work()) for one in ALL}


def test_every_combination_serves_everybody(outcomes: dict[str, Outcome]) -> None:
    for one in outcomes.values():
        assert one.complete
        assert one.completed == one.requests == 48
        assert len(one.lanes) == 48 + one.preemptions
        assert all(lane.begin_s <= lane.first_s <= lane.finish_s <= lane.end_s for lane in one.lanes)


def test_the_kinds_of_memory_add_up(outcomes: dict[str, Outcome]) -> None:
    for one in outcomes.values():
        shares = np.array(one.observer.samples.shares)
        assert shares.min() >= 0
        assert shares.sum(axis=1) == pytest.approx(1)
        assert sum(one.shares[kind] for kind in KINDS) == pytest.approx(1)


def test_what_the_policies_are_known_for(outcomes: dict[str, Outcome]) -> None:
    contiguous, paged = outcomes["contiguous; continuous"], outcomes["paged; continuous"]
    assert contiguous.running_peak == 8
    assert paged.running_peak >= 5 * 8
    assert contiguous.waste_of_held > 0.7
    assert paged.waste_of_held < 0.05
    assert paged.shares["external"] == 0
    assert paged.shares["internal"] < 0.001  # ends of last pages
    padded, dropped = outcomes["contiguous; static, padded"], outcomes["contiguous; static, dropped"]
    assert padded.padding_rows_share > 0.1
    assert dropped.padding_rows_share == 0
    assert padded.duration_s > dropped.duration_s > contiguous.duration_s
    limit, buddy = (
        outcomes["contiguous, prompt + max_tokens; continuous"],
        outcomes["contiguous, buddy growth; continuous"],
    )
    assert paged.waste_of_held < buddy.waste_of_held < contiguous.waste_of_held
    assert paged.waste_of_held < limit.waste_of_held < contiguous.waste_of_held
    assert limit.running_peak > contiguous.running_peak


def test_external_waste_is_free_memory_that_fits_nobody() -> None:
    odd = replace(CONFIG, num_pages=8 * 256 + 200)  # 200 pages more than eight sequences can have
    found = outcome(Combination("contiguous", "continuous"), work(), odd)
    shares = np.array(found.observer.samples.shares)
    assert shares[:, KINDS.index("external")].max() == pytest.approx(200 / (8 * 256 + 200))


def test_the_report_has_the_ratios_and_the_json_all_of_it(outcomes: dict[str, Outcome]) -> None:
    comparison = Comparison({"model": "m"}, [list(outcomes.values())], page_sizes={4: 0.01}, complete=True)
    shown = text(comparison)
    assert "contiguous, buddy growth; continuous" in shown
    assert "sequences at once, paged / contiguous" in shown
    assert "INTERRUPTED" not in shown
    content = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert content["complete"]
    assert len(content["outcomes"]) == len(ALL)
    assert content["outcomes"][0]["over_time"]["shares"].keys() == set(KINDS)
    assert ratios(comparison.outcomes)["sequences at once, paged / contiguous"] >= 5
    comparison.complete = False
    assert "INTERRUPTED" in text(comparison)


def test_of_several_rounds_the_run_of_median_throughput_counts(outcomes: dict[str, Outcome]) -> None:
    paged, static = outcomes["paged; continuous"], outcomes["paged; static, padded"]
    speeds = [(300.0, 100.0), (100.0, 100.0), (200.0, 50.0)]
    rounds = [
        [replace(paged, output_tokens_per_s=fast), replace(static, output_tokens_per_s=slow)] for fast, slow in speeds
    ]
    comparison = Comparison({}, rounds, complete=True)
    assert [one.output_tokens_per_s for one in comparison.outcomes] == [200, 100]
    name = "throughput, continuous / padded static (paged)"
    assert comparison.ratios[name] == [3, 1, 4]
    assert f"   3.00  {name} (1.00 to 4.00)" in text(comparison)
    content = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert (content["ratios"][name], content["ratios_by_round"][name]) == (3, [3, 1, 4])
    assert [one["output_tokens_per_s"] for one in content["rounds"][2]] == [200, 50]


def test_a_run_cut_short_is_shown_only_where_there_is_no_whole_one(outcomes: dict[str, Outcome]) -> None:
    paged, static = outcomes["paged; continuous"], outcomes["paged; static, padded"]
    cut = replace(paged, complete=False, output_tokens_per_s=1e6)
    assert Comparison({}, [[paged, static], [cut]]).outcomes == [paged, static]
    assert Comparison({}, [[static, cut]]).outcomes == [static, cut]


def test_an_interrupted_run_is_marked_and_keeps_what_it_had() -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    asked = work()
    found = run_combination(
        Combination("paged", "continuous"),
        CONFIG,
        lambda: VirtualMachine(RowCost()),
        asked.load,
        asked.prompt,
        128,
        interrupt,
    )
    assert not found.complete
    assert 10 < found.completed < 48
    json.dumps(found.to_json(), allow_nan=False)


def test_a_run_interrupted_before_anybody_had_ended_is_reported_too() -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    asked = work()
    found = [
        run_combination(one, CONFIG, lambda: VirtualMachine(RowCost()), asked.load, asked.prompt, 128, interrupt)
        for one in (
            Combination("contiguous", "static"),
            Combination("paged", "static"),
            Combination("paged", "continuous"),
        )
    ]
    assert not any(one.completed for one in found)
    comparison = Comparison({}, [found])
    json.dumps(comparison.to_json(), allow_nan=False)
    assert "INTERRUPTED" in text(comparison)


def test_waste_grows_with_the_page_size() -> None:
    waste = waste_by_page_size(CONFIG, work(), 128, (4, 16, 64))
    assert waste[4] < waste[16] < waste[64]


@pytest.mark.parametrize("text", ["paged", "slab/static", "paged/dynamic", "paged/static/x", ""])
def test_unknown_combinations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be KV/BATCH"):
        Combination.parse(text)


def test_a_trace_is_stretched_and_clipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,50,5\n10,5000,5\n20,10,2000\n")
    found = build(Workload(10, dataset=str(path)), "unused", 1000, 1024, 1.0)
    assert found.load.arrival_s.tolist() == [0, 1, 2]
    assert found.load.prompt_tokens.tolist() == [50, 1023, 10]
    assert "2 clipped" in found.text
    alike = build(Workload(10, dataset=str(path)), "unused", 1000, 1024, math.inf)
    assert alike.load.arrival_s.tolist() == [0, 10, 20]
