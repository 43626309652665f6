"""Loading: what is missing, left over, mis-shaped or unsupported is named; end tokens and defaults are found."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracle.families import FAMILIES, write_family
from tests.oracle.tiny import MODELS, TinyModel, weights, write_folder, write_gguf_file, write_safetensors

from octavo.formats.blocks import dequantize
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import SafetensorsFile
from octavo.formats.tensor import TensorType
from octavo.models.defaults import SamplingDefaults
from octavo.models.fields import MetadataError
from octavo.models.load import LoadedModel, load_model
from octavo.models.rotary_rows import half_order
from octavo.models.slots import WeightsError, slot_shapes

TIED = MODELS["tied"]


def load_folder(folder: Path) -> LoadedModel:
    return load_model(ModelFiles("safetensors", folder, "tiny"))


def folder_with(tmp_path: Path, change: Callable[[dict[str, Any]], None], model: TinyModel = TIED) -> Path:
    """A tiny model's folder whose tensors `change` has edited."""
    folder = write_folder(model, tmp_path)
    arrays = weights(model)
    change(arrays)
    write_safetensors(folder / "model.safetensors", arrays)
    return folder


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, lambda arrays: arrays.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_folder(folder)


def test_left_over_tensors_are_named(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    with pytest.raises(WeightsError, match=r"holds tensor model\.layers\.0\.self_attn\.q_norm\.weight, which"):
        load_folder(folder_with(tmp_path, lambda arrays: arrays.update(extra)))


def test_experts_in_mxfp4_are_not_copied(tmp_path: Path) -> None:
    """Gate and up take rows in turn of one stack, which is made once."""
    loaded = load_folder(write_family(FAMILIES["gpt-oss-mxfp4"], tmp_path))
    gate, up, down = (loaded.weights.matrices[f"layers.1.experts.2.{name}"] for name in ("gate", "up", "down"))
    assert [one.tensor.type for one in (gate, up, down)] == [TensorType.MXFP4] * 3
    assert np.shares_memory(gate.tensor.data, up.tensor.data)
    assert gate.row_index is not None
    assert up.row_index is not None
    assert (gate.row_index[:3].tolist(), up.row_index[:3].tolist()) == ([0, 2, 4], [1, 3, 5])
    experts = [weight for slot, weight in loaded.weights.matrices.items() if ".experts." in slot]
    stored = {weight.tensor.data.ctypes.data: weight.tensor.data.nbytes for weight in experts}
    assert sum(stored.values()) == 4 * 5 * 3 * 64 * 96 * 17 // 32


@pytest.mark.parametrize("name", ["gpt-oss", "gpt2"])
def test_opening_what_is_stored_transposed_copies_nothing(tmp_path: Path, name: str) -> None:
    """A matrix is turned when it is packed, only its own outputs, and is the caller's alone."""
    folder = write_family(FAMILIES[name], tmp_path)
    load_folder(folder)  # imports what it needs
    tracemalloc.start()
    try:
        loaded = load_folder(folder)
        copied = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    turned = [
        weight
        for slot, weight in loaded.weights.matrices.items()
        if ".experts." in slot or (name == "gpt2" and slot.startswith("layers."))
    ]
    assert copied < sum(weight.tensor.nbytes for weight in turned) / 2
    for weight in turned:
        data = weight.tensor.data
        assert weight.row_index is None
        assert data.flags.c_contiguous
        assert data.nbytes == weight.tensor.nbytes
        held = data if data.base is None else data.base
        assert isinstance(held, np.ndarray)
        assert held.nbytes == data.nbytes


@pytest.mark.parametrize(
    ("name", "tensor", "slot"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn.weight", "layers.1.{}"),
        ("gpt-oss", "model.layers.1.mlp.experts.gate_up_proj", "layers.1.experts.4.{}"),
    ],
)
def test_samples_of_what_is_stored_transposed(tmp_path: Path, name: str, tensor: str, slot: str) -> None:
    """They tell q, k and v of one tensor, and experts of one, from each other."""
    loaded = load_folder(write_family(FAMILIES[name], tmp_path))
    stored = SafetensorsFile.open(tmp_path / "model.safetensors").tensor(tensor)
    values = dequantize(stored)
    if name == "gpt2":
        places = {"q": values[0], "k": values[0, 64:], "v": values[0, 128:]}
    else:
        places = {"gate": values[4, 0], "up": values[4, 0, 1:]}
    for matrix, first in places.items():
        assert loaded.weights.matrices[slot.format(matrix)].tensor.sample(64) == first[:16].tobytes()


def test_models_that_differ_in_one_expert_have_different_identities(tmp_path: Path) -> None:
    path = write_family(FAMILIES["gpt-oss-mxfp4"], tmp_path) / "model.safetensors"
    before = load_folder(tmp_path).identity
    info = SafetensorsFile.open(path).infos["model.layers.1.mlp.experts.gate_up_proj_blocks"]
    changed = bytearray(path.read_bytes())
    changed[info.offset + info.nbytes * 4 // info.shape[0]] ^= 1  # of the fifth expert
    path.write_bytes(changed)
    assert load_folder(tmp_path).identity != before


def test_a_bias_the_config_does_not_announce_is_left_over(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    with pytest.raises(WeightsError, match=r"q_proj\.bias"):
        load_folder(folder_with(tmp_path, lambda arrays: arrays.update(extra)))


def test_biases_of_zeros_add_nothing(tmp_path: Path) -> None:
    """GPTQ's first writers gave one to every matrix."""
    zeros = {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}
    loaded = load_folder(folder_with(tmp_path, lambda arrays: arrays.update(zeros)))
    assert "layers.0.q.bias" not in loaded.weights.vectors
    elsewhere = {"model.layers.0.self_attn.x_proj.bias": np.zeros(64, np.float32)}
    with pytest.raises(WeightsError, match=r"x_proj\.bias"):
        load_folder(folder_with(tmp_path, lambda arrays: arrays.update(elsewhere)))


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    wrong = {"model.layers.1.mlp.down_proj.weight": np.zeros((64, 97), np.float32)}
    with pytest.raises(WeightsError, match=r"down_proj\.weight has shape \(64, 97\).*asks for \(64, 96\)"):
        load_folder(folder_with(tmp_path, lambda arrays: arrays.update(wrong)))


def test_harmless_tensors_are_passed_over(tmp_path: Path) -> None:
    extra = {
        "lm_head.weight": weights(TIED)["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
    }
    loaded = load_folder(folder_with(tmp_path, lambda arrays: arrays.update(extra)))
    assert loaded.spec.tied_head
    assert "head" not in loaded.weights.matrices


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "'MambaForCausalLM' is not supported; supported are LlamaForCausalLM",
        ),
        ({"architectures": None}, "architecture None is not supported"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be an integer from 1"),
        ({"hidden_size": 1 << 60}, "hidden_size is 1152921504606846976"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the number of heads, 4"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "rope_type is 'ntk'; supported are"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"architectures": ["MixtralForCausalLM"]}, "num_local_experts is missing"),
    ],
)
def test_bad_configs_are_one_sentence(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    folder = write_folder(TIED, tmp_path)
    (folder / "config.json").write_text(json.dumps({**TIED.full_config, **change}))
    with pytest.raises(MetadataError, match=problem):
        load_folder(folder)


def test_gguf_of_another_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf_file(TIED, tmp_path / "m.gguf", extra={"general.architecture": "mamba"})
    with pytest.raises(MetadataError, match="'mamba' is not supported"):
        load_model(ModelFiles("gguf", path, "m"))


@pytest.mark.parametrize("key", ["context_length", "attention.layer_norm_rms_epsilon", "feed_forward_length"])
def test_gguf_must_say_what_has_no_default(tmp_path: Path, key: str) -> None:
    path = write_gguf_file(TIED, tmp_path / "m.gguf", extra={f"llama.{key}": "nothing"})
    with pytest.raises(MetadataError, match=rf"m\.gguf: GGUF metadata: llama\.{key} is 'nothing'; it must be"):
        load_model(ModelFiles("gguf", path, "m"))


def test_experts_that_the_file_lacks_are_named(tmp_path: Path) -> None:
    extra = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    path = write_gguf_file(TIED, tmp_path / "m.gguf", extra=extra)
    with pytest.raises(
        WeightsError, match=r"lacks tensors blk\.0\.ffn_gate_inp\.weight, blk\.0\.ffn_gate_exps\.weight"
    ):
        load_model(ModelFiles("gguf", path, "m"))


def test_gguf_end_tokens(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(263)]
    tokens[9] = "<|eot_id|>"
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 999}
    path = write_gguf_file(TIED, tmp_path / "m.gguf", extra=changes)
    loaded = load_model(ModelFiles("gguf", path, "m"))
    assert loaded.eos_ids == (2, 5, 9)  # 999 is outside the vocabulary


def test_default_model_ends_with_both_of_its_end_tokens(default_model: ModelFiles) -> None:
    loaded = load_model(default_model)
    assert loaded.eos_ids == (0, 2)
    assert loaded.spec.tied_head
    assert loaded.spec.context == 8192
    assert len(loaded.spec.layers) == 30


def test_default_model_has_the_sampling_of_its_card(default_model: ModelFiles) -> None:
    assert load_model(default_model).defaults.given == {"temperature": 0.2, "top_p": 0.9}


@pytest.mark.parametrize(
    ("organization", "name", "known"),
    [
        ("HuggingFaceTB", "SmolLM2 135M Instruct", True),
        ("HuggingFaceTB", "SmolLM2 135M", False),
        ("Somebody", "SmolLM2 135M Instruct", False),
    ],
)
def test_a_card_holds_only_for_the_model_it_names(tmp_path: Path, organization: str, name: str, known: bool) -> None:
    said = {"general.organization": organization, "general.name": name}
    path = write_gguf_file(TIED, tmp_path / "m.gguf", extra=said)
    defaults = load_model(ModelFiles("gguf", path, "m")).defaults
    assert (defaults.given == {"temperature": 0.2, "top_p": 0.9}) == known
    assert (defaults == SamplingDefaults()) != known


def test_folder_end_tokens_and_defaults(tmp_path: Path) -> None:
    folder = write_folder(TIED, tmp_path)
    generation = {"eos_token_id": [7, 8], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    added = [{"id": 11, "content": "<|im_end|>"}, {"id": 12, "content": "<tool>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    loaded = load_folder(folder)
    assert loaded.eos_ids == (7, 8, 11)
    assert (loaded.defaults.temperature, loaded.defaults.top_p, loaded.defaults.top_k) == (0.6, 0.9, None)


def test_identity_tells_weights_apart(tmp_path: Path) -> None:
    first = load_folder(write_folder(TIED, tmp_path / "a")).identity
    assert load_folder(write_folder(TIED, tmp_path / "b")).identity == first
    changed = folder_with(tmp_path / "c", lambda arrays: arrays["model.norm.weight"].__setitem__(63, 5.0))
    assert load_folder(changed).identity != first


def test_identity_says_which_frequencies_a_context_gets(tmp_path: Path) -> None:
    """longrope: an engine for short sequences and one for long ones give other logits, and may share no cache."""
    family = FAMILIES["phi3-long"]
    loaded = load_folder(write_family(family, tmp_path / "a"))
    short, long = loaded.for_context(64), loaded.for_context(65)
    assert short.identity != long.identity
    assert long.identity == loaded.for_context(256).identity
    plain = load_folder(write_folder(TIED, tmp_path / "b"))
    assert plain.for_context(64) is plain


def test_half_order_undoes_the_converter() -> None:
    assert half_order(heads=2, head_dim=4, rotary_dim=4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert half_order(heads=1, head_dim=6, rotary_dim=4).tolist() == [0, 2, 1, 3, 4, 5]


def test_slots_cover_a_spec_with_everything(tmp_path: Path) -> None:
    spec = load_folder(write_folder(MODELS["biases"], tmp_path)).spec
    shapes = slot_shapes(spec)
    assert shapes["head"] == (263, 64)
    assert shapes["layers.1.k"] == (16, 64)
    assert shapes["layers.1.down.bias"] == (64,)
    assert len(shapes) == 3 + 2 * (9 + 7)
