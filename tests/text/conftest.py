from __future__ import annotations

import pytest

from octavo.formats.model_files import ModelFiles
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(default_model: ModelFiles) -> Tokenizer:
    """The default model's."""
    return Tokenizer.load(default_model)
