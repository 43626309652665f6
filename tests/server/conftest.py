from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.harness import Served
from tests.server.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def served(model: Path) -> Iterator[Served]:
    """One server for all tests that leave it as they found it."""
    with Served(model, "--step-ms", "1", engine={"max_model_len": 512}) as one:
        yield one
        assert one.stop() == 0, one.log
