"""What many tests share. Models and data sets come through the catalogue, as users get them."""

from __future__ import annotations

import pytest

from octavo.formats.model_files import ModelFiles
from octavo.formats.resolve import resolve


@pytest.fixture(scope="session")
def default_model() -> ModelFiles:
    """SmolLM2-135M-Instruct in Q4_1, fetched on first use."""
    return resolve("smollm2-135m-instruct")
