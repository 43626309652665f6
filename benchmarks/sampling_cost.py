"""What each sampling parameter costs: decode steps of a full batch with it, against greedy ones.

    python benchmarks/sampling_cost.py [--model smollm2-135m-instruct] [--sequences 32] [--tokens 64] [--rounds 5]
                                       [--json FILE]

Every setting runs once in each round, in one process, on the same prompts, and right after a greedy run of its own,
since a machine's speed may change within a round. Shown is the median of the pairs' ratios of time, prefill included.
Texts differ, but no answer ends early, so that every run computes as many tokens. Beam search and best_of are left out:
they add sequences, not work for each of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from servers import write_result

from octavo import LLM, SamplingParams
from octavo.bench.workload import Workload, tokenizer_of
from octavo.config import EngineConfig

GREEDY: dict[str, Any] = {"temperature": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy again": GREEDY,
    "temperature 0.8": {"temperature": 0.8},
    "top_k 40": {"temperature": 0.8, "top_k": 40},
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "top_k 40, top_p 0.9, min_p 0.05": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "repetition_penalty 1.1": GREEDY | {"repetition_penalty": 1.1},
    "presence and frequency_penalty 0.5": GREEDY | {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias of 300 tokens": GREEDY | {"logit_bias": dict.fromkeys(range(1000, 1300), 1.0)},
    "allowed_token_ids, 1,000 of them": GREEDY | {"allowed_token_ids": tuple(range(1000, 2000))},
    "bad_words, 20 of them": GREEDY | {"bad_words": tuple(f"word{index}" for index in range(20))},
    "dry_multiplier 0.8": GREEDY | {"dry_multiplier": 0.8},
    "xtc_probability 0.5": {"temperature": 0.8, "xtc_probability": 0.5},
    "min_tokens 16": GREEDY | {"min_tokens": 16},
    "stop, 4 texts": GREEDY | {"stop": ("<<1>>", "<<2>>", "<<3>>", "<<4>>")},
    "logprobs 0": GREEDY | {"logprobs": 0},
    "logprobs 5": GREEDY | {"logprobs": 5},
    "logprobs 20": GREEDY | {"logprobs": 20},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    llm = LLM(arguments.model, max_num_seqs=arguments.sequences, prefix_caching=False)
    requests, _ = Workload(arguments.sequences).build(tokenizer_of(arguments.model))
    prompts = [request.prompt for request in requests]

    def timed(setting: dict[str, Any]) -> float:
        params = SamplingParams(**setting, seed=1, max_tokens=arguments.tokens, ignore_eos=True)
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, progress=False)
        took_s = time.perf_counter() - began
        made = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
        if made != arguments.sequences * arguments.tokens:
            raise RuntimeError(f"{setting}: {made} tokens, not {arguments.sequences * arguments.tokens}")
        return took_s

    timed(GREEDY)  # warms up
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
    for turn in range(arguments.rounds):
        for name, setting in SETTINGS.items():
            pairs[name].append((timed(GREEDY), timed(setting)))
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    print(table(pairs))
    write_result(arguments.json, pairs)
    return 0


def table(pairs: dict[str, list[tuple[float, float]]]) -> str:
    """Markdown; `pairs` are seconds: greedy, with the setting."""
    lines = ["| setting | time against greedy |", "| --- | --- |"]
    for name, runs in pairs.items():
        lines.append(f"| {name} | {statistics.median(took / greedy for greedy, took in runs) - 1.0:+.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
