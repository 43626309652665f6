"""What default mode's arithmetic costs: perplexity on ShareGPT text against exact mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.perplexity import LARGEST_LOSS

from octavo.bench.perplexity import dataset_tokens, perplexity
from octavo.config import EngineConfig
from octavo.formats.model_files import ModelFiles


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_default_mode_is_within_half_a_percent_of_exact_mode(default_model: ModelFiles) -> None:
    default = EngineConfig(model=str(default_model.path))
    exact = replace(default, activations="f32", kv_cache_dtype="f32")
    tokens = dataset_tokens(default.model, 20_000)
    assert perplexity(default, tokens) <= perplexity(exact, tokens) * (1 + LARGEST_LOSS)
