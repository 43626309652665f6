"""The arithmetic of the figures, on values worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from octavo.bench.completion import Outcome
from octavo.bench.loadgen import Run
from octavo.bench.report import text
from octavo.bench.stats import Limits, Spread, figures, gaps_ms, tpot_ms, ttft_ms


def outcome(start_s: float, chunk_s: list[float], tokens: int, error: str | None = None) -> Outcome:
    return Outcome(
        start_s=start_s,
        end_s=chunk_s[-1] if chunk_s else start_s + 1,
        chunk_s=chunk_s,
        prompt_tokens=10,
        output_tokens=tokens,
        finish_reason="length",
        error=error,
    )


def run_of(*outcomes: Outcome, begin_s: float = 100.0) -> Run:
    return Run(requests=len(outcomes), started=list(outcomes), begin_s=begin_s, complete=True)


def test_percentiles_interpolate() -> None:
    spread = Spread.of([float(value) for value in range(101)])
    assert (spread.mean, spread.p50, spread.p90, spread.p99, spread.max) == (50.0, 50.0, 90.0, 99.0, 100.0)
    two = Spread.of([1.0, 2.0])
    assert (two.p50, two.p90, two.p99) == pytest.approx((1.5, 1.9, 1.99))
    one = Spread.of([3.0])
    assert (one.count, one.p50, one.p99) == (1, 3.0, 3.0)


def test_percentiles_of_nothing() -> None:
    assert Spread.of([]).count == 0
    assert math.isnan(Spread.of([]).p99)


def test_latencies_of_one_answer() -> None:
    answer = outcome(1.0, [1.5, 1.6, 1.8, 2.1], 4)
    assert ttft_ms(answer) == pytest.approx(500)
    assert tpot_ms(answer) == pytest.approx(200)
    assert gaps_ms(answer) == pytest.approx([100, 200, 300])


def test_tpot_counts_tokens_not_pieces() -> None:
    assert tpot_ms(outcome(0.0, [1.0, 2.0], 11)) == pytest.approx(100)


def test_one_token_has_no_tpot_and_an_empty_answer_no_ttft() -> None:
    assert tpot_ms(outcome(0.0, [1.0], 1)) is None
    assert ttft_ms(outcome(0.0, [], 0)) is None


def test_rates_are_over_the_whole_run() -> None:
    result = figures(run_of(outcome(100.0, [101.0, 102.0], 2), outcome(100.0, [103.0, 104.0], 2)), Limits())
    assert result.duration_s == pytest.approx(4)
    assert result.output_tokens_per_s == pytest.approx(1)
    assert result.total_tokens_per_s == pytest.approx(6)
    assert result.requests_per_s == pytest.approx(0.5)


def test_failures_are_counted_and_kept_out_of_latencies() -> None:
    bad = [outcome(100.0, [100.001], 1, "status 500: oops") for _ in range(2)]
    result = figures(run_of(outcome(100.0, [101.0, 102.0], 2), *bad), Limits())
    assert (result.completed, result.failed) == (1, 2)
    assert result.errors == {"status 500: oops": 2}
    assert result.ttft_ms.count == 1
    assert result.output_tokens == 2
    assert "2 x error: status 500: oops" in text(result, Limits())


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(), 2),
        (Limits(ttft_ms=1500), 1),
        (Limits(ttft_ms=1000), 1),
        (Limits(ttft_ms=999), 0),
        (Limits(tpot_ms=500), 1),
        (Limits(e2e_ms=2500), 1),
        (Limits(ttft_ms=1500, tpot_ms=500), 0),
    ],
)
def test_goodput(limits: Limits, good: int) -> None:
    fast_start = outcome(100.0, [101.0, 102.0], 2)
    fast_tokens = outcome(100.0, [103.0, 103.5], 2)
    result = figures(run_of(fast_start, fast_tokens), limits)
    assert result.good_requests_per_s * result.duration_s == pytest.approx(good)


def test_limits_are_parsed() -> None:
    assert Limits.parse(["ttft:1000", "tpot:80.5"]) == Limits(1000, 80.5)
    assert not Limits.parse([]).set


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "itl:5", "80"])
def test_wrong_limits(text: str) -> None:
    with pytest.raises(ValueError, match="must be ttft:MS"):
        Limits.parse([text])


def test_a_run_of_nothing_is_plain_json() -> None:
    result = figures(Run(requests=3, begin_s=5.0), Limits())
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert content["ttft_ms"]["p50"] is None
    assert content["complete"] is False
    assert "INTERRUPTED" in text(result, Limits())
