"""Exact mode on Gemma 3 270M's own Q4_K_M file: greedy continuations equal those of transformers in float32."""

from __future__ import annotations

import pytest
from tests.oracle.harness import assert_continues, read_continuations

from octavo.formats.model_files import ModelFiles
from octavo.formats.resolve import resolve

# The model has to be fetched: 241 MiB.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

GOLDEN = read_continuations("gemma-3-270m")
WINDOW = 512


@pytest.fixture(scope="module")
def gemma() -> ModelFiles:
    return resolve("gemma-3-270m")


def test_goldens_are_what_they_should_be() -> None:
    assert len(GOLDEN) == 20
    assert sum(len(one["prompt"]) > WINDOW for one in GOLDEN) == 3


def test_cpu_continues_all(gemma: ModelFiles) -> None:
    assert_continues(gemma, GOLDEN, "cpu", range(20), len(GOLDEN[0]["tokens"]))


def test_reference_continues_one(gemma: ModelFiles) -> None:
    shortest = min(range(len(GOLDEN)), key=lambda index: len(GOLDEN[index]["prompt"]))
    assert_continues(gemma, GOLDEN, "reference", [shortest], 4)
