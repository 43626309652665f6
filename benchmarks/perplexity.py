"""Perplexity of a model on ShareGPT text in two modes: what the default mode's arithmetic costs in accuracy.

    python benchmarks/perplexity.py [--model NAME] [--tokens 20000] [--backend cpu]

Both modes score the same tokens (octavo/bench/perplexity.py). The run exits with 1 if default mode is more than 0.5 %
worse than exact mode.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from octavo.bench.perplexity import Tokens, dataset_tokens, perplexity
from octavo.config import EngineConfig

LARGEST_LOSS = 0.005


def shown_perplexity(config: EngineConfig, tokens: Tokens) -> float:
    """With a line on stderr that grows."""
    name = f"{config.activations}/{config.kv_cache_dtype}"

    def show(done: int, total: int, so_far: float) -> None:
        print(f"\r{name:>10}: {done:6d} tokens, perplexity {so_far:.4f}", end="", file=sys.stderr)

    value = perplexity(config, tokens, show)
    print(file=sys.stderr)
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--backend", default="cpu")
    arguments = parser.parse_args()
    tokens = dataset_tokens(arguments.model, arguments.tokens)
    default = EngineConfig(model=arguments.model, backend=arguments.backend)
    exact = replace(default, activations="f32", kv_cache_dtype="f32")
    exact_value, default_value = shown_perplexity(exact, tokens), shown_perplexity(default, tokens)
    loss = default_value / exact_value - 1
    print(f"exact {exact_value:.4f}, default {default_value:.4f}: {loss:+.3%} (limit {LARGEST_LOSS:+.1%})")
    return 0 if loss <= LARGEST_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())
