"""Perplexity of a model on ShareGPT text: what the default mode's arithmetic, or a type of K and V, costs in accuracy.

    python benchmarks/perplexity.py [--model NAME] [--tokens 20000] [--backend cpu] [--kv-cache-dtypes f16 int8]

All runs score the same tokens (octavo/bench/perplexity.py). By default they are exact mode and default mode, and the
exit status is 1 if default mode is more than 0.5 % worse. With --kv-cache-dtypes they are default mode over bf16 K and
V and over each of these types, and the exit status is 1 if one of them is more than 0.3 % worse.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from octavo.backends.kv_types import KV_TYPES
from octavo.bench.perplexity import Tokens, dataset_tokens, perplexity
from octavo.config import EngineConfig

LARGEST_LOSS = 0.005
LARGEST_KV_LOSS = 0.003


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
    parser.add_argument("--kv-cache-dtypes", nargs="+", choices=tuple(KV_TYPES), default=[], metavar="TYPE")
    arguments = parser.parse_args()
    tokens = dataset_tokens(arguments.model, arguments.tokens)
    default = EngineConfig(model=arguments.model, backend=arguments.backend)
    if arguments.kv_cache_dtypes:
        base, limit = replace(default, kv_cache_dtype="bf16"), LARGEST_KV_LOSS
        others = {f"{kv} K and V": replace(default, kv_cache_dtype=kv) for kv in arguments.kv_cache_dtypes}
        return _compare("bf16 K and V", base, others, tokens, limit)
    exact = replace(default, activations="f32", kv_cache_dtype="f32")
    return _compare("exact", exact, {"default": default}, tokens, LARGEST_LOSS)


def _compare(name: str, base: EngineConfig, others: dict[str, EngineConfig], tokens: Tokens, limit: float) -> int:
    """Prints the loss of each against `base`; 1 if one is over the limit."""
    base_value, failed = shown_perplexity(base, tokens), 0
    for other, config in others.items():
        value = shown_perplexity(config, tokens)
        loss = value / base_value - 1
        failed |= loss > limit
        print(f"{name} {base_value:.4f}, {other} {value:.4f}: {loss:+.3%} (limit {limit:+.1%})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
