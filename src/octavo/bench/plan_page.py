"""A plan as one HTML page: what was tried, and the chosen fleet over load."""

from __future__ import annotations

import html
from collections.abc import Sequence

from octavo.bench.document import document, figure
from octavo.bench.svg import LINES, new_figure, svg
from octavo.simulate.plan import Level, LoadPoint, Trial


def page(summary: Sequence[str], trials: Sequence[Trial], points: Sequence[LoadPoint], level: Level) -> str:
    """`summary`: the plan in sentences."""
    return document(
        "Octavo: a plan",
        [
            "<h1>What it takes to serve this trace</h1>",
            *(f"<p>{html.escape(line)}</p>" for line in summary),
            "<h2>What was tried</h2>",
            _table(trials),
            "<h2>The chosen fleet over load</h2>" if points else "",
            "<p>Goodput is the rate of requests that are within both limits.</p>" if points else "",
            figure("goodput over load", goodput_over_load(points)) if points else "",
            figure("latency over load", latency_over_load(points, level)) if points else "",
        ],
    )


def _table(trials: Sequence[Trial]) -> str:
    rows = [
        "<tr>"
        + "".join(
            f"<td>{html.escape(cell)}</td>"
            for cell in (
                made.option.name,
                str(made.replicas),
                f"{made.price_per_hour:,.2f}",
                f"{made.latencies.ttft_ms.p99:,.0f}" if made.latencies else "-",
                f"{made.latencies.tpot_ms.p99:,.1f}" if made.latencies else "-",
                made.reason or "meets the level",
            )
        )
        + "</tr>"
        for made in sorted(trials, key=lambda made: made.price_per_hour)
    ]
    names = ("option", "replicas", "price an hour", "TTFT p99 ms", "TPOT p99 ms", "")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def goodput_over_load(points: Sequence[LoadPoint]) -> str:
    """Requests a second within the limits, over those that come."""
    figure, axes = new_figure(7, 3.2)
    rates = [point.rate for point in points]
    axes.plot(rates, rates, ":", color="#999999", label="all that come")
    axes.plot(rates, [point.good_per_s for point in points], "o-", color=LINES[0], label="within the limits")
    axes.set(xlabel="requests a second", ylabel="requests a second")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(frameon=False)
    return svg(figure)


def latency_over_load(points: Sequence[LoadPoint], level: Level) -> str:
    """p50 and p99 of TTFT and TPOT in milliseconds, over requests a second, with the limits."""
    figure, axes = new_figure(7, 3.6)
    rates = [point.rate for point in points]
    named = (("TTFT", "ttft_ms", level.ttft_p99_ms), ("TPOT", "tpot_ms", level.tpot_p99_ms))
    for (name, field, limit), colour in zip(named, LINES, strict=False):
        found = [getattr(point.latencies, field) for point in points]
        axes.plot(rates, [one.p50 for one in found], "o--", color=colour, label=f"{name} p50")
        axes.plot(rates, [one.p99 for one in found], "o-", color=colour, label=f"{name} p99")
        axes.axhline(limit, color=colour, linewidth=0.8, linestyle=":")
    axes.set(xlabel="requests a second", ylabel="milliseconds", yscale="log")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)
