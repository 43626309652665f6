"""Counters of the engine since its start, and what `Scheduler.stats()` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Counters:
    """Totals since start. waste_sum / waste_samples is the mean KV waste, one sample after each step."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    aborted: int = 0
    forward_s: float = 0.0
    executor_s: float = 0.0
    waste_sum: float = 0.0
    waste_samples: int = 0

    def count_step(self, computed: int, forward_s: float, executor_s: float) -> None:
        self.steps += 1
        self.computed_tokens += computed
        self.forward_s += forward_s
        self.executor_s += executor_s

    def sample_waste(self, filled: int, held: int) -> None:
        """After a step: `filled` of `held` token slots of held pages are filled."""
        if held:
            self.waste_sum += 1.0 - filled / held
            self.waste_samples += 1


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The moment's gauges and the totals since start.

    running, waiting: sequences. slots_*: token slots of held pages, in every KV group. prompt_tokens and cached_tokens
    count a request once, at its first admission; computed_tokens counts every token fed, recomputed ones too. aborted:
    sequences whose request was aborted; those that a stop string ended are not among them.
    forward_s, executor_s: seconds inside the forward passes, and inside the executor altogether.
    """

    running: int
    waiting: int
    pages_total: int
    pages_held: int
    pages_cached: int
    slots_held: int
    slots_filled: int
    waste_ratio_mean: float
    steps: int
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    aborted: int
    forward_s: float
    executor_s: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Running sequences at one moment: whose, how many of their token slots are filled, and how many they hold.

    request_ids int64 [N]; filled and held intp [N], in all KV groups together, shared pages counted for every holder.
    finished_slots: token slots that rows of finished sequences still hold (static batches with padding).
    memory_refused: somebody waits because no memory could be had for it (historical policies; False with paging).
    """

    request_ids: npt.NDArray[np.int64]
    filled: npt.NDArray[np.intp]
    held: npt.NDArray[np.intp]
    finished_slots: int = 0
    memory_refused: bool = False
