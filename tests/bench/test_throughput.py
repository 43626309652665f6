"""The offline benchmark on a tiny model: what it counts, and what it says when it is cut short."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from tests.oracle.tiny import MODELS, write_folder

from octavo.bench.completion import BenchRequest
from octavo.bench.throughput import run_throughput, text
from octavo.config import EngineConfig
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine
from octavo.text.tokenizer import Tokenizer


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode_prompt(self, text: str) -> list[int]:
        return list(text.encode())


TOKENIZER = cast(Tokenizer, Bytes())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(MODELS["tied"], tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(model: Path) -> Engine:
    return build_engine(EngineConfig(model=str(model), backend="reference", kv_cache_memory_bytes=1 << 20, page_size=4))


def requests(count: int) -> list[BenchRequest]:
    return [BenchRequest(f"prompt {index}", 8, 5) for index in range(count)]


def test_counts_leave_the_warm_up_out(engine: Engine) -> None:
    result = run_throughput(engine, TOKENIZER, requests(6), requests(8)[6:], lambda *_: None)
    assert (result.complete, result.requests) == (True, 6)
    assert (result.prompt_tokens, result.output_tokens) == (48, 30)
    assert result.steps >= 5
    assert 0 < result.forward_s < result.wall_s
    assert result.outside_share == pytest.approx(1 - result.forward_s / result.wall_s)
    assert result.output_tokens_per_s == pytest.approx(30 / result.wall_s)
    assert 0 < result.kv_waste_ratio < 0.5
    assert "30" in text(result)


def test_an_interrupt_keeps_what_was_done(engine: Engine) -> None:
    steps = iter(range(3))
    step = engine.step

    def interrupted() -> object:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    engine.step = interrupted  # type: ignore[method-assign,assignment]
    result = run_throughput(engine, TOKENIZER, requests(2), [], lambda *_: None)
    assert not result.complete
    assert 0 < result.output_tokens < 10
    assert "INTERRUPTED" in text(result)
