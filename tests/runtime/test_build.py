"""Building: contexts that don't fit, and the thread and type settings that reach the backend."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.tiny import MODELS, write_folder

from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import PlanLimits, UnsupportedError
from octavo.config import EngineConfig
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.formats.model_files import ModelFiles
from octavo.models.load import load_model
from octavo.runtime.build import build_engine, fixed_bytes, kv_spec, make_backend, make_plan
from octavo.runtime.cgroup import Room
from octavo.runtime.sizing import SizingError

GIB = 1 << 30


@pytest.fixture
def million(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model that claims a context of a million tokens, in a control group of 1 GiB."""
    folder = write_folder(MODELS["tied"], tmp_path)
    config = {**MODELS["tied"].full_config, "max_position_embeddings": 1_000_000, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("octavo.runtime.build.memory_room", lambda: Room(GIB, "memory.max of the control group"))
    return str(folder)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_context_of_a_million_tokens_is_clipped_to_what_fits(million: str, backend: str) -> None:
    phases: dict[str, str] = {}
    config = EngineConfig(model=million, backend=backend, kv_cache_dtype="f32", max_num_seqs=64)
    engine = build_engine(config, lambda name, _, detail: phases.update({name: detail}))
    facts = engine.facts
    assert facts.num_pages * facts.page_size * facts.kv_bytes_per_token < GIB
    assert facts.max_model_len == min(1_000_000, facts.num_pages * facts.page_size)
    assert "model context 1000000" in phases["sizes"]
    assert "memory.max of the control group" in phases["sizes"]
    assert "--max-model-len" in phases["sizes"]
    engine.add(
        Request(
            1, np.arange(20, dtype=np.int32), SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True), 0, 0.0
        )
    )
    while engine.busy:
        engine.step()
    assert engine.stats().generated_tokens == 3


def test_explicit_sizes_that_do_not_fit_name_the_largest(million: str) -> None:
    with pytest.raises(SizingError, match=r"largest that fits is \d+"):
        build_engine(EngineConfig(model=million, kv_cache_memory_bytes=2 * GIB))
    with pytest.raises(SizingError, match="context is 1000000"):
        build_engine(EngineConfig(model=million, max_model_len=1_000_001))


def test_more_threads_than_cores_are_allowed_but_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("octavo.runtime.build.default_threads", lambda: (1, "CPU quota of 1"))
    folder = str(write_folder(MODELS["tied"], tmp_path))
    engine = build_engine(EngineConfig(model=folder, threads=3, kv_cache_memory_bytes=1 << 20))
    assert engine.facts.texts["threads"] == "3"
    assert "threads is 3" in caplog.text
    assert "CPU quota of 1" in caplog.text
    caplog.clear()
    engine = build_engine(EngineConfig(model=folder, kv_cache_memory_bytes=1 << 20))
    assert engine.facts.texts["threads"] == "1"
    assert caplog.text == ""


def test_what_a_backend_cannot_do_is_said(tmp_path: Path) -> None:
    folder = str(write_folder(MODELS["tied"], tmp_path))
    with pytest.raises(UnsupportedError, match="the reference backend has f32 only"):
        build_engine(EngineConfig(model=folder, backend="reference", activations="int8"))
    with pytest.raises(UnsupportedError, match="int8"):
        build_engine(EngineConfig(model=folder, backend="cpu", activations="int8", kv_cache_memory_bytes=1 << 20))


@pytest.mark.parametrize("activations", ["auto", "f32"])
def test_fixed_memory_is_not_underestimated(default_model: ModelFiles, activations: str) -> None:
    config = EngineConfig(model=str(default_model.path), activations=activations, kv_cache_memory_bytes=1 << 24)
    model = load_model(default_model)
    kv = kv_spec(model.spec, config)
    limits = PlanLimits(config.max_num_batched_tokens, config.max_num_seqs, 64, 64, model.spec.vocab)
    plan = make_plan(model, make_backend(config), limits, kv)
    assert isinstance(plan, CpuPlan)
    actual = plan.weight_bytes + plan.workspace_bytes
    assert actual <= fixed_bytes(model, config) <= 2 * actual
