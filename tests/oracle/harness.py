"""Drives an engine step by step and keeps the logits that each token was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.runtime.engine import Engine


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
