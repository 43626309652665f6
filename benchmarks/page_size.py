"""Waste and speed for page sizes of 4, 8, 16 and 32 tokens: the table in docs/memory.md.

    python benchmarks/page_size.py [--rounds 3] [--num-prompts 128] [--json FILE]

64 ShareGPT requests in flight through the server, page sizes taking turns, new prompts in every run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from servers import octavo, write_result

from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Limits, figures
from octavo.bench.workload import Workload, tokenizer_of

MODEL = "smollm2-135m-instruct"
PAGE_SIZES = (4, 8, 16, 32)
IN_FLIGHT = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    waste: dict[int, list[float]] = {size: [] for size in PAGE_SIZES}
    rate: dict[int, list[float]] = {size: [] for size in PAGE_SIZES}
    for turn in range(arguments.rounds):
        requests, warm_up = Workload(arguments.num_prompts, warm_up=4, salt=turn + 1).build(tokenizer_of(MODEL))
        load = Load("completions", "", {"temperature": 0, "ignore_eos": True}, concurrency=IN_FLIGHT)
        for size in PAGE_SIZES:
            with octavo("--model", MODEL, "--page-size", str(size)) as server:
                result = figures(run_serve(server.url, requests, warm_up, load, None), Limits())
                waste[size].append(server.metrics()["kv_waste_ratio"])
            rate[size].append(result.output_tokens_per_s)
            print(f"round {turn + 1}: {size} tokens a page: {rate[size][-1]:.0f} tokens/s", file=sys.stderr, flush=True)
    print(table(waste, rate))
    write_result(arguments.json, {"waste": waste, "output_tokens_per_s": rate})
    return 0


def table(waste: dict[int, list[float]], rate: dict[int, list[float]]) -> str:
    """Markdown; speed relative to 16 tokens a page, within each round."""
    lines = ["| tokens a page | KV waste | output tokens/s | against 16 |", "| --- | --- | --- | --- |"]
    for size in PAGE_SIZES:
        against = statistics.median(ours / base for ours, base in zip(rate[size], rate[16], strict=True))
        lines.append(
            f"| {size} | {statistics.median(waste[size]):.2%} | {statistics.median(rate[size]):.0f} | {against:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
