"""Exact mode on the default model: greedy continuations of ShareGPT prompts equal those of transformers in float32."""

from __future__ import annotations

import pytest
from tests.oracle.harness import assert_continues, read_continuations

from octavo.formats.model_files import ModelFiles

GOLDEN = read_continuations("smollm2-135m-instruct")


def test_goldens_are_what_they_should_be() -> None:
    assert len(GOLDEN) == 20
    assert all(len(one["tokens"]) == 64 for one in GOLDEN)


def test_reference_continues_one_prompt(default_model: ModelFiles) -> None:
    shortest = min(range(len(GOLDEN)), key=lambda index: len(GOLDEN[index]["prompt"]))
    assert_continues(default_model, GOLDEN, "reference", [shortest], 4)


def test_cpu_continues_all(default_model: ModelFiles) -> None:
    assert_continues(default_model, GOLDEN, "cpu", list(range(20)), 64)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_reference_continues_all(default_model: ModelFiles) -> None:
    assert_continues(default_model, GOLDEN, "reference", list(range(20)), 64)
