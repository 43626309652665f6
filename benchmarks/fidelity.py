"""The calibrated simulator against the real engine on this machine: one trace through both, several times.

    python benchmarks/fidelity.py [--rates inf 4] [--num-prompts 64] [--repeats 3] [--seconds-each 0.5] [--json FILE]

Every repeat calibrates anew, runs the trace on the engine, and measures a few kinds of steps again: so it is known how
much faster or slower the machine has become meanwhile. The simulator gets the trace and the calibration, nothing of the
run. Errors are medians over the repeats. Both run octavo's loop over the same scheduler; in the one a step is computed,
in the other it is predicted. The exit status is 1 if throughput is off by more than 5 %, a median by more than 10 % or
a 99th percentile by more than 20 %.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from octavo.bench.policies.workload import build
from octavo.bench.workload import Workload
from octavo.config import EngineConfig
from octavo.engine.request import StepOutputs
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Step, StepResult
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine
from octavo.simulate.calibrate import Measured, measure
from octavo.simulate.figures import Latencies
from octavo.simulate.load import Load
from octavo.simulate.machine import Machine, RealMachine, StepCost, VirtualMachine
from octavo.simulate.measure import calibrate
from octavo.simulate.replica import AfterStep, MakePrompt, Replica, Timeline, run_load

LIMITS = {"tokens/s": 0.05, "TTFT p50": 0.10, "TPOT p50": 0.10, "TTFT p99": 0.20, "TPOT p99": 0.20}


class StepErrors:
    """Predicted / measured seconds of the real run's steps."""

    def __init__(self, cost: StepCost) -> None:
        self._machine = VirtualMachine(cost)
        self.decodes: list[float] = []
        self.mixed: list[float] = []

    def after_step(self, step: Step, result: StepResult, outputs: StepOutputs, began_s: float, now_s: float) -> None:
        ratio = self._machine.run(step).forward_s / result.forward_s
        (self.decodes if step.num_tokens_total == len(step.slots) else self.mixed).append(ratio)

    def text(self) -> str:
        named = (("decodes only", self.decodes), ("with prefill", self.mixed))
        parts = [
            f"{name} {np.median(ratios):.2f} ({len(ratios)} steps, "
            f"p10 {np.percentile(ratios, 10):.2f}, p90 {np.percentile(ratios, 90):.2f})"
            for name, ratios in named
            if ratios
        ]
        return "predicted / measured time of the real run's steps, median: " + "; ".join(parts)


def figures(
    engine: Engine, machine: Machine, load: Load, prompt: MakePrompt, after_step: AfterStep | None = None
) -> dict[str, float]:
    timeline = Timeline.of(load.arrival_s)
    replica = Replica(Scheduler(engine.scheduler.config), machine, timeline, load, after_step)
    run_load(replica, load, prompt)
    latencies = Latencies.of(timeline)
    return {
        "tokens/s": float(timeline.tokens.sum() / timeline.finish_s.max()),
        "TTFT p50": latencies.ttft_ms.p50,
        "TPOT p50": latencies.tpot_ms.p50,
        "TTFT p99": latencies.ttft_ms.p99,
        "TPOT p99": latencies.tpot_ms.p99,
    }


def drift(engine: Engine, measured: list[Measured]) -> float:
    """Median of times now over times when the machine was calibrated, of a few kinds of steps."""
    points = [one.point for one in measured if one.point.sequences * one.point.tokens <= 64][::4]
    facts = engine.facts
    again = measure(engine.executor, points, facts.page_size, facts.num_pages, 0.3, lambda done, total: None, rounds=1)
    before = {one.point: one.seconds for one in measured}
    return float(np.median([one.seconds / before[one.point] for one in again]))


@dataclass
class Pair:
    """One run on the engine, and the simulation of it."""

    rate: float
    real: dict[str, float]
    simulated: dict[str, float]
    drift: float
    steps: str

    def error(self, name: str) -> float:
        return self.simulated[name] / self.real[name] - 1


def pairs(
    engine: Engine, config: EngineConfig, rates: list[float], count: int, seconds_each: float, seed: int
) -> list[Pair]:
    """A calibration, and then a run at each rate."""
    measured: list[Measured] = []
    found = calibrate(engine, config, lambda done, total: None, seconds_each, measured)
    made = []
    for rate in rates:
        work = build(Workload(count), config.model, engine.facts.vocab, engine.facts.max_model_len, rate)
        errors = StepErrors(found.cost)
        real = figures(engine, RealMachine(engine.executor), work.load, work.prompt, errors.after_step)
        changed = drift(engine, measured)
        virtual = VirtualMachine(found.cost, found.loop, found.spread, seed)
        made.append(Pair(rate, real, figures(engine, virtual, work.load, work.prompt), changed, errors.text()))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[math.inf, 4.0])
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds-each", type=float, default=0.5, help="for each kind of step of a calibration")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = EngineConfig()
    engine = build_engine(config)
    made: list[Pair] = []
    for seed in range(arguments.repeats):
        found = pairs(engine, config, arguments.rates, arguments.num_prompts, arguments.seconds_each, seed)
        for pair in found:
            errors = ", ".join(f"{name} {pair.error(name):+.1%}" for name in LIMITS)
            print(f"{pair.rate:g} requests a second: {errors}; the machine takes {pair.drift:.2f} times as long since")
            print(pair.steps, flush=True)
        made += found
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(pair) for pair in made], indent=2) + "\n")
    within = [summary(rate, [pair for pair in made if pair.rate == rate]) for rate in arguments.rates]
    return 0 if all(within) else 1


def summary(rate: float, made: list[Pair]) -> bool:
    """Print medians over the repeats. True if they are within the limits."""
    within = True
    print(f"{rate:g} requests a second      real  simulated   error (limit)")
    for name, limit in LIMITS.items():
        error = float(np.median([pair.error(name) for pair in made]))
        within = within and abs(error) <= limit
        real = np.median([pair.real[name] for pair in made])
        simulated = np.median([pair.simulated[name] for pair in made])
        mark = "" if abs(error) <= limit else "  MISSED"
        print(f"{name:<20}{real:>12.2f}{simulated:>11.2f}{error:>+8.1%} ({limit:.0%}){mark}")
    return within


if __name__ == "__main__":
    sys.exit(main())
