"""Perplexity beside speed: what each engine's weights, and Octavo's own arithmetic, cost in accuracy.

Octavo is scored as it serves. Peers are scored by their weights alone, computed by Octavo in float32: a lower bound of
what they lose, since their own rounding of activations comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peers.engine import Engine
from perplexity import shown_perplexity

from octavo.bench.perplexity import dataset_tokens
from octavo.config import EngineConfig
from octavo.formats.resolve import resolve
from sidebyside.results import OURS, Results


def measure_perplexity(results: Results, engines: Sequence[Engine], model: str, count: int) -> None:
    """Score `count` tokens of ShareGPT text under every engine's weights that `results` has not; saves each."""
    found = results.content.setdefault("perplexity", {"tokens": count, "engines": {}})
    tokens = dataset_tokens(model, found["tokens"])

    def exact(weights: str) -> float:
        config = EngineConfig(model=weights, activations="f32", kv_cache_dtype="f32")
        return round(shown_perplexity(config, tokens), 4)

    if "f32" not in found:
        found["f32"] = exact(model)
        results.save()
    by_file: dict[Path | None, float] = {None: found["f32"], resolve(model).path: found["f32"]}
    for engine in engines:
        if engine.name in found["engines"]:
            continue
        weights = engine.scored_weights()
        if engine.name == OURS:
            value = round(shown_perplexity(EngineConfig(model=model), tokens), 4)
        else:
            value = by_file[weights] = by_file.get(weights) or exact(str(weights))
        found["engines"][engine.name] = value
        results.save()
