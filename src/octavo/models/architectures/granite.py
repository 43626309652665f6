"""Granite 3: Llama with four multipliers: of embeddings, of scores, of what a layer adds, and of logits (a divisor)."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec

_RANGE = (1e-6, 1e6)


def _spec(model: Description) -> DecoderSpec:
    rotates = not model.in_gguf or model.flag("", "rope.scaling.finetuned", True)  # GGUF's switch for positions
    attention = replace(
        model.attention(model.rope(interleaved=model.in_gguf) if rotates else None),
        scale=model.number("attention_multiplier", "attention.scale", *_RANGE, 1.0),
    )
    residual_scale = model.number("residual_multiplier", "residual_scale", *_RANGE, 1.0)
    layer = LayerSpec(attention, model.mlp(), model.rms_norm(), residual_scale=residual_scale)
    return replace(
        model.decoder((layer,) * model.layers),
        embedding_scale=model.number("embedding_multiplier", "embedding_scale", *_RANGE, 1.0),
        logit_scale=1.0 / model.number("logits_scaling", "logit_scale", *_RANGE, 1.0),
    )


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF


ARCHITECTURE = Architecture(("GraniteForCausalLM",), ("granite",), _spec, _names)
