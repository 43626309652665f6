"""Figures of a run: latencies as percentiles, throughput, goodput."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from octavo.bench.completion import Outcome
from octavo.bench.loadgen import Run


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum of `count` values; NaN when there are none."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Percentiles interpolate linearly between the two nearest ranks (Hyndman and Fan, type 7)."""
        if not values:
            return cls(0, math.nan, math.nan, math.nan, math.nan, math.nan)
        array = np.asarray(values, np.float64)
        p50, p90, p99 = np.percentile(array, [50, 90, 99])
        return cls(len(array), float(array.mean()), float(p50), float(p90), float(p99), float(array.max()))


@dataclass(frozen=True, slots=True)
class Limits:
    """A request is good when it is within all of these (milliseconds)."""

    ttft_ms: float = math.inf
    tpot_ms: float = math.inf
    e2e_ms: float = math.inf

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Limits:
        """`ttft:1000`, `tpot:80`, `e2e:5000`, in any order. Raises ValueError."""
        found: dict[str, float] = {}
        for text in texts:
            name, _, limit = text.partition(":")
            try:
                number = float(limit)
            except ValueError:
                number = math.nan
            if name not in ("ttft", "tpot", "e2e") or not number > 0:
                raise ValueError(f"a goodput limit is {text!r}; it must be ttft:MS, tpot:MS or e2e:MS.")
            found[name + "_ms"] = number
        return cls(**found)

    @property
    def set(self) -> bool:
        return self != Limits()


@dataclass(frozen=True, slots=True)
class Figures:
    """A run in numbers. Latencies in milliseconds, of complete answers only; rates per second of `duration_s`.

    TTFT: from a request's start to its first piece of text. TPOT: the rest of the time over the rest of the tokens, one
    value a request. ITL: gaps between pieces, all requests together. E2E: start to end of the stream.
    """

    complete: bool
    requests: int
    completed: int
    failed: int
    errors: dict[str, int]
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    good_requests_per_s: float
    peak_in_flight: int
    client_cpu_share: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN becomes None."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def figures(run: Run, limits: Limits) -> Figures:
    """Figures of what `run` holds so far. The duration ends with the last answer, complete or not."""
    outcomes = run.outcomes
    answers = [outcome for outcome in outcomes if outcome.error is None]
    duration_s = max((outcome.end_s for outcome in outcomes), default=run.begin_s) - run.begin_s
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answers)
    output_tokens = sum(outcome.output_tokens for outcome in answers)
    return Figures(
        complete=run.complete,
        requests=run.requests,
        completed=len(answers),
        failed=len(outcomes) - len(answers),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None).most_common()),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(outcome.cached_tokens for outcome in answers),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens * per_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) * per_s,
        requests_per_s=len(answers) * per_s,
        good_requests_per_s=sum(_is_good(outcome, limits) for outcome in answers) * per_s,
        peak_in_flight=run.peak_in_flight,
        client_cpu_share=run.client_cpu_s * per_s,
        ttft_ms=Spread.of([value for value in map(ttft_ms, answers) if value is not None]),
        tpot_ms=Spread.of([value for value in map(tpot_ms, answers) if value is not None]),
        itl_ms=Spread.of([gap for outcome in answers for gap in gaps_ms(outcome)]),
        e2e_ms=Spread.of([(outcome.end_s - outcome.start_s) * 1e3 for outcome in answers]),
    )


def ttft_ms(outcome: Outcome) -> float | None:
    """Time to the first piece of text; None if the answer was empty."""
    return (outcome.chunk_s[0] - outcome.start_s) * 1e3 if outcome.chunk_s else None


def tpot_ms(outcome: Outcome) -> float | None:
    """Mean time of each output token after the first; None below two tokens."""
    if outcome.output_tokens < 2 or not outcome.chunk_s:
        return None
    return (outcome.chunk_s[-1] - outcome.chunk_s[0]) * 1e3 / (outcome.output_tokens - 1)


def gaps_ms(outcome: Outcome) -> list[float]:
    """Gaps between neighbouring pieces of text."""
    return [(after - before) * 1e3 for before, after in zip(outcome.chunk_s, outcome.chunk_s[1:], strict=False)]


def _is_good(outcome: Outcome, limits: Limits) -> bool:
    first, each = ttft_ms(outcome), tpot_ms(outcome)
    return (
        first is not None
        and first <= limits.ttft_ms
        and (each is None or each <= limits.tpot_ms)
        and (outcome.end_s - outcome.start_s) * 1e3 <= limits.e2e_ms
    )
