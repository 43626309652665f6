"""Gemma 2 and 3: scaled embeddings, norms before and after each part, windows in most layers.

Gemma 2 caps the scores of attention and the logits; every other layer is full. Gemma 3 norms q and k instead; every
sixth layer is full, and only those have the large (and perhaps scaled) rotary base. Norm weights are stored less one in
safetensors; GGUF's converter adds it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from octavo.models import rope_fields
from octavo.models.architecture import Architecture
from octavo.models.description import Description
from octavo.models.names import GGUF, HF_SANDWICH, Names
from octavo.models.rope import Rope, base_frequencies
from octavo.models.spec import DecoderSpec, LayerSpec, QkNorm

#: Layers of the two models whose scores are scaled by hidden / heads and not by the head size; GGUF doesn't say.
_GEMMA2_27B, _GEMMA3_27B = 46, 62
_GEMMA2_WINDOW = 4096


def _gemma2(model: Description) -> DecoderSpec:
    attention = replace(
        model.attention(model.rope()),
        scale=_scale(model, _GEMMA2_27B),
        softcap=model.number("attn_logit_softcapping", "attn_logit_softcapping", 0.0, 1e6, 0.0),
    )
    layer = LayerSpec(attention, model.mlp("gelu_tanh"), model.rms_norm(), post_norm=True)
    window = model.integer("sliding_window", "attention.sliding_window", 0, (1 << 31) - 1, _GEMMA2_WINDOW)
    return _decoder(model, model.windowed(layer, model.windows(True, full_every=2), window))


def _gemma3(model: Description) -> DecoderSpec:
    norm = model.rms_norm()
    attention = replace(
        model.attention(model.rope("full_attention")),
        scale=_scale(model, _GEMMA3_27B),
        softcap=model.number("attn_logit_softcapping", "", 0.0, 1e6, 0.0),
        qk_norm=QkNorm("head", norm),
    )
    full = LayerSpec(attention, model.mlp("gelu_tanh"), norm, post_norm=True)
    local = replace(full, mixer=replace(attention, rope=_local_rope(model), window=model.window))
    every = model.integer("sliding_window_pattern", "attention.sliding_window_pattern", 1, 1 << 16, 6)
    return _decoder(model, tuple(local if has else full for has in model.windows(True, full_every=every)))


def _local_rope(model: Description) -> Rope:
    """The rotary embedding of layers with a window: a base of its own, never scaled."""
    theta = model.number("rope_local_base_freq", "rope.freq_base_swa", *rope_fields.THETA, 10_000.0)
    if not model.in_gguf:
        parameters = model.fields.section("rope_parameters").section("sliding_attention")
        theta = parameters.number("rope_theta", *rope_fields.THETA, theta)
        kind = parameters.text("rope_type", "default")
        if kind != "default":
            raise parameters.error("rope_type", f"is {kind!r}; layers with a window are supported with 'default' only")
    return Rope(model.head_dim, base_frequencies(theta, model.head_dim))


def _scale(model: Description, layers_of_27b: int) -> float:
    default = model.hidden / model.heads if model.in_gguf and model.layers == layers_of_27b else model.head_dim
    return 1.0 / math.sqrt(model.number("query_pre_attn_scalar", "", 1e-3, 1e6, default))


def _decoder(model: Description, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    if model.flag("use_bidirectional_attention", "", False):
        raise model.fields.error("use_bidirectional_attention", "is true; only causal models are supported")
    return replace(
        model.decoder(layers, tied_by_default=True),
        embedding_scale=math.sqrt(model.hidden),
        logit_softcap=model.number("final_logit_softcapping", "final_logit_softcapping", 0.0, 1e6, 0.0),
    )


def _names(model: Description) -> Names:
    return GGUF if model.in_gguf else replace(HF_SANDWICH, norm_offset=1.0)


GEMMA2 = Architecture(("Gemma2ForCausalLM",), ("gemma2",), _gemma2, _names)
GEMMA3 = Architecture(("Gemma3ForCausalLM",), ("gemma3",), _gemma3, _names)
