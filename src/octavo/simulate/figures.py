"""Latencies and throughput of a timeline."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.simulate.load import Floats
from octavo.simulate.replica import Timeline

Mask = npt.NDArray[np.bool_]
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of milliseconds; NaN when there are no values."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Floats) -> Percentiles:
        """Linear between the two nearest ranks."""
        if not len(seconds):
            return cls(math.nan, math.nan, math.nan)
        return cls(*(float(value) * 1e3 for value in np.percentile(seconds, PERCENTILES)))


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds. TTFT: arrival to first token. TPOT: first to last over the tokens after the first. E2E: arrival to
    last token."""

    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles

    @classmethod
    def of(cls, timeline: Timeline, mask: Mask | None = None) -> Latencies:
        """Of the requests that are done (and in the mask)."""
        chosen = timeline.done if mask is None else timeline.done & mask
        first, finish = timeline.first_s[chosen], timeline.finish_s[chosen]
        arrival, tokens = timeline.arrival_s[chosen], timeline.tokens[chosen]
        several = tokens > 1
        return cls(
            Percentiles.of(first - arrival),
            Percentiles.of((finish - first)[several] / (tokens[several] - 1)),
            Percentiles.of(finish - arrival),
        )


def shortest_quarter(output_tokens: npt.NDArray[np.int64]) -> Mask:
    """The requests whose answers are among the shortest quarter (with those of equal length at the border)."""
    return np.asarray(output_tokens <= np.quantile(output_tokens, 0.25))


def good(timeline: Timeline, ttft_s: float, tpot_s: float) -> Mask:
    """Requests that are done within both limits."""
    tpot = (timeline.finish_s - timeline.first_s) / np.maximum(1, timeline.tokens - 1)
    return timeline.done & (timeline.first_s - timeline.arrival_s <= ttft_s) & (tpot <= tpot_s)


def plain(value: Any) -> Any:
    """Dataclasses and NaN as JSON has them."""
    if hasattr(value, "__dataclass_fields__"):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
