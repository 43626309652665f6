"""Waste of held memory over page sizes. The scheduler alone decides it, so it is simulated; only step times are not
real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.bench.policies.run import Combination, run_combination
from octavo.bench.policies.workload import PolicyWork
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.machine import VirtualMachine


class RowCost:
    """A step of 5 ms and 1 ms for every token: about what a small model on a CPU takes."""

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        return 5e-3 + 1e-3 * tokens


def waste_by_page_size(
    config: SchedulerConfig, work: PolicyWork, max_tokens: int, page_sizes: Sequence[int]
) -> dict[int, float]:
    """Tokens a page -> mean share of unfilled slots in held pages, with the same memory for each."""
    found = {}
    for size in page_sizes:
        pages = config.num_pages * config.page_size // size
        outcome = run_combination(
            Combination("paged", "continuous"),
            replace(config, page_size=size, num_pages=pages),
            lambda: VirtualMachine(RowCost()),
            work.load,
            work.prompt,
            max_tokens,
            lambda name, done, total: None,
        )
        found[size] = outcome.waste_of_held
    return found
