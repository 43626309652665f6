"""W2 against llama.cpp's server: 128 ShareGPT requests, 32 in flight, through HTTP, engines taking turns.

    python benchmarks/w2_vs_llamacpp.py [--rounds 3] [--native | --llama-server PATH] [--json FILE]

llama.cpp serves the shipped file (Q4_1, which is a slow path there) and the same weights re-rounded to Q4_0, its best
format. By default it comes from the `xllamacpp` wheel, which knows AVX2 only: ratios to it are shown as measured and
divided by 1.4. --native builds it here instead, --llama-server takes one that is there.

Every run gets new prompts (a salt), so that no cache carries over. One engine runs at a time; the load generator shares
the machine with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from llamacpp import LlamaCpp, requantised
from servers import octavo, write_result

from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Figures, Limits, figures
from octavo.bench.workload import Workload, tokenizer_of
from octavo.formats.resolve import resolve

MODEL = "smollm2-135m-instruct"
IN_FLIGHT = 32
SLOT_TOKENS = 1024
OURS = "Octavo"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine (default: 3)")
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--native", action="store_true", help="build llama.cpp here with native flags")
    parser.add_argument("--llama-server", type=Path, help="a natively built llama-server")
    parser.add_argument("--salt", type=int, default=1, help="first of the salts; each run takes the next")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    if arguments.llama_server is not None:
        peer = LlamaCpp(arguments.llama_server, None, 1.0)
    else:
        peer = LlamaCpp.native() if arguments.native else LlamaCpp.wheel()
    shipped = resolve(MODEL).path
    smaller = requantised(shipped)
    engines = {
        OURS: lambda: octavo("--model", MODEL),
        "llama.cpp Q4_1": lambda: peer.server("llama.cpp Q4_1", shipped, IN_FLIGHT, SLOT_TOKENS),
        "llama.cpp Q4_0": lambda: peer.server("llama.cpp Q4_0", smaller, IN_FLIGHT, SLOT_TOKENS),
    }
    rates: dict[str, list[float]] = {name: [] for name in engines}
    salt = arguments.salt
    for turn in range(arguments.rounds):
        for name, start in engines.items():
            with start() as server:
                result = measure(server.url, arguments.num_prompts, salt)
            salt += 1
            rates[name].append(result.output_tokens_per_s)
            print(
                f"round {turn + 1}: {name:<15} {result.output_tokens_per_s:7.1f} output tokens/s, TTFT p50 "
                f"{result.ttft_ms.p50:.0f} ms, TPOT p50 {result.tpot_ms.p50:.0f} ms, {result.output_tokens} tokens",
                flush=True,
            )
    content = summary(rates, peer.factor)
    print(json.dumps(content, indent=2))
    write_result(arguments.json, content)
    return 0


def measure(url: str, num_prompts: int, salt: int) -> Figures:
    """One W2 run. Raises RuntimeError if any request failed: such a run can't be compared."""
    requests, warm_up = Workload(num_prompts, warm_up=4, salt=salt).build(tokenizer_of(MODEL))
    load = Load("completions", "", {"temperature": 0, "ignore_eos": True}, concurrency=IN_FLIGHT)
    result = figures(run_serve(url, requests, warm_up, load, None), Limits())
    if result.failed or not result.complete:
        raise RuntimeError(f"{result.failed} of {len(requests)} requests failed: {result.errors}")
    return result


def summary(rates: dict[str, list[float]], factor: float) -> dict[str, object]:
    """Medians, and Octavo's ratio to each peer: as measured, and against a native build (divided by `factor`).

    A ratio is the median of the rounds' own ratios, each between neighbours in time.
    """
    ratios = {}
    for name in rates:
        if name != OURS:
            measured = statistics.median(ours / theirs for ours, theirs in zip(rates[OURS], rates[name], strict=True))
            ratios[name] = {"measured": round(measured, 3), "against a native build": round(measured / factor, 3)}
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return {"output_tokens_per_s": medians, "ratios": ratios, "runs": rates, "native_factor": factor}


if __name__ == "__main__":
    sys.exit(main())
