"""The historical policies on real kernels: other memory and other batches, the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.oracle.tiny import MODELS, VOCAB, write_gguf_file

from octavo.config import EngineConfig
from octavo.engine.historical.scheduler import HistoricalScheduler
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.formats.tensor import TensorType
from octavo.runtime.build import build_engine
from octavo.runtime.record import RecordingScheduler


def tokens_with(file: Path, **settings: object) -> dict[int, list[int]]:
    engine = build_engine(
        EngineConfig(
            model=str(file),
            max_model_len=128,
            max_num_seqs=6,
            max_num_batched_tokens=64,
            kv_cache_memory_bytes=settings.pop("pool_tokens", 1024) * 2 * 2 * 2 * 16 * 2,  # type: ignore[operator]
            threads=1,
            **settings,  # type: ignore[arg-type]
        )
    )
    assert isinstance(engine.scheduler, HistoricalScheduler) == ("kv_policy" in settings or "batch_policy" in settings)
    rng = np.random.default_rng(3)
    for i in range(14):
        prompt = rng.integers(3, VOCAB, int(rng.integers(1, 60)), dtype=np.int32)
        params = SamplingParams(temperature=0.8, max_tokens=int(rng.integers(1, 40)), ignore_eos=True)
        engine.add(Request(i, prompt, params, seed=i, arrival_s=0.0))
    found: dict[int, list[int]] = {}
    while engine.busy:
        outputs = engine.step()
        if outputs is not None:
            for request, token in zip(outputs.request_ids.tolist(), outputs.tokens.tolist(), strict=True):
                found.setdefault(request, []).append(token)
    scheduler = engine.scheduler.inner if isinstance(engine.scheduler, RecordingScheduler) else engine.scheduler
    scheduler.check()
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf_file(MODELS["tied"], tmp_path_factory.mktemp("tiny") / "m.gguf", TensorType.Q8_0)


@pytest.fixture(scope="module")
def expected(file: Path) -> dict[int, list[int]]:
    return tokens_with(file)


@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("batch", ["continuous", "static"])
@pytest.mark.parametrize("kv", ["paged", "contiguous", "contiguous-limit", "buddy"])
def test_tokens_do_not_depend_on_policies(
    file: Path, expected: dict[int, list[int]], kv: str, batch: str, padding: bool
) -> None:
    if (kv, batch) == ("paged", "continuous"):
        pytest.skip("that is what the others are compared with")
    found = tokens_with(file, kv_policy=kv, batch_policy=batch, static_padding=padding)
    assert found == expected


def test_copies_of_a_growing_sequence_keep_its_tokens_when_memory_is_short(
    file: Path, expected: dict[int, list[int]]
) -> None:
    assert tokens_with(file, kv_policy="buddy", pool_tokens=256) == expected


def test_a_recording_engine_gives_the_same_tokens(file: Path, expected: dict[int, list[int]], tmp_path: Path) -> None:
    from octavo.simulate.recording import read_recording
    from octavo.simulate.replay import replay_exactly

    path = tmp_path / "run.jsonl"
    assert tokens_with(file, record=str(path)) == expected
    replayed = replay_exactly(path, read_recording(path), lambda done, total: None)
    assert replayed.tokens == sum(map(len, expected.values()))
