"""SmolLM3: Llama in which every fourth layer has no positions (NoPE). GGUF's Q and K rows are interleaved."""

from __future__ import annotations

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec

_INTERVAL = 4


def _spec(model: Description) -> DecoderSpec:
    if model.flag("use_sliding_window", "", False):
        raise model.fields.error("use_sliding_window", "is true; SmolLM3 is supported without windows")
    layer = LayerSpec(model.attention(model.rope(interleaved=model.in_gguf)), model.mlp(), model.rms_norm())
    bare = layer.with_rope(None)
    return model.decoder(tuple(layer if has else bare for has in _rotates(model)), tied_by_default=True)


def _rotates(model: Description) -> list[bool]:
    """For each layer whether it has positions."""
    if model.has("no_rope_layers"):  # 1 where there is a rotation, despite the name
        return [value != 0 for value in model.fields.numbers("no_rope_layers", model.layers, 0, 1)]
    interval = model.integer("no_rope_layer_interval", "", 1, 1 << 16, _INTERVAL)
    return [(index + 1) % interval != 0 for index in range(model.layers)]


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF


ARCHITECTURE = Architecture(("SmolLM3ForCausalLM",), ("smollm3",), _spec, _names)
