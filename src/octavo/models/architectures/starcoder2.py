"""StarCoder2: layer norms, biases everywhere, and a feed-forward without a gate."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec

_ALIASES = {"layer_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"}


def _spec(model: Description) -> DecoderSpec:
    model = model.with_aliases(_ALIASES)
    mlp, attention = model.mlp("gelu_tanh", gated=False), model.attention(model.rope())
    if not model.in_gguf:
        bias = model.flag("use_bias", "", True)
        mlp, attention = replace(mlp, bias=bias), replace(attention, bias=bias, output_bias=bias)
    layer = LayerSpec(attention, mlp, model.layer_norm())
    return model.decoder(model.windowed(layer, [True] * model.layers), tied_by_default=True)


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF.with_layer(up="mlp.c_fc", down="mlp.c_proj")


ARCHITECTURE = Architecture(("Starcoder2ForCausalLM",), ("starcoder2",), _spec, _names)
