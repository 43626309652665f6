"""The plots of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from octavo.bench.policies.observe import KINDS
from octavo.bench.policies.run import Outcome
from octavo.bench.svg import LINES, new_figure, svg

#: Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
COLOURS = {
    "tokens": "#009e73",
    "reserved": "#f0e442",
    "internal": "#d55e00",
    "external": "#cc79a7",
    "free": "#e6e6e6",
}
PHASES = {"prefill": "#56b4e9", "decode": "#009e73", "finished": "#d55e00"}
_MAX_POINTS = 400
_MAX_LANES = 32


def memory_over_time(outcome: Outcome) -> str:
    """Stacked areas of what KV memory is used for, in percent, over seconds."""
    samples = outcome.observer.samples
    every = max(1, len(samples.time_s) // _MAX_POINTS)
    shares = 100 * np.array(samples.shares[::every]).T
    figure, axes = new_figure(6, 2.8)
    axes.stackplot(samples.time_s[::every], shares, labels=KINDS, colors=[COLOURS[kind] for kind in KINDS])
    axes.set(xlabel="seconds", ylabel="% of KV memory", ylim=(0, 100), xlim=(0, max(samples.time_s[-1], 1e-3)))
    return svg(figure)


def lanes(outcome: Outcome) -> str:
    """What each batch slot does over time: prefill, decode, and computed or held after its sequence has finished."""
    slots = sorted({lane.slot for lane in outcome.lanes})[:_MAX_LANES]
    rows = {slot: row for row, slot in enumerate(slots)}
    figure, axes = new_figure(6, 0.9 + 0.14 * max(6, len(slots)))
    phases: dict[str, list[tuple[int, float, float]]] = {"prefill": [], "decode": [], "finished": []}
    for lane in outcome.lanes:
        if lane.slot in rows:
            row = rows[lane.slot]
            first = lane.first_s if lane.first_s >= 0 else lane.finish_s
            phases["prefill"].append((row, lane.begin_s, first))
            phases["decode"].append((row, first, lane.finish_s))
            phases["finished"].append((row, lane.finish_s, lane.end_s))
    for phase, bars in phases.items():
        axes.barh(
            [row for row, _, _ in bars],
            [max(0.0, end - begin) for _, begin, end in bars],
            left=[begin for _, begin, _ in bars],
            height=0.8,
            color=PHASES[phase],
            edgecolor="white",
            linewidth=0.3,
            label=phase,
        )
    axes.set(xlabel="seconds", ylabel="batch slot", xlim=(0, max(outcome.duration_s, 1e-3)))
    axes.invert_yaxis()
    return svg(figure)


def _cdf(axes: Axes, values: Sequence[float], label: str, colour: str, style: str = "-") -> None:
    ordered = np.sort(values)
    if len(ordered):
        axes.step(ordered, 100 * np.arange(1, len(ordered) + 1) / len(ordered), style, label=label, color=colour)


def latency_cdfs(outcomes: Sequence[Outcome], what: str) -> str:
    """Percent of requests with at most so many seconds of `what`: "ttft" or "e2e"."""
    figure, axes = new_figure(7.5, 3.6)
    for outcome, colour in zip(outcomes, LINES, strict=False):
        line = outcome.timeline
        end = line.first_s if what == "ttft" else line.finish_s
        _cdf(axes, (end - line.arrival_s)[line.done].tolist(), outcome.combination.name, colour)
    axes.set(
        xlabel="seconds to the first token" if what == "ttft" else "seconds to the last token",
        ylabel="% of requests",
        ylim=(0, 100),
    )
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return svg(figure)


def concurrency(outcomes: Sequence[Outcome]) -> str:
    """Sequences that run at once, over seconds."""
    figure, axes = new_figure(7.5, 3.2)
    for outcome, colour in zip(outcomes, LINES, strict=False):
        samples = outcome.observer.samples
        every = max(1, len(samples.time_s) // _MAX_POINTS)
        axes.step(
            samples.time_s[::every], samples.running[::every], label=outcome.combination.name, color=colour, where="pre"
        )
    axes.set(xlabel="seconds", ylabel="sequences at once")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False)
    return svg(figure)


def waste_over_page_sizes(waste: dict[int, float]) -> str:
    """Mean waste of held memory, in percent, for each page size."""
    figure, axes = new_figure(5, 2.8)
    bars = axes.bar([str(size) for size in waste], [100 * share for share in waste.values()], color="#0072b2")
    axes.bar_label(bars, fmt="%.1f %%", fontsize=8)
    axes.axhline(2, color="#d55e00", linewidth=1)
    axes.set(xlabel="tokens a page", ylabel="% of held slots unfilled")
    return svg(figure)
