"""W2 through HTTP against the same requests straight into the engine, taking turns: what serving costs.

    python benchmarks/http_vs_offline.py [--rounds 3] [--num-prompts 128] [--in-flight 32] [--json FILE] [-- FLAGS]

Shown for each run: output tokens a second and the share of time inside plan.run; of HTTP runs also the processor time
of front and load generator for each token. All share the machine with the kernels. Every round gets new prompts (a
salt). FLAGS are engine settings for both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from servers import Server, octavo, write_result
from sidebyside.measure import offline

from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Limits, figures
from octavo.bench.workload import Workload, tokenizer_of
from octavo.config import EngineConfig

MODEL = EngineConfig().model


def without_server(num_prompts: int, in_flight: int, salt: int, flags: list[str]) -> dict[str, float]:
    found = offline(MODEL, num_prompts, in_flight, salt, flags)
    return {
        "tokens_per_s": found["output_tokens_per_s"],
        "inside": 1.0 - found["outside_share"],
        "overhead_us": found["step_overhead_us"],
    }


def http(server: Server, num_prompts: int, in_flight: int, salt: int) -> dict[str, float]:
    """One W2 run. Raises RuntimeError if any request failed."""
    requests, warm_up = Workload(num_prompts, warm_up=4, salt=salt).build(tokenizer_of(MODEL))
    load = Load("completions", "", {"temperature": 0, "ignore_eos": True}, concurrency=in_flight)
    before, cpu_s = server.metrics(), server.cpu_s()
    mine_s = time.process_time()
    run = run_serve(server.url, requests, warm_up, load, None)
    mine_s, cpu_s, after = time.process_time() - mine_s, server.cpu_s() - cpu_s, server.metrics()
    result = figures(run, Limits())
    if result.failed or not result.complete:
        raise RuntimeError(f"{result.failed} of {len(requests)} requests failed: {result.errors}")

    def grown(name: str) -> float:
        return after[name] - before[name]

    tokens = grown("generation_tokens_total")
    return {
        "tokens_per_s": result.output_tokens_per_s,
        "inside": grown("forward_seconds_total") / grown("engine_busy_seconds_total"),
        "overhead_us": grown("step_overhead_seconds_total") / grown("engine_steps_total") * 1e6,
        "front_us": cpu_s / tokens * 1e6,
        "client_us": mine_s / tokens * 1e6,
    }


def line(run: dict[str, float]) -> str:
    parts = [f"{run['tokens_per_s']:7.1f} tokens/s", f"{run['inside']:.2%} inside plan.run"]
    parts.append(f"{run['overhead_us']:.0f} us a step outside")
    if "front_us" in run:
        parts.append(f"front {run['front_us']:.1f} us a token, client {run['client_us']:.1f}")
    return ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--salt", type=int, default=1, help="first of the salts; each round takes the next")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="engine settings, for both")
    arguments = parser.parse_args()
    count, in_flight = arguments.num_prompts, arguments.in_flight
    runs: dict[str, list[dict[str, float]]] = {"offline": [], "HTTP": []}
    for turn in range(arguments.rounds):
        salt = arguments.salt + turn
        runs["offline"].append(without_server(count, in_flight, salt, arguments.flags))
        with octavo("--model", MODEL, "--max-num-seqs", str(in_flight), *arguments.flags) as server:
            runs["HTTP"].append(http(server, count, in_flight, salt))
        for name, done in runs.items():
            print(f"round {turn + 1}: {name:<8}{line(done[-1])}", flush=True)
    medians = {
        name: {key: statistics.median(run[key] for run in done) for key in done[0]} for name, done in runs.items()
    }
    ratios = [h["tokens_per_s"] / o["tokens_per_s"] for o, h in zip(runs["offline"], runs["HTTP"], strict=True)]
    for name, median in medians.items():
        print(f"median:  {name:<8}{line(median)}")
    print(f"HTTP / offline: {statistics.median(ratios):.1%} ({', '.join(f'{ratio:.1%}' for ratio in ratios)})")
    write_result(arguments.json, {"ratios": ratios, "medians": medians, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
