"""What a simulation brought, as text and as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.simulate.figures import Latencies, Percentiles, plain
from octavo.simulate.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Outcome:
    """Virtual seconds, except wall_s. Shares and counts are of all replicas together."""

    complete: bool
    requests: int
    completed: int
    duration_s: float
    output_tokens_per_s: float
    requests_per_s: float
    latencies: Latencies
    steps: int
    preemptions: int
    cached_share: float
    busy_share: float
    wall_s: float

    @classmethod
    def of(cls, fleet: Fleet, complete: bool, wall_s: float) -> Outcome:
        line = fleet.timeline
        done = line.done
        duration_s = float(np.nanmax(line.finish_s)) if done.any() else 0.0
        per_s = 1.0 / duration_s if duration_s else 0.0
        return cls(
            complete=complete,
            requests=len(done),
            completed=int(done.sum()),
            duration_s=duration_s,
            output_tokens_per_s=float(line.tokens.sum()) * per_s,
            requests_per_s=float(done.sum()) * per_s,
            latencies=Latencies.of(line),
            steps=fleet.steps,
            preemptions=fleet.preemptions,
            cached_share=fleet.cached_share,
            busy_share=fleet.busy_share,
            wall_s=wall_s,
        )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found


def text(outcome: Outcome) -> str:
    """A table of some 15 lines."""
    ended = "" if outcome.complete else f" of {outcome.requests}; INTERRUPTED, figures cover what had ended"
    latencies = outcome.latencies
    rows = [
        ("requests", f"{outcome.completed} complete{ended}"),
        (
            "virtual time",
            f"{outcome.duration_s:,.1f} s in {outcome.steps:,} steps; {outcome.wall_s:.1f} s of real time",
        ),
        ("output throughput", f"{outcome.output_tokens_per_s:,.1f} tokens/s"),
        ("request rate", f"{outcome.requests_per_s:.3f} requests/s"),
        ("in forward passes", f"{outcome.busy_share:.1%} of the replicas' time"),
        ("prompt from cache", f"{outcome.cached_share:.1%}"),
        ("preemptions", f"{outcome.preemptions}"),
    ]
    lines = [f"{name:<20}{value}" for name, value in rows]
    lines += ["", f"{'milliseconds':<12}{'p50':>12}{'p90':>12}{'p99':>12}"]
    named = (("TTFT", latencies.ttft_ms), ("TPOT", latencies.tpot_ms), ("E2E", latencies.e2e_ms))
    return "\n".join(lines + [_row(name, one) for name, one in named])


def _row(name: str, of: Percentiles) -> str:
    return f"{name:<12}" + "".join(f"{value:>12,.2f}" for value in (of.p50, of.p90, of.p99))
