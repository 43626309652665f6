"""GLM-4: norms before and after each part (the earlier Glm: before only), half of each head rotates, stored interleaved
in both formats; biases on q, k and v; gate and up in one matrix."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GATE_UP, GGUF, HF, Names, fused
from octavo.models.spec import DecoderSpec, LayerSpec

_SHARE = 0.5


def _spec(model: Description) -> DecoderSpec:
    attention = replace(model.attention(model.rope(interleaved=True, share=_SHARE)), output_bias=False)
    if not model.in_gguf:
        attention = replace(attention, bias=model.flag("attention_bias", "", True))
    post_norm = model.architecture != "GlmForCausalLM"
    layer = LayerSpec(attention, model.mlp(), model.rms_norm(), post_norm=post_norm)
    return model.decoder((layer,) * model.layers)


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF.with_layer(fused("ffn_up", GATE_UP))
    return HF.with_layer(
        fused("mlp.gate_up_proj", GATE_UP),
        attn_post_norm="post_self_attn_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    )


ARCHITECTURE = Architecture(("Glm4ForCausalLM", "GlmForCausalLM"), ("glm4",), _spec, _names)
