"""Every family: older spellings of config.json, and each tensor missing, left over or of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.oracle.families import FAMILIES, Family, arrays_of, config_of

from octavo.formats.blocks import quantize
from octavo.formats.tensor import Tensor, TensorType
from octavo.models.architecture import Architecture
from octavo.models.architectures import ARCHITECTURES
from octavo.models.description import Description
from octavo.models.fields import Fields, MetadataError
from octavo.models.fill import fill
from octavo.models.slots import Weights, WeightsError, slot_shapes
from octavo.models.spec import DecoderSpec

#: Families whose head is the embedding unless config.json says otherwise.
TIED = ("Gemma2", "Gemma3", "SmolLM3", "Starcoder2", "Cohere", "Cohere2", "GPT2")


class ArrayFile:
    """Arrays in memory as an opened model file."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def tensor(self, name: str) -> Tensor:
        return quantize(name, self._arrays[name], TensorType.F32)


def architecture_of(family: Family) -> Architecture:
    return next(known for known in ARCHITECTURES if family.architecture in known.config)


def described(family: Family, config: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Description:
    return Description(family.architecture, Fields(config, "config.json"), ArrayFile(arrays), in_gguf=False)


def spec_of(family: Family, config: dict[str, Any]) -> DecoderSpec:
    return architecture_of(family).spec(described(family, config, {}))


def filled(family: Family, arrays: Mapping[str, np.ndarray]) -> Weights:
    model, architecture = described(family, config_of(family), arrays), architecture_of(family)
    return fill(architecture.spec(model), model.file, architecture.names(model))


def as_version_4_wrote_it(family: Family) -> dict[str, Any]:
    """The config as transformers 4 has it: what is in `rope_parameters` at the top, no `layer_types`, and nothing that
    equals the default of all classes."""
    config = config_of(family)
    older = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types", "dtype")}
    rope = config.get("rope_parameters") or {}
    if "full_attention" in rope:
        older["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if family.architecture == "Qwen3MoeForCausalLM":
        older["num_experts"] = older.pop("num_local_experts")
    neox = family.architecture == "GPTNeoXForCausalLM"
    names = ("rotary_emb_base", "rotary_pct") if neox else ("rope_theta", "partial_rotary_factor")
    for new, old in zip(("rope_theta", "partial_rotary_factor"), names, strict=True):
        if new in rope:
            older[old] = rope[new]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    if scaling.get("rope_type", "default") != "default":
        older["rope_scaling"] = {**scaling, "type": scaling.pop("rope_type")}
    if config.get("tie_word_embeddings") and family.architecture.startswith(TIED):
        del older["tie_word_embeddings"]
    return older


@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_of_transformers_4_says_the_same(name: str) -> None:
    family = FAMILIES[name]
    assert repr(spec_of(family, as_version_4_wrote_it(family))) == repr(spec_of(family, config_of(family)))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_slot_is_filled(name: str) -> None:
    family = FAMILIES[name]
    weights = filled(family, arrays_of(family))
    shapes = slot_shapes(spec_of(family, config_of(family)))
    assert {**weights.matrices, **weights.vectors}.keys() == shapes.keys()
    for slot, vector in weights.vectors.items():
        assert vector.shape == shapes[slot]
        assert np.any(vector)
    for slot, weight in weights.matrices.items():
        rows = weight.tensor.shape[0] if weight.row_index is None else len(weight.row_index)
        assert (rows, weight.tensor.shape[1]) == shapes[slot]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_is_needed(name: str) -> None:
    family = FAMILIES[name]
    arrays = arrays_of(family)
    for missing in arrays:
        left = {other: array for other, array in arrays.items() if other != missing}
        if missing == "transformer.wte.weight":
            continue  # its absence or presence tells how the names of a GPT-2 begin
        with pytest.raises(
            WeightsError, match=rf"lacks tensor {missing}; is it complete, and a {family.architecture}\?"
        ):
            filled(family, left)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_shape_is_checked(name: str) -> None:
    family = FAMILIES[name]
    arrays = arrays_of(family)
    for wrong, array in arrays.items():
        with pytest.raises(WeightsError, match=rf"tensor {wrong} has shape .*the model's metadata asks for"):
            filled(family, {**arrays, wrong: np.concatenate([array, array[:1]])})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tensor_too_many_is_named(name: str) -> None:
    family = FAMILIES[name]
    with pytest.raises(WeightsError, match=r"holds tensor model\.adapter\.weight, which"):
        filled(family, {**arrays_of(family), "model.adapter.weight": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("gemma2", {"hidden_activation": "silu"}, "hidden_activation is 'silu'; a Gemma2ForCausalLM is run with"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true; only causal"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries; the model has 7 layers"),
        ("gemma3", {"layer_types": ["linear"] * 7}, "layer_types holds 'linear'; supported are 'full_attention' and"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is false; supported is true"),
        ("gpt2", {"n_head": 0}, "n_head is 0; it must be an integer from 1"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers is .* a list of 5 numbers"),
        ("granite", {"residual_multiplier": "big"}, "residual_multiplier is 'big'"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9; it must be an integer from 1 to 5"),
        ("qwen3-moe", {"mlp_only_layers": [1]}, "mlp_only_layers or decoder_sparse_step makes layers without experts"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; supported are"),
        ("deepseek-v3", {"n_group": 3}, "n_group is 3; it must divide the 8 experts"),
        ("deepseek-v3", {"v_head_dim": 99}, "v_head_dim is 99; it must be an integer from 1 to 48"),
        ("deepseek-v3", {"topk_group": 1}, "num_experts_per_tok is 3; the groups in use hold 2 experts"),
    ],
)
def test_what_a_family_can_not_run_is_one_sentence(name: str, change: dict[str, Any], problem: str) -> None:
    family = FAMILIES[name]
    with pytest.raises(MetadataError, match=problem):
        spec_of(family, {**config_of(family), **change})
