"""DeepSeek V2 and V3: latent attention, and experts of which only the best groups take part.

The first layers have plain feed-forwards. V2 scores experts by softmax, V3 by sigmoid with a correction for the choice.
Both formats store what rotates interleaved; GGUF has the matrices that make K and V apart, K's transposed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from octavo.backends.ops import Routing
from octavo.models import rope_fields
from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Entry, Exact, Heads, Names, fused
from octavo.models.rope import Rope, yarn_amplitude
from octavo.models.spec import MLP, DecoderSpec, LatentAttention, LayerSpec, MoE, NormSpec

_WIDTH = (1, 1 << 18)
_LATENT_EPS = 1e-6  # of the norms inside attention, whatever the file says of the others
_SOFTMAX, _SIGMOID = 1, 2  # GGUF's expert_gating_func


def _spec(model: Description) -> DecoderSpec:
    experts = model.moe("n_routed_experts", ("moe_intermediate_size", "expert_feed_forward_length"), _routing(model))
    _check_groups(model, experts.routing)
    shared = model.integer("n_shared_experts", "expert_shared_count", 1, 1024, 1) * experts.hidden
    mixture = replace(experts, corrected=experts.routing.scoring == "sigmoid", shared=MLP(shared))
    if model.integer("moe_layer_freq", "", 1, 1 << 16, 1) != 1:
        raise model.fields.error("moe_layer_freq", "is not 1; every layer after the first ones must have experts")
    dense = model.integer("first_k_dense_replace", "leading_dense_block_count", 0, 1 << 16, 0)
    ffns: list[MLP | MoE] = [model.mlp() if index < dense else mixture for index in range(model.layers)]
    attention, norm = _attention(model), model.rms_norm()
    return model.decoder(tuple(LayerSpec(attention, ffn, norm) for ffn in ffns))


def _routing(model: Description) -> Routing:
    if model.in_gguf:
        sigmoid = model.integer("", "expert_gating_func", _SOFTMAX, _SIGMOID, _SOFTMAX) == _SIGMOID
    else:
        sigmoid = model.architecture == "DeepseekV3ForCausalLM"
    scoring: Literal["sigmoid", "softmax"] = "sigmoid" if sigmoid else "softmax"
    if not model.in_gguf and (said := model.fields.text("scoring_func", scoring)) != scoring:
        raise model.fields.error("scoring_func", f"is {said!r}; a {model.architecture} is run with {scoring!r}")
    groups = model.integer("n_group", "expert_group_count", 1, 1024, 1)
    if not (sigmoid or model.in_gguf) and _v2_method(model) == "greedy":
        groups = 1
    return Routing(
        1,
        1,
        scoring,
        normalise=model.flag("norm_topk_prob", "expert_weights_norm", sigmoid and not model.in_gguf),
        scale=model.number("routed_scaling_factor", "expert_weights_scale", 1e-6, 1e6, 1.0),
        groups=groups,
        used_groups=model.integer("topk_group", "expert_group_used_count", 1, groups, groups) if groups > 1 else 1,
        group_score="top2" if sigmoid else "max",
    )


def _v2_method(model: Description) -> str:
    method = model.fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise model.fields.error("topk_method", f"is {method!r}; supported are 'greedy' and 'group_limited_greedy'")
    if model.flag("norm_topk_prob", "", False):
        raise model.fields.error("norm_topk_prob", "is true; DeepSeek V2 is supported without")
    return method


def _check_groups(model: Description, routing: Routing) -> None:
    if routing.experts % routing.groups:
        name = model.name("n_group", "expert_group_count")
        raise model.fields.error(name, f"is {routing.groups}; it must divide the {routing.experts} experts")
    most = routing.used_groups * (routing.experts // routing.groups)
    if routing.used > most:
        name = model.name("num_experts_per_tok", "expert_used_count")
        raise model.fields.error(name, f"is {routing.used}; the groups in use hold {most} experts")


def _attention(model: Description) -> LatentAttention:
    rotary = model.integer("qk_rope_head_dim", "rope.dimension_count", *_WIDTH, 64)
    if model.in_gguf:
        nope = model.integer("", "attention.key_length_mla", rotary + 1, 1 << 18) - rotary
    else:
        nope = model.integer("qk_nope_head_dim", "", *_WIDTH, 128)
    rope, more = _rope(model, rotary)
    return LatentAttention(
        heads=model.heads,
        kv_rank=model.integer("kv_lora_rank", "attention.kv_lora_rank", *_WIDTH),
        nope_dim=nope,
        v_dim=model.integer("v_head_dim", "attention.value_length_mla", 1, rotary + nope, 128),
        scale=(rotary + nope) ** -0.5 * more,
        rope=rope,
        norm=NormSpec(_LATENT_EPS),
        q_rank=model.integer("q_lora_rank", "attention.q_lora_rank", 0, 1 << 18, 0),
        bias=model.flag("attention_bias", "", False),
    )


def _rope(model: Description, rotary: int) -> tuple[Rope, float]:
    """The rotary embedding, and what else yarn multiplies scores with."""
    if model.in_gguf:
        rope = rope_fields.from_gguf(model.fields, model.architecture, rotary, model.file)
        multiplier = model.number("", "rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
        factor = model.number("", "rope.scaling.factor", 1e-3, 1e6, 1.0)
        if multiplier:  # the converter keeps one of two numbers of config.json; they have been equal so far
            rope = replace(rope, amplitude=1.0)
        return replace(rope, interleaved=True), yarn_amplitude(factor, 10.0 * multiplier) ** 2
    rope = rope_fields.from_config(model.fields, rotary)
    scaling = model.fields.section("rope_parameters" if model.has("rope_parameters") else "rope_scaling")
    factor, all_dim = scaling.number("factor", 1e-3, 1e6, 1.0), scaling.number("mscale_all_dim", 0.0, 1e3, 0.0)
    rope = replace(rope, interleaved=model.flag("rope_interleave", "", True))
    return rope, yarn_amplitude(factor, all_dim) ** 2


def _names(model: Description) -> Names:
    return _gguf_names(model) if model.in_gguf else HF.with_layer(_hf_layer(model))


def _hf_layer(model: Description) -> dict[str, Entry]:
    return {
        **fused("self_attn.kv_a_proj_with_mqa", ("kv_a", "k_rope")),
        **fused("self_attn.kv_b_proj", ("k_b", "v_b"), per_head=True),
        "q_a": "self_attn.q_a_proj",
        "q_a_norm": "self_attn.q_a_layernorm",
        "kv_a_norm": "self_attn.kv_a_layernorm",
        "q": "self_attn.q_b_proj" if model.has("q_lora_rank") else "self_attn.q_proj",
        "router": "mlp.gate",
        "correction": Exact("mlp.gate.e_score_correction_bias"),
        **{f"experts.{slot}": f"mlp.experts.{{}}.{slot}_proj" for slot in ("gate", "up", "down")},
        **{f"shared.{slot}": f"mlp.shared_experts.{slot}_proj" for slot in ("gate", "up", "down")},
    }


def _gguf_names(model: Description) -> Names:
    layer: dict[str, Entry] = {
        **fused("attn_kv_a_mqa", ("kv_a", "k_rope")),
        "k_b": Heads("attn_k_b", transposed=True),
        "v_b": Heads("attn_v_b"),
        "q_a": "attn_q_a",
        "q_a_norm": "attn_q_a_norm",
        "kv_a_norm": "attn_kv_a_norm",
        "q": "attn_q_b" if model.has("", "attention.q_lora_rank") else "attn_q",
        "correction": Exact("exp_probs_b.bias"),
        **{f"shared.{slot}": f"ffn_{slot}_shexp" for slot in ("gate", "up", "down")},
    }
    if model.holds("attn_kv_b.weight"):  # files from before the two were taken apart
        layer.update(fused("attn_kv_b", ("k_b", "v_b"), per_head=True))
    return GGUF.with_layer(layer)


ARCHITECTURE = Architecture(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), ("deepseek2",), _spec, _names)
