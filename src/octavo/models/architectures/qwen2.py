"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows in the upper layers if a flag says so."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec


def _spec(model: Description) -> DecoderSpec:
    attention = replace(model.attention(model.rope()), bias=True, output_bias=False)
    return model.decoder(qwen_layers(model, LayerSpec(attention, model.mlp(), model.rms_norm())))


def qwen_layers(model: Description, layer: LayerSpec) -> tuple[LayerSpec, ...]:
    """`layer` for every layer, with the window from layer `max_window_layers` on if `use_sliding_window` is true."""
    if not model.flag("use_sliding_window", "", False):
        return (layer,) * model.layers
    first = model.integer("max_window_layers", "", 0, 1 << 31, 28)
    windows = model.windows(sliding=True) if model.has("layer_types") else [i >= first for i in range(model.layers)]
    return model.windowed(layer, windows)


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF


ARCHITECTURE = Architecture(("Qwen2ForCausalLM",), ("qwen2",), _spec, _names)
