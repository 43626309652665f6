"""Exact mode gives transformers' logits, however sequences are batched, chunked, or found in the prefix index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.harness import assert_golden, generate, greedy
from tests.oracle.tiny import MODELS, TinyModel, write_folder, write_gguf_file

from octavo import _native
from octavo.config import EngineConfig
from octavo.formats.model_files import ModelFiles
from octavo.formats.tensor import TensorType
from octavo.models.load import load_model
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine

GOLDEN = np.load(Path(__file__).parent / "golden" / "tiny.npz")
STEPS = 6
BACKENDS = ("reference", "cpu")
FILES = [(model.name, "folder") for model in MODELS.values()] + [(m.name, "gguf") for m in MODELS.values() if m.gguf]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every tiny model as NAME (folder) and NAME.gguf."""
    directory = tmp_path_factory.mktemp("tiny")
    for model in MODELS.values():
        write_folder(model, directory / model.name)
        if model.gguf:
            write_gguf_file(model, directory / f"{model.name}.gguf")
    return directory


def path_of(written: Path, name: str, kind: str) -> Path:
    return written / (name if kind == "folder" else f"{name}.gguf")


def exact_engine(path: Path, backend: str, **changes: object) -> Engine:
    settings = {"kv_cache_memory_bytes": 16 << 20, "page_size": 4, "max_num_seqs": 8, **changes}
    return build_engine(
        EngineConfig(model=str(path), backend=backend, activations="f32", kv_cache_dtype="f32", **settings)
    )


def prompts_for(model: TinyModel, backend: str) -> list[np.ndarray]:
    """All prompts, but for numpy those that take it less than seconds."""
    return [prompt for prompt in model.prompts() if backend != "reference" or len(prompt) <= 2001]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "kind"), FILES)
def test_logits_batched_chunked_and_cached(written: Path, name: str, kind: str, backend: str) -> None:
    model = MODELS[name]
    engine = exact_engine(path_of(written, name, kind), backend, max_num_batched_tokens=64)
    prompts = prompts_for(model, backend)
    assert_golden(GOLDEN, model.name, generate(engine, prompts, greedy(STEPS)))
    again = generate(engine, prompts, greedy(STEPS))
    assert again[-1].cached_tokens > 0
    assert_golden(GOLDEN, model.name, again)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_size", [4, 8, 16, 32])
@pytest.mark.parametrize("chunk", [5, 16])
def test_logits_in_small_chunks(written: Path, page_size: int, chunk: int, backend: str) -> None:
    model = MODELS["biases"]
    engine = exact_engine(
        path_of(written, "biases", "gguf"), backend, page_size=page_size, max_num_batched_tokens=chunk, max_num_seqs=3
    )
    assert_golden(GOLDEN, model.name, generate(engine, model.prompts(), greedy(STEPS)))


@pytest.mark.parametrize("level", _native.supported_levels())
@pytest.mark.parametrize("name", ["tied", "biases", "mistral-window"])
def test_logits_at_every_instruction_set_level(written: Path, name: str, level: str) -> None:
    model = MODELS[name]
    engine = exact_engine(path_of(written, name, "folder"), "cpu", isa=level)
    assert_golden(GOLDEN, model.name, generate(engine, model.prompts(), greedy(STEPS)))


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_rotary_frequencies(written: Path, name: str, kind: str) -> None:
    path = path_of(written, name, kind)
    loaded = load_model(ModelFiles("gguf" if kind == "gguf" else "safetensors", path, name))
    rope = loaded.spec.layers[0].mixer.rope
    assert rope is not None
    np.testing.assert_allclose(rope.inv_freq, GOLDEN[f"{name}.inv_freq"], rtol=1e-6)


@pytest.mark.parametrize("type_", list(TensorType), ids=lambda type_: type_.name)
def test_every_weight_format_as_the_reference_reads_it(tmp_path: Path, type_: TensorType) -> None:
    biases = MODELS["biases"]
    wide = {"hidden_size": 256, "intermediate_size": 512}  # whole blocks of every format
    model = replace(biases, config={**biases.config, **wide})
    path = write_gguf_file(model, tmp_path / "m.gguf", matrices=type_)
    expected, actual = (generate(exact_engine(path, name), model.prompts(), greedy(STEPS)) for name in BACKENDS)
    for one, other in zip(expected, actual, strict=True):
        assert one.tokens == other.tokens
        assert np.abs(np.stack(one.logits) - other.logits).max() <= 1e-4 * np.abs(one.logits).max()
