"""Measures an engine in this process: its executor's steps, and what the loop around them takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.config import EngineConfig
from octavo.engine.request import StepOutputs
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Step, StepResult
from octavo.runtime.engine import Engine
from octavo.simulate.calibrate import Measured, fit, grid, measure, spread_of
from octavo.simulate.calibration import Calibration
from octavo.simulate.load import Load
from octavo.simulate.machine import LoopTime, RealMachine
from octavo.simulate.replica import Replica, Timeline, random_prompts, run_load

#: Seconds for each kind of step; some sixty of them and the loop make two minutes.
SECONDS_EACH = 1.6
_LOOP_REQUESTS, _LOOP_PROMPT, _LOOP_TOKENS = (1, 32), 96, 48


def calibrate(
    engine: Engine,
    config: EngineConfig,
    on_progress: Callable[[int, int], None],
    seconds_each: float = SECONDS_EACH,
    keep: list[Measured] | None = None,
) -> Calibration:
    """Measure and fit. The engine must be idle; its caches hold nothing useful afterwards.

    keep: gets the single measurements.
    """
    facts = engine.facts
    points = grid(config.max_num_seqs, config.max_num_batched_tokens, facts.max_model_len)
    loop = _loop_time(engine, config)
    measured = measure(engine.executor, points, facts.page_size, facts.num_pages, seconds_each, on_progress)
    if keep is not None:
        keep += measured
    return Calibration(
        model=config.model,
        cost=fit(measured),
        loop=loop,
        spread=spread_of(measured),
        page_size=facts.page_size,
        num_pages=facts.num_pages // facts.kv_groups,
        max_model_len=facts.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


class _Outside:
    """Seconds outside `plan.run`, of decode steps by their number of sequences, and of steps with prefill."""

    def __init__(self) -> None:
        self.decodes: dict[int, list[float]] = {}
        self.prefills: list[tuple[int, float]] = []

    def after_step(self, step: Step, result: StepResult, outputs: StepOutputs, began_s: float, now_s: float) -> None:
        rows, outside_s = len(step.slots), now_s - began_s - result.forward_s
        if step.num_tokens_total == rows:
            self.decodes.setdefault(rows, []).append(outside_s)
        else:
            self.prefills.append((rows, outside_s))


def _loop_time(engine: Engine, config: EngineConfig) -> LoopTime:
    """From medians of one stream and of several: a line over the number of sequences, and what prefill adds to it."""
    outside = _Outside()
    longest = engine.facts.max_model_len - 1
    for several in _LOOP_REQUESTS:
        count = min(several, config.max_num_seqs)
        prompts, answers = np.full(count, min(_LOOP_PROMPT, longest)), np.full(count, _LOOP_TOKENS)
        load, _ = Load(np.zeros(count), prompts, answers).clipped(engine.facts.max_model_len)
        machine, timeline = RealMachine(engine.executor), Timeline.of(load.arrival_s)
        replica = Replica(Scheduler(engine.scheduler.config), machine, timeline, load, outside.after_step)
        run_load(replica, load, random_prompts(load, engine.facts.vocab, seed=several))
    medians = {rows: float(np.median(taken)) for rows, taken in outside.decodes.items() if len(taken) > 8}
    if not medians:
        return LoopTime()
    few, many = min(medians), max(medians)
    sequence_s = max(0.0, (medians[many] - medians[few]) / (many - few)) if many > few else 0.0
    step_s = max(0.0, medians[few] - sequence_s * few)
    more = [outside_s - step_s - sequence_s * rows for rows, outside_s in outside.prefills]
    return LoopTime(step_s, sequence_s, max(0.0, float(np.median(more))))
