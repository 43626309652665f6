"""Time of Scheduler.schedule + apply per step, in microseconds, while sequences decode and others wait.

    python benchmarks/scheduler_step.py

The executor is an array of constant tokens, so what is measured is what the scheduler adds between two forward passes.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.engine.step import Step, StepResult

STEPS = 400
PROMPT = (60, 140)


def result_of(step: Step) -> StepResult:
    rows = int(step.sample.sum())
    return StepResult(
        step_id=step.step_id,
        tokens=np.full((rows, 1), 77, np.int32),
        counts=np.ones(rows, np.int32),
        forward_s=0.01,
        total_s=0.01,
    )


def measure(running: int, waiting: int) -> tuple[float, float]:
    """Median and 99th percentile of a decode step's microseconds."""
    scheduler = Scheduler(SchedulerConfig(4096, running, 1024, 4, 200_000, frozenset({2})))
    rng = np.random.default_rng(0)
    for i in range(running + waiting):
        prompt = rng.integers(3, 40_000, rng.integers(*PROMPT), dtype=np.int32)
        scheduler.add(Request(i, prompt, SamplingParams(max_tokens=2000), seed=i, arrival_s=0.0))
    times = []
    while len(times) < STEPS:
        start = time.perf_counter()
        step = scheduler.schedule(0.0)
        middle = time.perf_counter()
        assert step is not None
        result = result_of(step)
        resume = time.perf_counter()
        scheduler.apply(step, result, 0.0)
        if step.num_tokens_total == running:
            times.append((middle - start + time.perf_counter() - resume) * 1e6)
    return statistics.median(times), sorted(times)[len(times) * 99 // 100]


def main() -> None:
    print("decoding  waiting  median us  p99 us")
    for running, waiting in [(1, 0), (32, 0), (32, 2000), (64, 0), (256, 0), (256, 2000)]:
        median, tail = measure(running, waiting)
        print(f"{running:8d} {waiting:8d} {median:10.0f} {tail:7.0f}")


if __name__ == "__main__":
    main()
