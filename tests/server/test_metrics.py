"""/metrics: the names that dashboards read, and numbers that add up (CASES ME-02)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.harness import Served, until

from octavo import ipc
from octavo.server.metrics import Metrics
from octavo.server.prometheus import Counter, Gauge, Histogram, render

READ_BY_DASHBOARDS = [
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("prompt_tokens", "generation_tokens", "request_success", "num_preemptions", "prefix_cache_queries"),
    *("prefix_cache_hits", "time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("time_per_output_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_decode_time_seconds", "request_params_n", "request_queue_time_seconds"),
    *("request_prefill_time_seconds", "request_inference_time_seconds"),
    *("iteration_tokens_total", "kv_waste_ratio", "forward_seconds", "step_overhead_seconds"),
]


def scrape(served: Served) -> dict[str, dict[str, float]]:
    """Family -> sample with its labels -> value, by the official parser."""
    page = served.get("/metrics").body.decode()
    return {
        family.name: {f"{sample.name}{sorted(sample.labels.items())}": sample.value for sample in family.samples}
        for family in text_string_to_metric_families(page)
    }


def test_every_name_is_there_with_the_model(served: Served) -> None:
    served.complete(max_tokens=2)
    found = scrape(served)
    assert not [name for name in READ_BY_DASHBOARDS if f"vllm:{name}" not in found]
    for samples in found.values():
        assert all("('model_name', " in sample for sample in samples)


def test_histograms_add_up(served: Served) -> None:
    served.complete(max_tokens=5)
    page = served.get("/metrics").body.decode()
    for family in text_string_to_metric_families(page):
        if family.type != "histogram":
            continue
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
        values = [sample.value for sample in buckets]
        assert values == sorted(values)
        assert buckets[-1].labels["le"] == "+Inf"
        assert values[-1] == count
        if family.name.endswith("seconds"):
            assert float(buckets[0].labels["le"]) < 0.001
            assert float(buckets[-2].labels["le"]) >= 60


def test_a_request_counts_once_whatever_its_n(served: Served) -> None:
    def counts() -> list[float]:
        names = [
            "request_prompt_tokens_count",
            "prompt_tokens_total",
            "generation_tokens_total",
            "e2e_request_latency_seconds_count",
        ]
        return [*map(served.metric, names), served.metric("request_success_total", finished_reason="length")]

    served.complete("ab", max_tokens=1)
    before = counts()
    served.complete("abcd", n=3, max_tokens=5)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 4, 15, 1, 1]


def test_me02_counters_are_monotone_over_an_engine_restart(model: Path) -> None:
    with Served(model, "--step-ms", "1") as one:
        one.complete(max_tokens=50)
        until(lambda: one.metric("engine_steps_total") == 50)
        before = scrape(one)
        os.kill(one.engine_pid, signal.SIGKILL)
        one.wait_for_log("ready after", count=2)
        one.complete(max_tokens=3)
        until(lambda: one.metric("engine_steps_total") == 53)
        after = scrape(one)
        for name, samples in before.items():
            for sample, value in samples.items():
                if sample.split("[")[0].endswith(("_total", "_count", "_sum", "_bucket")):
                    assert after[name][sample] >= value, sample
        assert one.metric("engine_restarts_total") == 1


def test_the_prefix_can_be_set(model: Path) -> None:
    with Served(model, server={"metrics_prefix": "octavo_", "served_model_name": ['a "b"\\c']}) as one:
        page = one.get("/metrics").body.decode()
        assert r'octavo_num_requests_running{model_name="a \"b\"\\c"} 0' in page
        assert "vllm:" not in page


def stats(generation: int, **fields: Any) -> ipc.Stats:
    values = dict.fromkeys(ipc.Stats.__struct_fields__, 0) | {"generation": generation, "step_tokens": []} | fields
    return ipc.Stats(**values)


def test_engine_totals_survive_and_never_shrink() -> None:
    metrics = Metrics("m", "")

    def steps() -> str:
        return next(line for line in metrics.render().decode().splitlines() if line.startswith("engine_steps_total{"))

    metrics.engine_stats(stats(1, steps=10))
    metrics.engine_stats(stats(1, steps=12))
    metrics.engine_gone()
    assert steps().endswith(" 12")
    metrics.engine_stats(stats(2, steps=5))
    metrics.engine_stats(stats(2, steps=6))
    assert steps().endswith(" 18")


def test_steps_by_their_tokens_are_added_up_over_engines() -> None:
    metrics = Metrics("m", "")
    nothing = [0] * (len(ipc.STEP_TOKENS_BOUNDS) - 1)
    for generation, ones, more, tokens in ((1, 3, 1, 40_003), (1, 4, 1, 40_004), (2, 1, 0, 1)):
        if generation == 2:
            metrics.engine_gone()
        metrics.engine_stats(stats(generation, step_tokens=[ones, *nothing, more], computed_tokens=tokens))
    page = metrics.render().decode()
    assert 'iteration_tokens_total_bucket{model_name="m",le="1"} 5\n' in page
    assert 'iteration_tokens_total_bucket{model_name="m",le="+Inf"} 6\n' in page
    assert 'iteration_tokens_total_sum{model_name="m"} 40005\n' in page


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (3.0, 2)])
def test_bucket_bounds_are_inclusive(value: float, bucket: int) -> None:
    histogram = Histogram("h", "", (1.0, 2.0))
    histogram.observe(value)
    counts = [sample[2] for sample in histogram.samples() if sample[0] == "_bucket"]
    assert counts == [float(i >= bucket) for i in range(3)]


def test_rendering() -> None:
    counter = Counter("c", "help", label="kind")
    counter.add(2, "x\ny")
    nothing = Gauge("g", "help", lambda: None)
    assert render([counter, nothing], "p_", (("m", "1"),)).decode().splitlines() == [
        "# HELP p_c help",
        "# TYPE p_c counter",
        'p_c{m="1",kind="x\\ny"} 2',
        "# HELP p_g help",
        "# TYPE p_g gauge",
    ]
