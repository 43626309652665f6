"""The tiny models of families.py as llama.cpp's converter (convert_hf_to_gguf.py) would write them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.oracle.families import Family, arrays_of, config_of
from tests.oracle.tiny import EOS

from octavo.formats.blocks import quantize
from octavo.formats.gguf_write import MetadataValue, write_gguf
from octavo.formats.tensor import TensorType

Array = npt.NDArray[np.float32]

#: Parts of transformers' names -> the converter's, in this order.
_NAMES = (
    (r"^model\.layers\.|^transformer\.h\.|^gpt_neox\.layers\.", "blk."),
    (r"self_attn\.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    (r"self_attn\.(q|kv)_a_layernorm", r"attn_\1_a_norm"),
    (r"self_attn\.(q_a|q_b|k_b|v_b)_proj", r"attn_\1"),
    (r"mlp\.shared_experts\.(gate|up|down)_proj", r"ffn_\1_shexp"),
    (r"mlp\.gate\.e_score_correction_bias", "exp_probs_b.bias"),
    (r"self_attn\.(q|k|v)_proj", r"attn_\1"),
    (r"self_attn\.o_proj|attn\.c_proj|attention\.dense\b", "attn_output"),
    (r"self_attn\.qkv_proj|attn\.c_attn|attention\.query_key_value", "attn_qkv"),
    (r"self_attn\.(q|k)_norm", r"attn_\1_norm"),
    (r"mlp\.gate_up_proj|mlp\.up_proj|mlp\.c_fc|mlp\.dense_h_to_4h", "ffn_up"),
    (r"mlp\.gate_proj", "ffn_gate"),
    (r"mlp\.down_proj|mlp\.c_proj|mlp\.dense_4h_to_h", "ffn_down"),
    (r"block_sparse_moe\.gate|mlp\.gate\b|mlp\.router", "ffn_gate_inp"),
    (r"self_attn\.sinks", "attn_sinks.weight"),
    (r"input_layernorm|ln_1", "attn_norm"),
    (r"pre_feedforward_layernorm|ln_2", "ffn_norm"),
    (r"post_feedforward_layernorm|post_mlp_layernorm", "post_ffw_norm"),
    (r"post_self_attn_layernorm", "post_attention_norm"),
    (r"model\.embed_tokens|transformer\.wte|gpt_neox\.embed_in", "token_embd"),
    (r"transformer\.wpe", "position_embd"),
    (r"^model\.norm|transformer\.ln_f|gpt_neox\.final_layer_norm", "output_norm"),
    (r"lm_head|embed_out", "output"),
)
_SANDWICH = ("gemma2", "gemma3", "olmo2", "gpt-oss")
_EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_PERMUTED = ("llama", "granite", "smollm3")
_LAYER_NORM = ("starcoder2", "stablelm", "command-r", "cohere2", "gpt2", "gptneox")


def write_family_gguf(family: Family, path: Path, matrices: TensorType = TensorType.F32) -> Path:
    """Matrices in the given format where their width allows, all else in f32; experts that are in MXFP4 stay so, which
    rounds nothing. No tokenizer but for the end token."""
    assert family.gguf is not None
    config = config_of(family)
    arrays = _tensors(family.gguf, config, arrays_of(family))
    metadata = {
        "general.architecture": family.gguf,
        **{f"{family.gguf}.{key}": value for key, value in _metadata(family.gguf, config).items()},
        "tokenizer.ggml.eos_token_id": EOS,
    }
    tensors = []
    for name, array in arrays.items():
        fits = array.ndim > 1 and array.shape[-1] % 32 == 0 and not name.endswith("norm.weight")
        wanted = TensorType.MXFP4 if family.mxfp4 and name.endswith("_exps.weight") else matrices
        tensors.append(quantize(name, array, wanted if fits else TensorType.F32))
    write_gguf(path, metadata, tensors)
    return path


def _tensors(kind: str, config: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Array]:
    heads = config.get("num_attention_heads", config.get("n_head"))
    kv_heads = config.get("num_key_value_heads", heads)
    made = {}
    if kind == "deepseek2":
        arrays = _with_k_and_v_apart(config, arrays)
    for name, array in _with_stacked_experts(_with_stacked_norms(arrays)).items():
        values = array
        if kind in _PERMUTED and (found := re.search(r"\.(q|k)_proj\.", name)):
            values = _interleaved(values, heads if found[1] == "q" else kv_heads)
        if kind == "gptneox" and "query_key_value" in name:
            values = np.ascontiguousarray(values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1))
            values = values.reshape(array.shape)
        if kind == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
            values = np.ascontiguousarray(values.T)
        if kind in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        made[_gguf_name(kind, name)] = values
    scaling = config.get("rope_parameters") or {}
    if scaling.get("rope_type") == "longrope":
        for length in ("long", "short"):
            made[f"rope_factors_{length}.weight"] = np.array(scaling[f"{length}_factor"], np.float32)
    return made


def _with_stacked_norms(arrays: dict[str, Array]) -> dict[str, Array]:
    """StableLM's norms of each head, joined into one tensor of q's and one of k's."""
    joined: dict[str, Array] = {}
    parts: dict[str, list[tuple[int, Array]]] = {}
    for name, array in arrays.items():
        if found := re.match(r"(.*)\.(q|k)_layernorm\.norms\.(\d+)\.weight", name):
            parts.setdefault(f"{found[1]}.{found[2]}_norm.weight", []).append((int(found[3]), array))
        else:
            joined[name] = array
    for name, pieces in parts.items():
        joined[name] = np.stack([array for _, array in sorted(pieces, key=lambda piece: piece[0])])
    return joined


