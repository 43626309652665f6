"""Requests for `octavo bench policies`: when they come, how long they are, and of which tokens they are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.bench.workload import Workload, tokenizer_of
from octavo.simulate.load import Load, poisson, read_load
from octavo.simulate.replica import MakePrompt, random_prompts


@dataclass(frozen=True, slots=True)
class PolicyWork:
    """The load, its prompts, and a sentence that says what it is."""

    load: Load
    prompt: MakePrompt
    text: str


def build(work: Workload, model: str, vocab: int, max_model_len: int, rate: float) -> PolicyWork:
    """`rate` arrivals a second as a Poisson process, inf: all at once. A trace (.csv) keeps its own arrivals, stretched
    to that mean rate unless it is inf; its lengths are clipped to the context. Raises ValueError (TraceError).
    """
    if work.dataset.endswith(".csv"):
        return _from_trace(Path(work.dataset), work, vocab, max_model_len, rate)
    arrival_s = poisson(work.count, rate, work.seed)
    when = "all at once" if not arrival_s.any() else f"{rate:g} a second (Poisson)"
    if work.dataset == "random":
        lengths = np.full(work.count, work.input_len), np.full(work.count, work.output_len)
        load, _ = Load(arrival_s, *lengths).clipped(max_model_len)
        text = f"{work.count} requests of {work.input_len} random tokens, {work.output_len} answered, {when}"
        return PolicyWork(load, random_prompts(load, vocab, work.seed), text)
    tokenizer = tokenizer_of(model)
    requests, _ = work.build(tokenizer)
    prompts = [np.asarray(tokenizer.encode_prompt(r.prompt)[: max_model_len - 1], np.int32) for r in requests]
    sizes = np.array([len(prompt) for prompt in prompts])
    load, _ = Load(arrival_s, sizes, np.array([r.output_tokens for r in requests])).clipped(max_model_len)
    return PolicyWork(load, lambda index: prompts[index], f"{work.count} conversations of {work.dataset}, {when}")


def _from_trace(path: Path, work: Workload, vocab: int, max_model_len: int, rate: float) -> PolicyWork:
    load = read_load(path).head(work.count)
    own = (len(load) - 1) / load.arrival_s[-1] if load.arrival_s[-1] > 0 else np.inf
    if np.isfinite(rate) and np.isfinite(own):
        load = load.faster(rate / own)
        own = rate
    load, changed = load.clipped(max_model_len)
    text = f"{len(load)} requests of {path.name} in random tokens, {own:.3g} a second, {changed} clipped to the context"
    return PolicyWork(load, random_prompts(load, vocab, work.seed), text)
