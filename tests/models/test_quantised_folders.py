"""Models of quantised safetensors give the logits of the same model with their values in f32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.formats.quantised_models import LAYOUTS, MODEL, write_model
from tests.oracle.harness import generate, greedy
from tests.oracle.test_tiny import exact_engine

from octavo import _native
from octavo.config import EngineConfig
from octavo.formats.errors import ModelFileError
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import SafetensorsFile
from octavo.models.load import load_model
from octavo.models.slots import WeightsError
from octavo.runtime.build import build_engine

STEPS = 6
# A kind of each row format, on every level: that the level's kernels take them is shown by the formats' own tests.
OF_EACH_FORMAT = ["gptq-32", "gptq-act-order", "awq-128", "int8-rows", "fp8-blocks"]


def assert_same(expected_path: Path, path: Path, backend: str, **changes: object) -> None:
    expected = generate(exact_engine(expected_path, "reference"), MODEL.prompts(), greedy(STEPS))
    actual = generate(exact_engine(path, backend, **changes), MODEL.prompts(), greedy(STEPS))
    for one, other in zip(expected, actual, strict=True):
        assert one.tokens == other.tokens
        assert np.abs(np.stack(one.logits) - other.logits).max() <= 1e-4 * np.abs(one.logits).max()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_logits(tmp_path: Path, name: str, backend: str) -> None:
    write_model(LAYOUTS[name], tmp_path / "quantised", tmp_path / "plain")
    assert_same(tmp_path / "plain", tmp_path / "quantised", backend)


@pytest.mark.parametrize("level", _native.supported_levels())
@pytest.mark.parametrize("name", OF_EACH_FORMAT)
def test_logits_at_every_level(tmp_path: Path, name: str, level: str) -> None:
    write_model(LAYOUTS[name], tmp_path / "quantised", tmp_path / "plain")
    assert_same(tmp_path / "plain", tmp_path / "quantised", "cpu", isa=level)


@pytest.mark.parametrize("name", OF_EACH_FORMAT)
def test_default_mode_does_not_depend_on_the_batch(tmp_path: Path, name: str) -> None:
    write_model(LAYOUTS[name], tmp_path / "quantised", tmp_path / "plain")
    config = EngineConfig(
        model=str(tmp_path / "quantised"), kv_cache_memory_bytes=16 << 20, max_num_seqs=8, prefix_caching=False
    )
    crowded, lonely = (build_engine(replace(config, max_num_batched_tokens=tokens)) for tokens in (64, 7))
    crowd = generate(crowded, MODEL.prompts(), greedy(STEPS))
    for index, prompt in enumerate(MODEL.prompts()):
        (alone,) = generate(lonely, [prompt], greedy(STEPS))
        assert np.array_equal(np.stack(alone.logits), np.stack(crowd[index].logits))


def test_damage_found_while_packing_is_named(tmp_path: Path) -> None:
    """Opening reads the scales only; that a number is NaN shows when its module is made."""
    write_model(LAYOUTS["fp8-whole"], tmp_path / "quantised", tmp_path / "plain")
    path = tmp_path / "quantised" / "model.safetensors"
    info = SafetensorsFile.open(path).infos["model.layers.1.mlp.down_proj.weight"]
    damaged = bytearray(path.read_bytes())
    damaged[info.offset + 1000] = 0x7F
    path.write_bytes(damaged)
    load_model(ModelFiles("safetensors", tmp_path / "quantised", "m"))
    with pytest.raises(ModelFileError, match=r"tensor model\.layers\.1\.mlp\.down_proj\.weight holds a number that is"):
        exact_engine(tmp_path / "quantised", "cpu")


def test_left_over_parts_are_named(tmp_path: Path) -> None:
    """g_idx belongs to GPTQ, not to AWQ."""
    write_model(LAYOUTS["gptq-32"], tmp_path / "quantised", tmp_path / "plain")
    config = tmp_path / "quantised" / "config.json"
    config.write_text(config.read_text().replace('"gptq", "bits"', '"awq", "bits"'))
    with pytest.raises(WeightsError, match=r"holds tensors model\.layers\.0\.self_attn\.q_proj\.g_idx, .*does not use"):
        load_model(ModelFiles("safetensors", tmp_path / "quantised", "m"))


def test_unsupported_ones_are_one_sentence(tmp_path: Path) -> None:
    write_model(LAYOUTS["gptq-32"], tmp_path / "quantised", tmp_path / "plain")
    config = tmp_path / "quantised" / "config.json"
    config.write_text(config.read_text().replace('"quant_method": "gptq"', '"quant_method": "aqlm"'))
    with pytest.raises(
        ModelFileError, match=r"config\.json: quantization_config: quant_method is 'aqlm'; supported: gptq"
    ):
        load_model(ModelFiles("safetensors", tmp_path / "quantised", "m"))