def _with_stacked_experts(arrays: dict[str, Array]) -> dict[str, Array]:
    """The matrices of all experts of a layer in one tensor, each [out, in]; gpt-oss' gate and up taken apart."""
    joined: dict[str, Array] = {}
    parts: dict[str, list[tuple[int, Array]]] = {}
    for name, array in arrays.items():
        if found := re.match(r"model\.layers\.(\d+)\..*experts\.(\d+)\.(\w+)\.weight", name):
            stacked = f"blk.{found[1]}.ffn_{_EXPERT_PARTS[found[3]]}_exps.weight"
            parts.setdefault(stacked, []).append((int(found[2]), array))
        elif found := re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(\w+?)_proj(_bias)?$", name):
            values = array if found[3] else array.swapaxes(1, 2)
            for part, start in (("gate", 0), ("up", 1)) if found[2] == "gate_up" else (("down", 0),):
                taken = values[:, start::2] if found[2] == "gate_up" else values
                joined[f"blk.{found[1]}.ffn_{part}_exps.{'bias' if found[3] else 'weight'}"] = taken
        else:
            joined[name] = array
    for name, pieces in parts.items():
        joined[name] = np.stack([array for _, array in sorted(pieces, key=lambda piece: piece[0])])
    return {name: np.ascontiguousarray(array) for name, array in joined.items()}


def _with_k_and_v_apart(config: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Array]:
    """What makes K and V of the latent vector, head by head, K's transposed."""
    made: dict[str, Array] = {}
    for name, array in arrays.items():
        if "kv_b_proj" not in name:
            made[name] = array
            continue
        heads = array.reshape(config["num_attention_heads"], -1, array.shape[1])
        k, v = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
        made[name.replace("kv_b_proj", "k_b_proj")] = np.ascontiguousarray(k.swapaxes(1, 2))
        made[name.replace("kv_b_proj", "v_b_proj")] = np.ascontiguousarray(v)
    return made


def _gguf_name(kind: str, name: str) -> str:
    if "post_attention_layernorm" in name:
        name = name.replace("post_attention_layernorm", "post_attention_norm" if kind in _SANDWICH else "ffn_norm")
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _interleaved(array: Array, heads: int) -> Array:
    """Rows of each head from the order of pairs (i, i + d / 2) to that of pairs (2i, 2i + 1)."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _metadata(kind: str, config: dict[str, Any]) -> dict[str, MetadataValue]:
    """Keys without the architecture before them."""
    if kind == "gpt2":
        return {
            "block_count": config["n_layer"],
            "context_length": config["n_positions"],
            "embedding_length": config["n_embd"],
            "feed_forward_length": 4 * config["n_embd"],
            "attention.head_count": config["n_head"],
            "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        }
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    metadata: dict[str, MetadataValue] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", heads),
        **_epsilon(kind, config),
        **_rope(kind, config, head_dim),
    }
    if kind == "deepseek2":
        metadata.update(_latent(config))
    elif config.get("head_dim"):
        metadata["attention.key_length"] = metadata["attention.value_length"] = head_dim
    if kind in ("phi3", "gemma2", "gemma3", "cohere2", "gpt-oss") and config.get("sliding_window"):
        metadata["attention.sliding_window"] = config["sliding_window"]
    if kind in ("llama", "qwen3moe", "gpt-oss") and "num_experts_per_tok" in config:
        metadata["expert_count"] = config.get("num_local_experts") or config["num_experts"]
        metadata["expert_used_count"] = config["num_experts_per_tok"]
        if kind != "llama":
            metadata["expert_feed_forward_length"] = config.get("moe_intermediate_size") or config["intermediate_size"]
    for key, field in _MORE.get(kind, {}).items():
        metadata[key] = config[field]
    return metadata


def _latent(config: dict[str, Any]) -> dict[str, MetadataValue]:
    """DeepSeek's own keys."""
    rotary, rope = config["qk_rope_head_dim"], config["rope_parameters"]
    keys: dict[str, MetadataValue] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["kv_lora_rank"] + rotary,
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotary,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotary,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": config["routed_scaling_factor"],
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    if config["architectures"] == ["DeepseekV3ForCausalLM"]:
        keys["expert_gating_func"] = 2
        keys["expert_weights_norm"] = config["norm_topk_prob"]
        keys["expert_group_count"], keys["expert_group_used_count"] = config["n_group"], config["topk_group"]
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return keys


#: Keys of single families -> fields of config.json.
_MORE = {
    "gemma2": {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale"},
    "stablelm": {"use_parallel_residual": "use_parallel_residual"},
    "gptneox": {"use_parallel_residual": "use_parallel_residual"},
}


def _epsilon(kind: str, config: dict[str, Any]) -> dict[str, MetadataValue]:
    field = "norm_epsilon" if kind == "starcoder2" else "layer_norm_eps" if kind in _LAYER_NORM else "rms_norm_eps"
    value = config[field]
    return {f"attention.layer_norm_{'' if kind in _LAYER_NORM else 'rms_'}epsilon": value}


def _rope(kind: str, config: dict[str, Any], head_dim: int) -> dict[str, MetadataValue]:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    keys: dict[str, MetadataValue] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    scaling = rope.get("rope_type", "default")
    if scaling in ("linear", "yarn"):
        keys["rope.scaling.type"] = scaling
        keys["rope.scaling.factor"] = rope["factor"]
    if scaling == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if scaling == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        keys["rope.scaling.original_context_length"] = original
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    return keys
