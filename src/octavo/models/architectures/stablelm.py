"""StableLM and StableLM 2: layer norms, a quarter of each head rotates; the 12B has parallel parts and norms of q and k
with a weight for each head."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names, Pieces
from octavo.models.spec import DecoderSpec, LayerSpec, QkNorm

_SHARE = 0.25


def _spec(model: Description) -> DecoderSpec:
    attention = replace(model.attention(model.rope(share=_SHARE)), output_bias=False)
    if model.in_gguf:
        parallel, normed = not model.holds("ffn_norm.weight"), model.holds("attn_q_norm.weight")
    else:
        parallel = model.flag("use_parallel_residual", "", False)
        normed = model.flag("qk_layernorm", "", False)
        attention = replace(attention, bias=model.flag("use_qkv_bias", "", False))
    if normed:
        attention = replace(attention, qk_norm=QkNorm("own", model.layer_norm(bias=False)))
    layer = LayerSpec(attention, model.mlp(), model.layer_norm(), parallel=parallel, shared_norm=parallel)
    return model.decoder((layer,) * model.layers)


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF
    return HF.with_layer(
        q_norm=Pieces("self_attn.q_layernorm.norms.{}", model.heads),
        k_norm=Pieces("self_attn.k_layernorm.norms.{}", model.kv_heads),
    )


ARCHITECTURE = Architecture(("StableLmForCausalLM",), ("stablelm",), _spec, _names)
