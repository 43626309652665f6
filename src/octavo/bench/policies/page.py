"""A comparison as one self-contained HTML page: tables, plots and the words to read them by."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from octavo.bench.document import document, figure
from octavo.bench.policies import plots
from octavo.bench.policies.report import Comparison, cells, named_ratios
from octavo.bench.policies.run import Outcome
from octavo.formats.whole_file import write_whole

_HEADS = (
    "policies",
    "tokens",
    "reserved",
    "internal",
    "external",
    "free",
    "waste of held",
    "at once, mean / peak",
    "output tokens/s",
    "in forward passes",
    "preemptions",
    "TTFT s, p50 / p99",
    "E2E s, shortest quarter, p50 / p99",
    "E2E s, the others, p50 / p99",
)
_MEMORY_WORDS = """
KV memory is what a sequence's keys and values are kept in. <b>Contiguous</b> memory gives each sequence one piece:
of the longest length the model allows, of prompt + max_tokens, or of a power of two that is doubled by copying (buddy).
<b>Paged</b> memory gives it small pages when they are needed. The colours say what every token slot is used for:
<b>tokens</b> of running sequences; <b>reserved</b> for tokens that these will have later; <b>internal</b> waste, held
but never filled (also what finished rows of a static batch keep); <b>external</b> waste, in nobody's hands while
somebody waits whom it does not fit; and <b>free</b>.
"""
_BATCH_WORDS = """
Each line is one slot of the batch. In a <b>static</b> batch nobody enters before all have finished: orange is the time
a finished sequence's row is computed as padding (or, dropped, nothing). In a <b>continuous</b> one the next sequence
takes the slot after any step.
"""
_LATENCY_WORDS = """
A curve passes through (x, y) when y % of the requests took at most x seconds from their arrival. Further left is
better; a long way to the right at the top is the wait of the unlucky.
"""


def write_page(path: Path, comparison: Comparison) -> None:
    """Write the page whole or not at all. Raises OSError."""
    write_whole(path, page(comparison))


def page(comparison: Comparison) -> str:
    """The page's text; it refers to nothing outside of itself."""
    outcomes = [outcome for outcome in comparison.outcomes if outcome.observer.samples.time_s]
    parts = [
        "<h1>Paging and continuous batching, and what was before</h1>",
        "" if comparison.complete else '<p class="warn">This run was interrupted: the figures cover what was done.</p>',
        _settings(comparison),
        "<h2>In short</h2>",
        _ratios(comparison),
        _table(outcomes),
        *(f"<h3>Simulated: {html.escape(name)}</h3>{_table(found)}" for name, found in comparison.simulated.items()),
        "<h2>Memory over time</h2>",
        f"<p>{_MEMORY_WORDS}</p>{_memory_key()}",
        _grid([(outcome.combination.name, plots.memory_over_time(outcome)) for outcome in outcomes]),
        _page_sizes(comparison),
        "<h2>Sequences at once</h2>",
        figure("sequences that run at once, over time", plots.concurrency(outcomes)),
        "<h2>Batch slots over time</h2>",
        f"<p>{_BATCH_WORDS}</p>{_lane_key()}",
        _grid([(outcome.combination.name, plots.lanes(outcome)) for outcome in outcomes]),
        "<h2>Latency</h2>",
        f"<p>{_LATENCY_WORDS}</p>",
        figure("time to the first token", plots.latency_cdfs(outcomes, "ttft")),
        figure("time to the last token", plots.latency_cdfs(outcomes, "e2e")),
    ]
    return document("Octavo: policies compared", parts)


def _settings(comparison: Comparison) -> str:
    rows = [
        f"<tr><td>{html.escape(name.replace('_', ' '))}</td><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in comparison.settings.items()
        if not isinstance(value, dict)
    ]
    return f"<table>{''.join(rows)}</table>"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ratios(comparison: Comparison) -> str:
    items = [f"<li><b>{value:.2f}</b> {html.escape(name)}</li>" for name, value in named_ratios(comparison)]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _table(outcomes: Sequence[Outcome]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in _HEADS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(outcome)) + "</tr>" for outcome in outcomes
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _grid(figures: Sequence[tuple[str, str]]) -> str:
    return f'<div class="grid">{"".join(figure(name, svg) for name, svg in figures)}</div>'


def _memory_key() -> str:
    return _key(plots.COLOURS)


def _lane_key() -> str:
    return _key(plots.PHASES)


def _key(colours: dict[str, str]) -> str:
    items = "".join(f'<span style="background:{colour}"></span>{name}' for name, colour in colours.items())
    return f'<p class="key">{items}</p>'


def _page_sizes(comparison: Comparison) -> str:
    if not comparison.page_sizes:
        return ""
    return (
        "<h2>Waste over page sizes</h2><p>With paging only the last page of a sequence is partly empty, so small pages "
        "waste little. The line is at 2 %.</p>"
        + figure("waste over page sizes (simulated)", plots.waste_over_page_sizes(comparison.page_sizes))
    )
