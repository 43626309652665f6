"""Perplexity of a model on ShareGPT text in two modes: what the default mode's arithmetic costs in accuracy.

    python benchmarks/perplexity.py [--model NAME] [--tokens 20000] [--backend cpu]

The text is cut into windows; every token of a window but its first is predicted from those before it in the window.
Both modes score the same tokens. The run exits with 1 if default mode is more than 0.5 % worse than exact mode.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Batch, Plan, PlanLimits, SlotParams
from octavo.bench.dataset import whole_records
from octavo.config import EngineConfig
from octavo.formats.resolve import resolve, resolve_dataset
from octavo.models.load import load_model
from octavo.runtime.build import kv_spec, make_backend, make_plan
from octavo.text.tokenizer import Tokenizer

Tokens = npt.NDArray[np.int32]

WINDOW_TOKENS = 1024
CHUNK_TOKENS = 256
LARGEST_LOSS = 0.005


def dataset_tokens(model: str, count: int) -> Tokens:
    """int32 [count]: the turns of ShareGPT's first conversations, one after another, as plain text."""
    tokenizer = Tokenizer.load(resolve(model))
    ids: list[int] = []
    for record in whole_records(resolve_dataset("sharegpt")):
        for turn in record["conversations"]:
            ids += tokenizer.encode(turn["value"] + "\n")
        if len(ids) >= count:
            return np.array(ids[:count], np.int32)
    raise ValueError(f"the data set has only {len(ids)} tokens, {count} were asked for")


def log_likelihoods(config: EngineConfig, tokens: Tokens) -> Iterator[npt.NDArray[np.float64]]:
    """For each window, float64 [window - 1]: the log-probability of each token but the first."""
    model = load_model(resolve(config.model))
    kv = kv_spec(model.spec, config)
    limits = PlanLimits(
        max_tokens=CHUNK_TOKENS,
        max_seqs=CHUNK_TOKENS,  # rows to sample from: all of a chunk
        max_blocks=WINDOW_TOKENS // config.page_size,
        num_pages=WINDOW_TOKENS // config.page_size,
        vocab=model.spec.vocab,
    )
    plan = make_plan(model, make_backend(config), limits, kv)
    for slot in range(CHUNK_TOKENS):  # a slot may have one output row in a step
        plan.set_slot(slot, SlotParams(seed=0, temperature=0.0), tokens[:1], 1)
    for start in range(0, len(tokens) - 1, WINDOW_TOKENS):
        yield _score_window(plan, limits, tokens[start : start + WINDOW_TOKENS])


def _score_window(plan: Plan, limits: PlanLimits, window: Tokens) -> npt.NDArray[np.float64]:
    scores = []
    for start in range(0, len(window), CHUNK_TOKENS):
        chunk = window[start : start + CHUNK_TOKENS]
        logits = plan.run(_chunk_batch(limits, chunk, start)).logits
        assert logits is not None
        targets = window[start + 1 : start + 1 + len(chunk)]
        scores.append(_log_softmax_at(logits[: len(targets)], targets))
    return np.concatenate(scores)


def _chunk_batch(limits: PlanLimits, chunk: Tokens, start: int) -> Batch:
    """One sequence whose page i is block i; every row's logits are wanted."""
    count = len(chunk)
    return Batch(
        num_tokens=count,
        num_seqs=1,
        num_outputs=count,
        tokens=chunk,
        positions=np.arange(start, start + count, dtype=np.int32)[None],
        token_seq=np.zeros(count, np.int32),
        query_start=np.array([0, count], np.int32),
        context_len=np.array([start + count], np.int32),
        block_table=np.arange(limits.max_blocks, dtype=np.int32)[None, None],
        output_rows=np.arange(count, dtype=np.int32),
        output_slots=np.arange(count, dtype=np.int32),
        output_targets=np.full(count, -1, np.int32),
        capture_logits=True,
    )


def _log_softmax_at(logits: npt.NDArray[np.float32], targets: Tokens) -> npt.NDArray[np.float64]:
    largest = logits.max(axis=1)
    totals = np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)
    scores: npt.NDArray[np.float64] = logits[np.arange(len(targets)), targets] - largest - np.log(totals)
    return scores


def perplexity(config: EngineConfig, tokens: Tokens, show: bool = False) -> float:
    """exp of the mean negative log-likelihood over all scored tokens."""
    total, count = 0.0, 0
    for window in log_likelihoods(config, tokens):
        total, count = total - float(window.sum()), count + len(window)
        if show:
            name = f"{config.activations}/{config.kv_cache_dtype}"
            print(f"\r{name:>10}: {count:6d} tokens, perplexity {math.exp(total / count):.4f}", end="", file=sys.stderr)
    if show:
        print(file=sys.stderr)
    return math.exp(total / count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--backend", default="cpu")
    arguments = parser.parse_args()
    tokens = dataset_tokens(arguments.model, arguments.tokens)
    default = EngineConfig(model=arguments.model, backend=arguments.backend)
    exact = replace(default, activations="f32", kv_cache_dtype="f32")
    exact_value, default_value = perplexity(exact, tokens, show=True), perplexity(default, tokens, show=True)
    loss = default_value / exact_value - 1
    print(f"exact {exact_value:.4f}, default {default_value:.4f}: {loss:+.3%} (limit {LARGEST_LOSS:+.1%})")
    return 0 if loss <= LARGEST_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())
