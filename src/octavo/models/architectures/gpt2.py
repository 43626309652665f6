"""GPT-2: learned positions, layer norms, biases everywhere; q, k and v in one matrix. transformers stores matrices as
[in, out]; some checkpoints leave out the `transformer.` before every name."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, QKV, Names, fused
from octavo.models.spec import DecoderSpec, LayerSpec

_ALIASES = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}  # fmt: skip


def _spec(model: Description) -> DecoderSpec:
    model = model.with_aliases(_ALIASES)
    for name, wanted in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if model.flag(name, "", wanted) != wanted:
            raise model.fields.error(name, f"is {not wanted}; supported is {wanted}".lower())
    mlp = replace(model.mlp("gelu_tanh", gated=False, hidden=4 * model.hidden), bias=True)
    attention = replace(model.attention(rope=None), bias=True, output_bias=True)
    layer = LayerSpec(attention, mlp, model.layer_norm())
    decoder = model.decoder((layer,) * model.layers, tied_by_default=True)
    return replace(decoder, learned_positions=decoder.context)


def _names(model: Description) -> Names:
    if model.in_gguf:
        return GGUF.with_layer(fused("attn_qkv", QKV))
    root = "" if "wte.weight" in model.file else "transformer."
    return Names(
        prefix=f"{root}h.{{}}.",
        model={"embed": f"{root}wte", "positions": f"{root}wpe", "norm": f"{root}ln_f", "head": "lm_head"},
        layer={
            **fused("attn.c_attn", QKV),
            "attn_norm": "ln_1", "o": "attn.c_proj", "ffn_norm": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj",
        },
        ignored=("lm_head.weight", ".attn.bias", ".attn.masked_bias"),  # a tied head; the causal mask
        transposed=True,
    )  # fmt: skip


ARCHITECTURE = Architecture(("GPT2LMHeadModel",), ("gpt2",), _spec, _names)
