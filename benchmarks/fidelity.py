"""The calibrated simulator against the real engine on this machine: one trace through both.

    python benchmarks/fidelity.py [--calibration FILE] [--rates 1.5 3] [--num-prompts 100] [--json FILE]

Without --calibration the machine is measured first (two minutes). Both run octavo's loop over the same scheduler;
in the one a step is computed, in the other it is predicted. The exit status is 1 if throughput is off by more than
5 %, a median by more than 10 % or a 99th percentile by more than 20 %.
"""

from __future__ import annotations

import argparse
import json
import sys
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
from octavo.simulate.calibrate import Calibration
from octavo.simulate.figures import Latencies
from octavo.simulate.load import Load
from octavo.simulate.measure import calibrate
from octavo.simulate.replica import (
    AfterStep,
    Machine,
    MakePrompt,
    RealMachine,
    Replica,
    StepCost,
    Timeline,
    VirtualMachine,
    run_load,
)

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.5, 3.0])
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = EngineConfig()
    engine = build_engine(config)
    if arguments.calibration and arguments.calibration.exists():
        found = Calibration.read(arguments.calibration)
    else:
        found = calibrate(engine, config, lambda done, total: None)
        if arguments.calibration:
            found.write(arguments.calibration)
    results, worst = [], True
    for rate in arguments.rates:
        work = build(
            Workload(arguments.num_prompts), config.model, engine.facts.vocab, engine.facts.max_model_len, rate
        )
        virtual = VirtualMachine(found.cost, found.overhead_s)
        errors = StepErrors(found.cost)
        real = figures(engine, RealMachine(engine.executor), work.load, work.prompt, errors.after_step)
        simulated = figures(engine, virtual, work.load, work.prompt)
        print(f"{rate:g} requests a second      real  simulated   error (limit)")
        for name, limit in LIMITS.items():
            error = simulated[name] / real[name] - 1
            worst = worst and abs(error) <= limit
            mark = "" if abs(error) <= limit else "  MISSED"
            print(f"{name:<20}{real[name]:>12.2f}{simulated[name]:>11.2f}{error:>+8.1%} ({limit:.0%}){mark}")
        print(errors.text())
        results.append({"rate": rate, "real": real, "simulated": simulated})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if worst else 1


if __name__ == "__main__":
    sys.exit(main())
