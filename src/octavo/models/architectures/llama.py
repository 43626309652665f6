"""Llama, Mistral with its sliding window, and Mixtral: a Mistral with experts.

GGUF's `llama` (the others too: they are converted as one) stores Q and K rows for interleaved rotation; safetensors
don't.
"""

from __future__ import annotations

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec

_MIXTRAL = "MixtralForCausalLM"


def _spec(model: Description) -> DecoderSpec:
    attention = model.attention(model.rope(interleaved=model.in_gguf))
    mixture = model.architecture == _MIXTRAL or model.integer("", "expert_count", 0, 1 << 16, 0) > 0
    ffn = model.moe("num_local_experts", ("intermediate_size", "feed_forward_length")) if mixture else model.mlp()
    layer = LayerSpec(attention, ffn, model.rms_norm())
    has_window = model.architecture != "LlamaForCausalLM"
    return model.decoder(model.windowed(layer, [has_window] * model.layers))


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF
    experts = {f"experts.{slot}": f"block_sparse_moe.experts.{{}}.{w}" for slot, w in _EXPERTS}
    return HF.with_layer(experts, router="block_sparse_moe.gate")


_EXPERTS = (("gate", "w1"), ("up", "w3"), ("down", "w2"))

ARCHITECTURE = Architecture(("LlamaForCausalLM", "MistralForCausalLM", _MIXTRAL), ("llama",), _spec, _names)
