"""Microseconds that the scheduler adds to a step (`schedule` and `apply`), against everything it could grow with.

    python benchmarks/scheduler_step.py                      # the tables; about two minutes
    python benchmarks/scheduler_step.py --json scale.json
    python benchmarks/scheduler_step.py --plot docs/scheduler-step.svg    # needs matplotlib: pip install '.[bench]'

The executor is an array of constant tokens, so what is measured is what stands between two forward passes, without the
arrays of the step itself. A plain step carries one token for each running sequence. In a step with a change, a sequence
has ended and a waiting one enters with its prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.engine.step import Step, StepResult

RUNNING = (1, 4, 16, 64, 128, 256, 512, 1024)
WAITING = (0, 100, 1_000, 10_000, 100_000)
CONTEXT = (100, 1_000, 8_000, 32_000, 128_000)
#: What stays the same while the others vary.
FIXED_RUNNING, FIXED_CONTEXT = 32, 100
POLICIES = ("fcfs", "priority", "fair")
PAGE_SIZE = 4
PLAIN_STEPS, CHANGES = 300, 30


@dataclass(frozen=True)
class Point:
    """Microseconds: median and 99th percentile of plain steps, median of steps with a change (None: there was none)."""

    running: int
    waiting: int
    context: int
    policy: str
    median_us: float
    p99_us: float
    change_us: float | None


def result_of(step: Step) -> StepResult:
    rows = int(step.sample.sum())
    return StepResult(
        step_id=step.step_id,
        tokens=np.full((rows, 1), 77, np.int32),
        counts=np.ones(rows, np.int32),
        forward_s=0.01,
        total_s=0.01,
    )


class Bench:
    """A scheduler whose steps are timed."""

    def __init__(self, running: int, context: int, policy: str) -> None:
        self.longest = context + 2 * running + PLAIN_STEPS + 10 * CHANGES + 64
        pages = (running + CHANGES) * (-(-self.longest // PAGE_SIZE) + 1)
        budget = running * (context + 1)  # all prompts in one step, or the first would end before the last runs
        self.scheduler = Scheduler(
            SchedulerConfig(self.longest, running, budget, PAGE_SIZE, pages, frozenset({2}), policy=policy)
        )
        self._rng = np.random.default_rng(0)
        self._added = 0

    def add(self, length: int, tokens: int) -> None:
        prompt = self._rng.integers(3, 40_000, length, dtype=np.int32)
        tenant = (("tenant", str(self._added % 7)),)
        params = SamplingParams(max_tokens=tokens)
        self.scheduler.add(
            Request(self._added, prompt, params, seed=0, arrival_s=0.0, priority=self._added % 3, salt=tenant)
        )
        self._added += 1

    def step(self) -> tuple[Step, float]:
        """One step, and the microseconds that it took the scheduler."""
        begin = time.perf_counter()
        step = self.scheduler.schedule(0.0)
        scheduled = time.perf_counter()
        assert step is not None
        result = result_of(step)
        resume = time.perf_counter()
        self.scheduler.apply(step, result, 0.0)
        return step, (scheduled - begin + time.perf_counter() - resume) * 1e6


def measure(running: int, waiting: int, context: int, policy: str = "fcfs") -> Point:
    """Sequences of `context` tokens decode while others wait; one after another ends and makes room for the next."""
    bench = Bench(running, context, policy)
    for i in range(running):
        # They end one by one, ten steps apart, after the plain steps.
        bench.add(context, 2 * running + PLAIN_STEPS + 10 * min(i, CHANGES))
    while bench.step()[0].num_tokens_total != running:
        pass
    for _ in range(waiting):
        bench.add(100, bench.longest - 100)
    plain: list[float] = []
    changed: list[float] = []
    wanted = min(running - 1, CHANGES) if waiting >= CHANGES else 0
    while len(plain) < PLAIN_STEPS or len(changed) < wanted:
        step, taken = bench.step()
        if step.num_tokens_total == running:
            plain.append(taken)
        elif step.starts:
            changed.append(taken)
    tail = sorted(plain)[len(plain) * 99 // 100]
    change = statistics.median(changed) if changed else None
    return Point(running, waiting, context, policy, statistics.median(plain), tail, change)


def sweep() -> Iterable[tuple[str, list[Point]]]:
    """(what varies, points)."""
    yield "running", [measure(running, 0, FIXED_CONTEXT) for running in RUNNING]
    for policy in POLICIES:
        yield f"waiting, {policy}", [measure(FIXED_RUNNING, waiting, FIXED_CONTEXT, policy) for waiting in WAITING]
    yield "context", [measure(FIXED_RUNNING, 0, context) for context in CONTEXT]


def table(points: list[Point]) -> str:
    lines = [
        f"{'running':>8}{'waiting':>9}{'context':>9}{'median us':>11}{'p99 us':>9}{'us each':>9}{'with a change':>15}"
    ]
    for point in points:
        each = point.median_us / point.running
        change = f"{point.change_us:.0f}" if point.change_us is not None else "-"
        lines.append(
            f"{point.running:>8}{point.waiting:>9}{point.context:>9}{point.median_us:>11.0f}{point.p99_us:>9.0f}"
            f"{each:>9.2f}{change:>15}"
        )
    return "\n".join(lines)


def plot(sweeps: dict[str, list[Point]], path: Path) -> None:
    """Three panels: against running, waiting and context."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install '.[bench]'") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "octavo"
    import matplotlib.pyplot as plt

    figure, (by_running, by_waiting, by_context) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    points = sweeps["running"]
    by_running.plot([p.running for p in points], [p.median_us for p in points], "o-")
    by_running.set(xlabel="running sequences", ylabel="microseconds a step", ylim=(0, None), title="nothing waits")
    for name, points in sweeps.items():
        if name.startswith("waiting"):
            by_waiting.plot([p.waiting for p in points], [p.median_us for p in points], "o-", label=points[0].policy)
    by_waiting.set_xscale("symlog", linthresh=100)
    by_waiting.set(xlabel="waiting sequences", ylim=(0, None), title=f"{FIXED_RUNNING} run")
    by_waiting.legend()
    points = sweeps["context"]
    by_context.semilogx([p.context for p in points], [p.median_us for p in points], "o-")
    by_context.set(xlabel="context of each, tokens", ylim=(0, None), title=f"{FIXED_RUNNING} run")
    for axes in (by_waiting, by_context):
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (.svg or .png)")
    arguments = parser.parse_args()
    sweeps: dict[str, list[Point]] = {}
    for name, points in sweep():
        sweeps[name] = points
        print(f"\n{name}\n{table(points)}", flush=True)
    if arguments.json is not None:
        about: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count()}
        content = {**about, "sweeps": {name: [asdict(p) for p in points] for name, points in sweeps.items()}}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    if arguments.plot is not None:
        plot(sweeps, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
