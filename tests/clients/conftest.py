from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.harness import Served
from tests.server.tiny_model import write_tiny_model

KEY = "sk-of-the-test"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = write_tiny_model(Path(tmp_path_factory.mktemp("model")) / "tiny.gguf")
    settings = {"api_key": [KEY], "served_model_name": ["tiny", "also-tiny"]}
    with Served(model, "--step-ms", "1", engine={"max_model_len": 512}, server=settings) as one:
        yield one
