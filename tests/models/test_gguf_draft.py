"""A model from safetensors, written as GGUF: read back it is the same decoder with the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.formats.quantised_models import LAYOUTS, Stored
from tests.formats.quantised_models import write_folder as write_quantised
from tests.oracle.families import FAMILIES, arrays_of, config_of, write_family
from tests.oracle.families_gguf import write_family_gguf
from tests.oracle.tiny import MODELS, write_folder

from octavo.backends.ops import Weight
from octavo.formats.blocks import dequantize
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.formats.quantised.folder import QuantisedFolder
from octavo.formats.tensor import TensorType
from octavo.models.fields import MetadataError
from octavo.models.gguf_draft import draft_gguf
from octavo.models.load import LoadedModel, load_model

#: What GGUF can't say (dynamic scaling, some windows, Gemma's query_pre_attn_scalar), or is not written yet.
REFUSED = {
    *("llama-dynamic-within", "llama-dynamic-beyond", "qwen2-windows", "qwen3-yarn", "gemma2", "gemma3", "glm"),
    *("qwen3-moe-not-normalised", "deepseek-v2", "deepseek-v3", "gpt-oss"),
}


def values(weight: Weight) -> np.ndarray:
    rows = dequantize(weight.tensor)
    return rows if weight.row_index is None else rows[weight.row_index]


def assert_same_numbers(one: LoadedModel, other: LoadedModel) -> None:
    assert one.weights.matrices.keys() == other.weights.matrices.keys()
    for slot, weight in one.weights.matrices.items():
        assert np.array_equal(values(weight), values(other.weights.matrices[slot])), slot
    assert one.weights.vectors.keys() == other.weights.vectors.keys()
    for slot, vector in one.weights.vectors.items():
        assert np.array_equal(vector, other.weights.vectors[slot]), slot
    for ours, theirs in zip(one.spec.layers, other.spec.layers, strict=True):
        if ours.mixer.rope is None or theirs.mixer.rope is None:
            assert ours.mixer.rope is theirs.mixer.rope
        else:
            for tokens in (1, 1 << 20):  # longrope has other frequencies for long sequences
                one_rope, other_rope = (mixer.rope.for_context(tokens) for mixer in (ours.mixer, theirs.mixer))
                np.testing.assert_allclose(one_rope.inv_freq, other_rope.inv_freq, rtol=1e-5)


def written(folder: Path, target: Path) -> LoadedModel:
    draft = draft_gguf(ModelFiles("safetensors", folder, "m"))
    write_gguf(target, draft.metadata, [draft.tensor(name) for name in draft.names])
    assert GgufFile.open(target).names == draft.names
    return load_model(ModelFiles("gguf", target, "m"))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in REFUSED])
def test_families(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    write_family(FAMILIES[name], folder)
    assert_same_numbers(load_model(ModelFiles("safetensors", folder, "m")), written(folder, tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf and name not in REFUSED])
def test_tensors_are_those_of_llama_cpps_converter(tmp_path: Path, name: str) -> None:
    draft = draft_gguf(ModelFiles("safetensors", write_family(FAMILIES[name], tmp_path / "folder"), "m"))
    write_family_gguf(FAMILIES[name], tmp_path / "converted.gguf")
    converted = GgufFile.open(tmp_path / "converted.gguf")
    assert sorted(draft.names) == sorted(converted.names)
    for tensor in map(converted.tensor, converted.names):
        ours = draft.tensor(tensor.name)
        assert (ours.shape, ours.type) == (tensor.shape, tensor.type), tensor.name
        if tensor.type is TensorType.MXFP4:  # whoever quantises values, as the converter here, has no -0
            assert np.array_equal(dequantize(ours), dequantize(tensor)), tensor.name
        elif not (name == "smollm3" and tensor.name.startswith("blk.3.attn_")):  # without positions: any order does
            assert np.array_equal(ours.data.reshape(-1), tensor.data.reshape(-1)), tensor.name


@pytest.mark.parametrize("name", MODELS)
def test_tiny_models(tmp_path: Path, name: str) -> None:
    folder = write_folder(MODELS[name], tmp_path / "folder")
    assert_same_numbers(load_model(ModelFiles("safetensors", folder, "m")), written(folder, tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(tmp_path: Path, name: str) -> None:
    write_family(FAMILIES[name], tmp_path)
    with pytest.raises(MetadataError, match="can't be written as GGUF yet; convert it with llama"):
        draft_gguf(ModelFiles("safetensors", tmp_path, "m"))


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What folders of quantised modules were told to release, and how many modules were in memory before."""
    found: list[tuple[str, int]] = []
    release = QuantisedFolder.release

    def noted(folder: QuantisedFolder, name: str) -> None:
        if folder._made:
            found.append((name, len(folder._made)))
        release(folder, name)

    monkeypatch.setattr(QuantisedFolder, "release", noted)
    return found


def test_experts_are_stacked_one_module_at_a_time(tmp_path: Path, released: list[tuple[str, int]]) -> None:
    family, layout, rng = FAMILIES["mixtral-gguf"], LAYOUTS["int8-rows"], np.random.default_rng(3)
    stored: Stored = {}
    expected: dict[str, np.ndarray] = {}
    for name, array in arrays_of(family).items():
        if ".experts." in name:
            parts, expected[name] = layout.make(rng, *array.shape)
            stored.update((f"{name.removesuffix('.weight')}.{part}", value) for part, value in parts.items())
        else:
            stored[name] = ("F32", array)
    write_quantised(tmp_path, stored, None)
    (tmp_path / "config.json").write_text(json.dumps({**config_of(family), "quantization_config": layout.config}))
    draft = draft_gguf(ModelFiles("safetensors", tmp_path, "m"))
    modules = [f"model.layers.1.block_sparse_moe.experts.{index}.w2.weight" for index in range(5)]
    stack = draft.tensor("blk.1.ffn_down_exps.weight")
    assert stack.type is TensorType.Q8_0
    data = stack.data
    assert released == [(name, 1) for name in modules]
    values = dequantize(replace(stack, stored=data))
    assert np.array_equal(values, np.stack([expected[name] for name in modules]))
    draft.release("blk.1.ffn_down_exps.weight")


def test_a_stack_that_two_tensors_are_made_of_is_made_once(tmp_path: Path, released: list[tuple[str, int]]) -> None:
    draft = draft_gguf(ModelFiles("safetensors", write_family(FAMILIES["gpt-oss-mxfp4"], tmp_path), "m"))
    first, second = "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"
    assert draft.tensor(first).data.any()
    draft.release(first)
    assert not released
    assert draft.tensor(second).data.any()
    assert released == [("model.layers.1.mlp.experts.gate_up_proj", 1)]
