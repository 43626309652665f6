"""Qwen3: every head of q and k goes through an RMS norm before rotation. Qwen3-MoE: experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from octavo.backends.ops import Routing
from octavo.models.architecture import Architecture
from octavo.models.architectures.qwen2 import qwen_layers
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import MLP, DecoderSpec, LayerSpec, MoE, QkNorm


def _dense(model: Description) -> DecoderSpec:
    return _decoder(model, model.mlp())


def _moe(model: Description) -> DecoderSpec:
    if model.integer("decoder_sparse_step", "", 0, 1 << 16, 1) != 1 or model.fields.values.get("mlp_only_layers"):
        raise model.fields.error(
            "mlp_only_layers", "or decoder_sparse_step makes layers without experts; all must have them"
        )
    routing = Routing(1, 1, normalise=model.flag("norm_topk_prob", "", model.in_gguf))
    count = "num_experts" if model.has("num_experts") else "num_local_experts"  # before and from transformers 5 on
    return _decoder(model, model.moe(count, ("moe_intermediate_size", "expert_feed_forward_length"), routing))


def _decoder(model: Description, ffn: MLP | MoE) -> DecoderSpec:
    norm = model.rms_norm()
    attention = replace(model.attention(model.rope()), qk_norm=QkNorm("head", norm))
    return model.decoder(qwen_layers(model, LayerSpec(attention, ffn, norm)))


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF
    experts = {f"experts.{slot}": f"mlp.experts.{{}}.{slot}_proj" for slot in ("gate", "up", "down")}
    return HF.with_layer(experts, router="mlp.gate")


ARCHITECTURE = Architecture(("Qwen3ForCausalLM",), ("qwen3",), _dense, _names)
MOE = Architecture(("Qwen3MoeForCausalLM",), ("qwen3moe",), _moe, _names)
