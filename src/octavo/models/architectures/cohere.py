"""Command R and R7B (Cohere 1 and 2): both parts of a layer read one layer norm without bias, and q and k are stored
for interleaved rotation in both formats. Cohere 2 has windows with rotation in three of four layers, and neither in
the fourth."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF, Names
from octavo.models.spec import DecoderSpec, LayerSpec, QkNorm

_INTERVAL = 4


def _layer(model: Description) -> LayerSpec:
    attention = model.attention(model.rope(interleaved=True))
    return LayerSpec(attention, model.mlp(), model.layer_norm(bias=False), parallel=True, shared_norm=True)


def _cohere(model: Description) -> DecoderSpec:
    layer = _layer(model)
    if model.holds("attn_q_norm.weight") if model.in_gguf else model.flag("use_qk_norm", "", False):
        layer = layer.with_qk_norm(QkNorm("own", layer.norm))
    return _decoder(model, (layer,) * model.layers)


def _cohere2(model: Description) -> DecoderSpec:
    full = _layer(model)
    sliding, full = full.with_window(model.window), full.with_rope(None)
    every = model.integer("sliding_window_pattern", "", 1, 1 << 16, _INTERVAL)
    return _decoder(model, tuple(sliding if has else full for has in model.windows(True, full_every=every)))


def _decoder(model: Description, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    scale = model.number("logit_scale", "logit_scale", 1e-6, 1e6, 1.0 if model.in_gguf else 0.0625)
    return replace(model.decoder(layers, tied_by_default=True), logit_scale=scale)


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else HF


COHERE = Architecture(("CohereForCausalLM",), ("command-r",), _cohere, _names)
COHERE2 = Architecture(("Cohere2ForCausalLM",), ("cohere2",), _cohere2, _names)
