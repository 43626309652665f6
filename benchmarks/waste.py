"""KV waste with 64 ShareGPT requests in flight, as the server's own /metrics report it.

    python benchmarks/waste.py [--limit 0.02] [--page-size 4] [--num-prompts 256] [--json FILE]

Waste = unfilled slots over slots of pages that sequences hold, sampled after each step; `kv_waste_ratio` is its mean.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from servers import octavo, write_result

from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Limits, figures
from octavo.bench.workload import Workload, tokenizer_of

MODEL = "smollm2-135m-instruct"
IN_FLIGHT = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=0.02, help="above it the exit status is 1 (default: 0.02)")
    parser.add_argument("--page-size", default="4")
    parser.add_argument("--num-prompts", type=int, default=256)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    requests, _ = Workload(arguments.num_prompts).build(tokenizer_of(MODEL))
    load = Load("completions", "", {"temperature": 0, "ignore_eos": True}, concurrency=IN_FLIGHT)
    with octavo("--model", MODEL, "--page-size", arguments.page_size) as server:
        result = figures(run_serve(server.url, requests, [], load, None), Limits())
        waste = server.metrics()["kv_waste_ratio"]
    print(
        f"mean KV waste {waste:.2%} (limit {arguments.limit:.0%}) with {result.peak_in_flight} requests in flight, "
        f"{result.completed} complete, {result.failed} failed, {result.output_tokens_per_s:.0f} output tokens/s"
    )
    write_result(arguments.json, {"kv_waste_ratio": waste, "figures": result.to_json()})
    return int(waste > arguments.limit or result.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
