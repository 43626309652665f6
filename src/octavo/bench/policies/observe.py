"""What a run looks like from inside: who holds memory for what, and which batch slot computes whom, over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.engine.request import StepOutputs
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Step, StepResult
from octavo.simulate.load import Load
from octavo.simulate.replica import Timeline

#: What token slots of KV memory are used for, after Kwon et al., "Efficient Memory Management for Large Language Model
#: Serving with PagedAttention" (SOSP 2023), section 3.1; and what nobody has asked for.
KINDS = ("tokens", "reserved", "internal", "external", "free")


@dataclass(slots=True)
class Lane:
    """One sequence in a batch slot. Seconds: in the slot from begin_s, finished at finish_s, out of it at end_s."""

    slot: int
    request: int
    begin_s: float
    first_s: float = -1.0
    finish_s: float = -1.0
    end_s: float = -1.0


@dataclass(slots=True)
class Samples:
    """One entry after every step. shares: of all token slots, by KINDS."""

    time_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    shares: list[tuple[float, ...]] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Observer:
    """Watches a scheduler from step to step; the seed of every request must be its index in the load.

    tokens: slots filled by sequences that run. reserved: slots that those will fill later. internal: slots that are
    held and will never be filled, and all that finished rows of a static batch keep. external: slots that nobody has
    while somebody waits to whom they can't be given (a free page is never that). free: the others that nobody has.
    """

    def __init__(self, scheduler: Scheduler, load: Load, timeline: Timeline) -> None:
        self.samples = Samples()
        self.lanes: list[Lane] = []
        self.padding_rows = 0  # rows computed for sequences that had finished before
        self._scheduler = scheduler
        self._timeline = timeline
        self._final = load.prompt_tokens + load.output_tokens - 1  # the last token is drawn but never fed
        self._total = scheduler.pool.num_pages * scheduler.pool.page_size
        self._open: dict[int, Lane] = {}
        self._by_request: dict[int, Lane] = {}

    def after_step(self, step: Step, result: StepResult, outputs: StepOutputs, began_s: float, now_s: float) -> None:
        self._follow(step, outputs, began_s, now_s)
        rows = [self._open[slot] for slot in step.slots.tolist() if slot in self._open]
        self.padding_rows += sum(0 <= lane.finish_s <= began_s for lane in rows)
        occupancy = self._scheduler.occupancy()
        stats = self._scheduler.stats()
        needed = np.maximum(self._final[occupancy.request_ids], occupancy.filled)
        reserved = int((np.minimum(needed, occupancy.held) - occupancy.filled).sum())
        internal = int(np.maximum(occupancy.held - needed, 0).sum()) + occupancy.finished_slots
        tokens = int(occupancy.filled.sum())
        rest = self._total - tokens - reserved - internal
        external = rest if occupancy.memory_refused else 0
        samples = self.samples
        samples.time_s.append(now_s)
        samples.step_s.append(now_s - began_s)
        samples.shares.append(
            tuple(part / self._total for part in (tokens, reserved, internal, external, rest - external))
        )
        samples.held.append((tokens + reserved + internal) / self._total)
        samples.running.append(stats.running)
        samples.waiting.append(stats.waiting)
        samples.rows.append(len(step.slots))

    def _follow(self, step: Step, outputs: StepOutputs, began_s: float, now_s: float) -> None:
        for slot in step.released:
            self._close(slot, began_s)
        for start in step.starts:
            self._close(start.slot, began_s)
            lane = Lane(start.slot, start.seed, began_s)
            self.lanes.append(lane)
            self._open[start.slot] = self._by_request[start.seed] = lane
        done = self._timeline.done[outputs.request_ids]
        for request, finished in zip(outputs.request_ids.tolist(), done.tolist(), strict=True):
            lane = self._by_request[request]
            lane.first_s = now_s if lane.first_s < 0 else lane.first_s
            if finished:
                lane.finish_s = now_s

    def _close(self, slot: int, now_s: float) -> None:
        lane = self._open.pop(slot, None)
        if lane is not None:
            lane.end_s = now_s
            if lane.finish_s < 0:
                lane.finish_s = now_s

    def finish(self, now_s: float) -> None:
        """The run is over."""
        for slot in list(self._open):
            self._close(slot, now_s)

    def means(self) -> dict[str, float]:
        """Each kind's mean share of all token slots, weighted with time; and `held`, the mean share of held ones."""
        weights = np.array(self.samples.step_s)
        if not weights.sum():
            return dict.fromkeys((*KINDS, "held"), 0.0)
        shares = np.array(self.samples.shares)
        means = dict(zip(KINDS, (weights @ shares / weights.sum()).tolist(), strict=True))
        return {**means, "held": float(weights @ np.array(self.samples.held) / weights.sum())}

    def waste_of_held(self) -> float:
        """Mean over the steps of slots without a token of a running sequence / slots held: promise 1's measure."""
        ratios = [
            1 - share[0] / held for share, held in zip(self.samples.shares, self.samples.held, strict=True) if held
        ]
        return float(np.mean(ratios)) if ratios else 0.0

    def to_json(self, points: int = 400) -> dict[str, Any]:
        """The samples, thinned to about so many."""
        every = max(1, len(self.samples.time_s) // points)
        keep = slice(None, None, every)
        samples = self.samples
        return {
            "time_s": samples.time_s[keep],
            "shares": {kind: [share[i] for share in samples.shares[keep]] for i, kind in enumerate(KINDS)},
            "running": samples.running[keep],
            "waiting": samples.waiting[keep],
            "rows": samples.rows[keep],
        }
