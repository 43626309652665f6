"""Perplexity: how well a model predicts a text.

The text is cut into windows; every token of a window but its first is predicted from those before it in the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

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
#: How many tokens are scored, of how many, and the perplexity so far.
Show = Callable[[int, int, float], None]

WINDOW_TOKENS = 1024
CHUNK_TOKENS = 256
_MAX_TEXT_BYTES = 64 << 20


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


def text_tokens(model: str, path: Path, count: int) -> Tokens:
    """int32 [at most count]: the beginning of a text file. Raises ValueError if it has fewer than two tokens."""
    with path.open("rb") as file:
        text = file.read(_MAX_TEXT_BYTES).decode(errors="replace")
    ids = Tokenizer.load(resolve(model)).encode(text)[:count]
    if len(ids) < 2:
        raise ValueError(f"{path} has {len(ids)} tokens; a perplexity needs at least 2")
    return np.array(ids, np.int32)


def perplexity(config: EngineConfig, tokens: Tokens, show: Show | None = None) -> float:
    """exp of the mean negative log-likelihood over all scored tokens."""
    total, count = 0.0, 0
    for window in log_likelihoods(config, tokens):
        total, count = total - float(window.sum()), count + len(window)
        if show is not None:
            show(count, len(tokens), math.exp(total / count))
    return math.exp(total / count)


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
    window = min(WINDOW_TOKENS, model.spec.context)
    for start in range(0, len(tokens) - 1, window):
        yield _score_window(plan, limits, tokens[start : start + window])


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
