"""What GGUF's metadata say about a model: keys and factors of rotary frequencies, from its spec and its config.json."""

from __future__ import annotations

from octavo.formats.blocks import quantize
from octavo.formats.gguf_write import MetadataValue
from octavo.formats.tensor import Tensor, TensorType
from octavo.models.fields import Fields
from octavo.models.rope import LongFactors, Rope, base_frequencies
from octavo.models.rope_fields import FACTOR, THETA
from octavo.models.spec import MLP, Attention, DecoderSpec, LatentAttention, MoE


def gguf_keys(name: str, spec: DecoderSpec, config: Fields) -> dict[str, MetadataValue]:
    """Keys without the architecture before them."""
    layer = spec.layers[0]
    mixer = layer.mixer
    keys: dict[str, MetadataValue] = {
        "block_count": len(spec.layers),
        "context_length": spec.context,
        "embedding_length": spec.hidden,
        "feed_forward_length": layer.ffn.hidden,
        "vocab_size": spec.vocab,
        "attention.head_count": mixer.heads,
        "attention.head_count_kv": mixer.kv_heads,
        "attention.key_length": mixer.head_dim,
        "attention.value_length": mixer.head_dim,
        f"attention.layer_norm_{'rms_' if layer.norm.kind == 'rms' else ''}epsilon": float(layer.norm.eps),
    }
    if isinstance(layer.ffn, MoE):
        keys["expert_count"], keys["expert_used_count"] = layer.ffn.routing.experts, layer.ffn.routing.used
        keys["expert_feed_forward_length"] = layer.ffn.hidden
    if isinstance(mixer, LatentAttention):
        keys.update(_latent_keys(spec, mixer, config))
    else:
        windows = {one.mixer.window for one in spec.layers if isinstance(one.mixer, Attention)} - {0}
        if windows:
            keys["attention.sliding_window"] = max(windows)
        if mixer.softcap:
            keys["attn_logit_softcapping"] = float(mixer.softcap)
    if spec.logit_softcap:
        keys["final_logit_softcapping"] = float(spec.logit_softcap)
    if name == "granite":
        keys["attention.scale"], keys["embedding_scale"] = float(mixer.scale), float(spec.embedding_scale)
        keys["residual_scale"], keys["logit_scale"] = float(layer.residual_scale), 1.0 / spec.logit_scale
    if name in ("command-r", "cohere2"):
        keys["logit_scale"] = float(spec.logit_scale)
    if name in ("gptneox", "stablelm"):
        keys["use_parallel_residual"] = layer.parallel
    return {**keys, **_rope_keys(spec, config)}


def _latent_keys(spec: DecoderSpec, mixer: LatentAttention, config: Fields) -> dict[str, MetadataValue]:
    """DeepSeek's, in place of what others have: K and V are one vector for all heads there."""
    rotary = mixer.rope.rotary_dim
    keys: dict[str, MetadataValue] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": mixer.kv_rank,
        "attention.key_length": mixer.kv_rank + rotary,
        "attention.value_length": mixer.kv_rank,
        "attention.key_length_mla": mixer.head_dim,
        "attention.value_length_mla": mixer.v_dim,
        "leading_dense_block_count": sum(isinstance(layer.ffn, MLP) for layer in spec.layers),
    }
    if mixer.q_rank:
        keys["attention.q_lora_rank"] = mixer.q_rank
    if multiplier := _scaling(config).number("mscale_all_dim", 0.0, 1e3, 0.0):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * multiplier
    mixture = spec.layers[-1].ffn
    if isinstance(mixture, MoE):
        routing = mixture.routing
        keys["expert_count"], keys["expert_used_count"] = routing.experts, routing.used
        keys["expert_feed_forward_length"] = mixture.hidden
        keys["expert_shared_count"] = mixture.shared.hidden // mixture.hidden if mixture.shared else 0
        keys["expert_gating_func"] = 2 if routing.scoring == "sigmoid" else 1
        keys["expert_weights_norm"], keys["expert_weights_scale"] = routing.normalise, float(routing.scale)
        if routing.groups > 1:
            keys["expert_group_count"], keys["expert_group_used_count"] = routing.groups, routing.used_groups
    return keys


def _rope_keys(spec: DecoderSpec, config: Fields) -> dict[str, MetadataValue]:
    rope = _rope(spec)
    if rope is None:
        return {}
    scaling = _scaling(config)
    keys: dict[str, MetadataValue] = {"rope.dimension_count": rope.rotary_dim, "rope.freq_base": _theta(config)}
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind in ("linear", "yarn"):
        keys["rope.scaling.type"], keys["rope.scaling.factor"] = kind, scaling.number("factor", 1e-3, 1e6)
    if kind == "yarn" and scaling.has("original_max_position_embeddings"):
        keys["rope.scaling.original_context_length"] = scaling.integer("original_max_position_embeddings", 1, 1 << 31)
    if isinstance(rope.beyond, LongFactors):
        keys["rope.scaling.original_context_length"] = rope.beyond.limit
        keys["rope.scaling.attn_factor"] = float(rope.amplitude)
    return keys


def rope_factors(spec: DecoderSpec, config: Fields) -> list[Tensor]:
    """Divisors of the frequencies, which say llama3's scaling, and longrope's; none with another."""
    rope = _rope(spec)
    if rope is None:
        return []
    scaling = _scaling(config)
    if isinstance(rope.beyond, LongFactors):
        factors = {kind: scaling.numbers(f"{kind}_factor", rope.rotary_dim // 2, *FACTOR) for kind in ("long", "short")}
        return [quantize(f"rope_factors_{kind}.weight", values, TensorType.F32) for kind, values in factors.items()]
    if scaling.text("rope_type", "default") != "llama3":
        return []
    divisors = base_frequencies(_theta(config), rope.rotary_dim) / rope.inv_freq
    return [quantize("rope_freqs.weight", divisors, TensorType.F32)]


def _rope(spec: DecoderSpec) -> Rope | None:
    """Of the first full layer that rotates, or of the first that does."""
    ropes = [layer.mixer.rope for layer in spec.layers if getattr(layer.mixer, "window", 0) == 0]
    ropes += [layer.mixer.rope for layer in spec.layers]
    return next((rope for rope in ropes if rope is not None), None)


def _scaling(config: Fields) -> Fields:
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return scaling.section("full_attention") if scaling.has("full_attention") else scaling


def _theta(config: Fields) -> float:
    outer = config.number("rotary_emb_base", *THETA, 10_000.0)
    return _scaling(config).number("rope_theta", *THETA, config.number("rope_theta", *THETA, outer))
