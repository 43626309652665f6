"""Phi-3, 3.5 and 4-mini: Llama with q, k and v in one matrix and gate and up in another; longrope, partial rotation."""

from __future__ import annotations

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GATE_UP, GGUF, HF, QKV, Names, fused
from octavo.models.spec import DecoderSpec, LayerSpec


def _spec(model: Description) -> DecoderSpec:
    layer = LayerSpec(model.attention(model.rope()), model.mlp(), model.rms_norm())
    return model.decoder(model.windowed(layer, [True] * model.layers))


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF.with_layer({**fused("attn_qkv", QKV), **fused("ffn_up", GATE_UP)})
    return HF.with_layer({**fused("self_attn.qkv_proj", QKV), **fused("mlp.gate_up_proj", GATE_UP)})


ARCHITECTURE = Architecture(("Phi3ForCausalLM",), ("phi3",), _spec, _names)
