"""OLMo 2: a norm after each part and none before, and one over all heads of q and of k at once."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF_SANDWICH, Names
from octavo.models.spec import DecoderSpec, LayerSpec, QkNorm


def _spec(model: Description) -> DecoderSpec:
    if model.in_gguf and model.window:
        raise model.fields.error("olmo2.attention.sliding_window", f"is {model.window}; OLMo 2 has no windows here")
    norm = model.rms_norm()
    attention = replace(model.attention(model.rope()), qk_norm=QkNorm("all", norm))
    layer = LayerSpec(attention, model.mlp(), norm, pre_norm=False, post_norm=True)
    return model.decoder((layer,) * model.layers)


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF_SANDWICH


ARCHITECTURE = Architecture(("Olmo2ForCausalLM",), ("olmo2",), _spec, _names)
