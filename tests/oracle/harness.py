"""Drives an engine step by step and keeps the logits that each token was drawn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.formats.model_files import ModelFiles
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine

#: A conversation's id, and the token ids of prompt and greedy continuation.
Continuation = dict[str, Any]


@dataclass
class Drawn:
    """What one sequence drew: its tokens, the logits of each, and how many prompt tokens came from the prefix index."""

    tokens: list[int] = field(default_factory=list)
    logits: list[npt.NDArray[np.float32]] = field(default_factory=list)
    cached_tokens: int = 0


def generate(
    engine: Engine,
    prompts: Sequence[npt.NDArray[np.int32]],
    params: Callable[[int], SamplingParams],
    seeds: Callable[[int], int] = lambda index: index,
) -> list[Drawn]:
    """Run all prompts together until every one has ended; n is 1. `params` and `seeds` go by the prompt's index."""
    drawn = [Drawn() for _ in prompts]
    for index, prompt in enumerate(prompts):
        engine.add(Request(index, prompt, params(index), seeds(index), arrival_s=0.0))
    engine.executor.capture_logits = True
    while engine.busy:
        step = engine.scheduler.schedule(0.0)
        assert step is not None, "work is left but nothing is scheduled"
        result = engine.executor.submit(step).result()
        outputs = engine.scheduler.apply(step, result, 0.0)
        assert result.outputs is not None
        for row, request_id in enumerate(outputs.request_ids.tolist()):
            drawn[request_id].tokens.append(int(outputs.tokens[row]))
            drawn[request_id].logits.append(result.outputs["logits"][row])
            drawn[request_id].cached_tokens = int(outputs.cached_tokens[row])
    return drawn


def greedy(steps: int) -> Callable[[int], SamplingParams]:
    """For every prompt: so many greedy tokens, whatever they are."""
    return lambda _: SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)


def assert_golden(golden: Mapping[str, npt.NDArray[np.float32]], name: str, drawn: Sequence[Drawn]) -> None:
    """Logits within 1e-4 of the largest |logit| of what transformers gave this model's prompts, and the same tokens."""
    for index, sequence in enumerate(drawn):
        expected = golden[f"{name}.{index}.logits"]
        actual = np.stack(sequence.logits)
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max(), f"prompt {index}"
        assert sequence.tokens == golden[f"{name}.{index}.tokens"].tolist(), f"prompt {index}"


def read_continuations(name: str) -> list[Continuation]:
    """What transformers said about a real model."""
    found: list[Continuation] = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    return found


def assert_continues(
    files: ModelFiles, golden: Sequence[Continuation], backend: str, indices: Sequence[int], count: int
) -> None:
    """Exact mode gives these prompts, all at once, the continuations of the goldens: the first `count` tokens."""
    longest = max(len(one["prompt"]) for one in golden)
    config = EngineConfig(
        model=str(files.path),
        backend=backend,
        activations="f32",
        kv_cache_dtype="f32",
        max_model_len=max(512, longest + count),
    )
    prompts = [np.array(golden[index]["prompt"], np.int32) for index in indices]
    drawn = generate(build_engine(config), prompts, greedy(count))
    for index, sequence in zip(indices, drawn, strict=True):
        assert sequence.tokens == golden[index]["tokens"][:count], f"prompt {index}, {golden[index]['id']}"
