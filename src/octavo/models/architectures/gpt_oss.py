"""gpt-oss: attention sinks, windows in every other layer, biases everywhere, experts with a clamped gate.

transformers keeps all experts in one tensor, as [experts, in, out] (in MXFP4 [experts, out, in]), gate and up in turn;
GGUF has a tensor for each.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.backends.ops import ClampedSwiglu, Routing
from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Exact, Names, Stacked
from octavo.models.spec import DecoderSpec, LayerSpec

_ALPHA, _LIMIT = 1.702, 7.0


def _spec(model: Description) -> DecoderSpec:
    attention = replace(model.attention(model.rope(whole=False)), bias=True, output_bias=True, sinks=True)
    routing = Routing(1, 1, "chosen", normalise=False)
    gate = ClampedSwiglu(
        model.number("swiglu_alpha", "", 1e-3, 1e3, _ALPHA), model.number("swiglu_limit", "", 1e-3, 1e6, _LIMIT)
    )
    moe = model.moe("num_local_experts", ("intermediate_size", "expert_feed_forward_length"), routing)
    layer = LayerSpec(attention, replace(moe, activation=gate, bias=True), model.rms_norm())
    return model.decoder(model.windowed(layer, model.windows(True, full_every=2)))


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF.with_layer(ffn_norm="post_attention_norm")
    both = Stacked("mlp.experts.gate_up_proj", transposed=True, step=2, bias="mlp.experts.gate_up_proj_bias")
    return HF.with_layer(
        {
            "sinks": Exact("self_attn.sinks"),
            "experts.gate": both,
            "experts.up": replace(both, first=1),
            "experts.down": Stacked("mlp.experts.down_proj", transposed=True, bias="mlp.experts.down_proj_bias"),
        },
        router="mlp.router",
    )


ARCHITECTURE = Architecture(("GptOssForCausalLM",), ("gpt-oss",), _spec, _names)
