"""A run's figures as text for people and as a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.bench.stats import Figures, Limits, Spread
from octavo.formats.whole_file import write_whole


def text(figures: Figures, limits: Limits) -> str:
    """A table of some 15 lines."""
    lines = [
        f"{'requests':<22}{figures.completed} complete, {figures.failed} failed"
        + ("" if figures.complete else f" of {figures.requests}; INTERRUPTED, figures cover what had ended"),
        f"{'duration':<22}{figures.duration_s:.2f} s, at most {figures.peak_in_flight} in flight",
        f"{'prompt tokens':<22}{figures.prompt_tokens} ({figures.cached_tokens} from cache)",
        f"{'output tokens':<22}{figures.output_tokens}",
        f"{'output throughput':<22}{figures.output_tokens_per_s:.1f} tokens/s",
        f"{'total throughput':<22}{figures.total_tokens_per_s:.1f} tokens/s",
        f"{'request rate':<22}{figures.requests_per_s:.3f} requests/s",
    ]
    if limits.set:
        lines.append(f"{'goodput':<22}{figures.good_requests_per_s:.3f} requests/s within {_limits(limits)}")
    lines.append(f"{'load generator':<22}{figures.client_cpu_share:.1%} of one core")
    lines += ["", f"{'milliseconds':<12}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
    lines += [
        _row("TTFT", figures.ttft_ms),
        _row("TPOT", figures.tpot_ms),
        _row("ITL", figures.itl_ms),
        _row("E2E", figures.e2e_ms),
    ]
    lines += [f"{count} x error: {message}" for message, count in figures.errors.items()]
    return "\n".join(lines)


def _row(name: str, spread: Spread) -> str:
    if not spread.count:
        return f"{name:<12}{'-':>10}"
    return f"{name:<12}" + "".join(
        f"{value:>10.2f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
    )


def _limits(limits: Limits) -> str:
    named = {"TTFT": limits.ttft_ms, "TPOT": limits.tpot_ms, "E2E": limits.e2e_ms}
    return ", ".join(f"{name} {limit:g} ms" for name, limit in named.items() if limit != float("inf"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the file whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
