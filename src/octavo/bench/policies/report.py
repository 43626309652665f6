"""A comparison's outcomes as a table for the terminal and as plain data."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.policies.run import Outcome


@dataclass(slots=True)
class Comparison:
    """All that a report is made from.

    settings: what was run, in words and numbers. rounds: the combinations' runs, each round once through all of them.
    simulated: the same combinations on cost models of other machines, by name. page_sizes: tokens a page -> mean waste
    of held memory with paging.
    """

    settings: dict[str, Any]
    rounds: list[list[Outcome]] = field(default_factory=list)
    simulated: dict[str, list[Outcome]] = field(default_factory=dict)
    page_sizes: dict[int, float] = field(default_factory=dict)
    complete: bool = False

    @property
    def outcomes(self) -> list[Outcome]:
        """Of each combination the run of median throughput (of two the lower); one cut short if there is no other."""
        found = []
        for runs in itertools.zip_longest(*self.rounds):
            here = [one for one in runs if one is not None]
            whole = sorted((one for one in here if one.complete), key=lambda one: one.output_tokens_per_s)
            found.append(whole[(len(whole) - 1) // 2] if whole else here[-1])
        return found

    @property
    def ratios(self) -> dict[str, list[float]]:
        """What the comparison is made for, in every round: both sides of a ratio ran within minutes of each other."""
        found: dict[str, list[float]] = {}
        for outcomes in self.rounds:
            for name, value in ratios(outcomes).items():
                found.setdefault(name, []).append(value)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "complete": self.complete,
            "settings": self.settings,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "rounds": [[outcome.figures_json() for outcome in outcomes] for outcomes in self.rounds],
            "simulated": {name: [one.to_json() for one in found] for name, found in self.simulated.items()},
            "page_sizes": [{"page_size": size, "waste_of_held": waste} for size, waste in self.page_sizes.items()],
            "ratios": {name: statistics.median(values) for name, values in self.ratios.items()},
            "ratios_by_round": self.ratios,
            "simulated_ratios": {name: ratios(found) for name, found in self.simulated.items()},
        }


def _find(outcomes: Sequence[Outcome], kv: str, batch: str) -> Outcome | None:
    """The run with these policies (static: with padding)."""
    for outcome in outcomes:
        found = outcome.combination
        if (found.kv, found.batch) == (kv, batch) and found.padding:
            return outcome
    return None


def ratios(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What the comparison is made for, as far as both sides have been run and have completed something."""
    outcomes = [outcome for outcome in outcomes if outcome.completed]
    found: dict[str, float] = {}
    old, new = _find(outcomes, "contiguous", "continuous"), _find(outcomes, "paged", "continuous")
    if old and new and old.running_peak:
        found["sequences at once, paged / contiguous"] = new.running_peak / old.running_peak
        found["throughput, paged / contiguous (continuous)"] = new.output_tokens_per_s / old.output_tokens_per_s
    for kv in ("paged", "contiguous"):
        static, continuous = _find(outcomes, kv, "static"), _find(outcomes, kv, "continuous")
        if static and continuous and static.output_tokens_per_s:
            found[f"throughput, continuous / padded static ({kv})"] = (
                continuous.output_tokens_per_s / static.output_tokens_per_s
            )
            found[f"p50 latency of the shortest quarter, padded static / continuous ({kv})"] = (
                static.short.e2e_ms.p50 / continuous.short.e2e_ms.p50
            )
    oldest = _find(outcomes, "contiguous", "static")
    if oldest and new:
        found["throughput, both / neither"] = new.output_tokens_per_s / oldest.output_tokens_per_s
        found["p50 latency of the shortest quarter, neither / both"] = oldest.short.e2e_ms.p50 / new.short.e2e_ms.p50
    return {name: value for name, value in found.items() if math.isfinite(value)}


def named_ratios(comparison: Comparison) -> list[tuple[str, float]]:
    """Medians over the rounds, named with their range where there are several; then those of the simulated machines."""
    found = []
    for name, values in comparison.ratios.items():
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        found.append((name + spread, statistics.median(values)))
    for machine, outcomes in comparison.simulated.items():
        found += [(f"{name}, simulated: {machine}", value) for name, value in ratios(outcomes).items()]
    return found


_COLUMNS = (
    ("", 42),
    ("tokens", 8),
    ("reserved", 9),
    ("internal", 9),
    ("external", 9),
    ("free", 7),
    ("waste of", 9),
    ("at once", 13),
    ("output", 8),
    ("in forward", 11),
    ("pre-", 7),
    ("TTFT s", 14),
    ("E2E s, short", 15),
    ("E2E s, long", 15),
)
_UNITS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "held",
    "mean / peak",
    "tok/s",
    "passes",
    "empted",
    "p50 / p99",
    "p50 / p99",
    "p50 / p99",
)


def text(comparison: Comparison) -> str:
    """A table with a line for each combination, then the ratios."""
    outcomes, rounds = comparison.outcomes, len(comparison.rounds)
    title = "measured on this machine" + (
        f", {rounds} rounds: of each the run of median throughput" if rounds > 1 else ""
    )
    blocks = [_table(title, outcomes)] if outcomes else []
    blocks += [_table(f"simulated: {name}", found) for name, found in comparison.simulated.items()]
    if comparison.page_sizes:
        line = ", ".join(f"{size}: {waste:.2%}" for size, waste in comparison.page_sizes.items())
        blocks.append(f"waste of held memory with pages of N tokens (simulated; exact): {line}")
    lines = [f"{value:7.2f}  {name}" for name, value in named_ratios(comparison)]
    if lines:
        blocks.append("\n".join(lines))
    if not comparison.complete:
        blocks.append("INTERRUPTED: the figures cover what was done.")
    return "\n\n".join(blocks)


def _table(title: str, outcomes: Sequence[Outcome]) -> str:
    lines = [title, _row([name for name, _ in _COLUMNS]), _row(list(_UNITS))]
    return "\n".join(lines + [_row(cells(outcome)) for outcome in outcomes])


def _row(cells: Sequence[str]) -> str:
    first, *rest = (cell for cell in cells)
    padded = [f"{cell:>{width}}" for cell, (_, width) in zip(rest, _COLUMNS[1:], strict=True)]
    return (f"{first:<{_COLUMNS[0][1]}}" + "".join(padded)).rstrip()


def cells(outcome: Outcome) -> list[str]:
    """A line of the table. Shares are of KV memory, means over time."""
    shares = outcome.shares
    return [
        outcome.combination.name + ("" if outcome.complete else " (incomplete)"),
        *(f"{shares[kind]:.1%}" for kind in ("tokens", "reserved", "internal", "external", "free")),
        f"{outcome.waste_of_held:.2%}",
        f"{outcome.running_mean:.1f} / {outcome.running_peak}",
        f"{outcome.output_tokens_per_s:.0f}",
        f"{outcome.forward_share:.1%}",
        str(outcome.preemptions),
        *(
            f"{p.p50 / 1e3:.2f} / {p.p99 / 1e3:.2f}"
            for p in (outcome.all_requests.ttft_ms, outcome.short.e2e_ms, outcome.long.e2e_ms)
        ),
    ]
