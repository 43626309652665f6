"""GPT-NeoX and Pythia: both parts of a layer read x, each through its own layer norm; part of each head rotates; biases
everywhere. transformers stores q, k and v of each head together, GGUF's converter undoes that."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, QKV, Names, fused
from octavo.models.spec import DecoderSpec, LayerSpec

_ALIASES = {"rope_theta": "rotary_emb_base"}
_SHARE = 0.25


def _spec(model: Description) -> DecoderSpec:
    model = model.with_aliases(_ALIASES)
    attention = model.attention(model.rope(share=_SHARE))
    mlp = replace(model.mlp("gelu", gated=False), bias=True)
    if not model.in_gguf:
        bias = model.flag("attention_bias", "", True)
        attention = replace(attention, bias=bias, output_bias=bias)
    else:
        attention = replace(attention, bias=model.holds("attn_qkv.bias"))
    parallel = model.flag("use_parallel_residual", "use_parallel_residual", True)
    layer = LayerSpec(attention, mlp, model.layer_norm(), parallel=parallel)
    return model.decoder((layer,) * model.layers)


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF.with_layer(fused("attn_qkv", QKV))
    return Names(
        prefix="gpt_neox.layers.{}.",
        model={"embed": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
        layer={
            **fused("attention.query_key_value", QKV, per_head=True),
            "attn_norm": "input_layernorm", "o": "attention.dense", "ffn_norm": "post_attention_layernorm",
            "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h",
        },
        ignored=(".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq", "embed_out.weight"),
    )  # fmt: skip


ARCHITECTURE = Architecture(("GPTNeoXForCausalLM",), ("gptneox",), _spec, _names)
