"""Exact mode on the default model: greedy continuations of ShareGPT prompts equal those of transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.harness import generate

from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.formats.model_files import ModelFiles
from octavo.runtime.build import build_engine

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "smollm2-135m-instruct.json").read_text())


def assert_continues(files: ModelFiles, backend: str, indices: list[int], count: int) -> None:
    config = EngineConfig(
        model=str(files.path), backend=backend, activations="f32", kv_cache_dtype="f32", max_model_len=512
    )
    prompts = [np.array(GOLDEN[index]["prompt"], np.int32) for index in indices]
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    drawn = generate(build_engine(config), prompts, lambda _: params)
    for index, sequence in zip(indices, drawn, strict=True):
        assert sequence.tokens == GOLDEN[index]["tokens"][:count], f"prompt {index}, {GOLDEN[index]['id']}"


def test_goldens_are_what_they_should_be() -> None:
    assert len(GOLDEN) == 20
    assert all(len(one["tokens"]) == 64 for one in GOLDEN)


def test_reference_continues_one_prompt(default_model: ModelFiles) -> None:
    shortest = min(range(len(GOLDEN)), key=lambda index: len(GOLDEN[index]["prompt"]))
    assert_continues(default_model, "reference", [shortest], 4)


def test_cpu_continues_all(default_model: ModelFiles) -> None:
    assert_continues(default_model, "cpu", list(range(20)), 64)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reference_continues_all(default_model: ModelFiles) -> None:
    assert_continues(default_model, "reference", list(range(20)), 64)
