"""Measures an engine in this process: its executor's steps, and what the loop around them takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from octavo.config import EngineConfig
from octavo.runtime.engine import Engine
from octavo.simulate.calibrate import Calibration, fit, grid, measure
from octavo.simulate.replica import request_of

#: Seconds for each kind of step; some sixty of them and the loop make two minutes.
SECONDS_EACH = 1.6
_LOOP_REQUESTS, _LOOP_TOKENS = 16, 48


def calibrate(
    engine: Engine,
    config: EngineConfig,
    on_progress: Callable[[int, int], None],
    seconds_each: float = SECONDS_EACH,
) -> Calibration:
    """Measure and fit. The engine must be idle; its caches hold nothing useful afterwards."""
    facts = engine.facts
    points = grid(config.max_num_seqs, config.max_num_batched_tokens, facts.max_model_len)
    overhead_s = _overhead(engine)
    measured = list(measure(engine.executor, points, facts.page_size, facts.num_pages, seconds_each, on_progress))
    return Calibration(
        model=config.model,
        cost=fit(measured),
        overhead_s=overhead_s,
        page_size=facts.page_size,
        num_pages=facts.num_pages,
        max_model_len=facts.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def _overhead(engine: Engine) -> float:
    """Seconds of the loop outside `plan.run` for a step with a handful of sequences."""
    rng = np.random.default_rng(0)
    for index in range(_LOOP_REQUESTS):
        prompt = rng.integers(0, engine.facts.vocab, min(32, engine.facts.max_model_len // 2), dtype=np.int32)
        engine.add(request_of(index, 0.0, prompt, _LOOP_TOKENS))
    before, began_s = engine.stats(), time.perf_counter()
    while engine.busy:
        engine.step()
    wall_s, after = time.perf_counter() - began_s, engine.stats()
    return max(0.0, wall_s - (after.forward_s - before.forward_s)) / (after.steps - before.steps)
