"""The one decoder: walks a DecoderSpec and asks a builder for ops."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import AttentionOp, Buffer, Norm, Projection, Recorder
from octavo.models.slots import Weights
from octavo.models.spec import DecoderSpec, LayerSpec


def record(spec: DecoderSpec, weights: Weights, builder: Recorder) -> None:
    """Record one forward pass of `spec` on `builder`; afterwards `builder.finish()` gives the plan."""
    embedding = weights.matrices["embed"]
    x = builder.embed(embedding, spec.embedding_scale)
    for index, layer in enumerate(spec.layers):
        _record_layer(index, layer, weights, builder, x)
    head = embedding if spec.tied_head else weights.matrices["head"]
    norm = Norm(weights.vectors["norm"], spec.norm_eps)
    builder.head_and_sample(x, norm, head, spec.logit_scale, spec.logit_softcap)


def _record_layer(index: int, layer: LayerSpec, weights: Weights, builder: Recorder, x: Buffer) -> None:
    """Pre-norm attention and feed-forward, each added to `x` in place."""
    prefix = f"layers.{index}."

    def projection(name: str) -> Projection:
        return Projection(weights.matrices[prefix + name], weights.vectors.get(f"{prefix}{name}.bias"))

    normed = builder.norm(x, Norm(weights.vectors[prefix + "attn_norm"], layer.norm_eps))
    q, k, v = builder.linear(normed, [projection("q"), projection("k"), projection("v")])
    op = _attention_op(index, layer, weights)
    builder.rope_and_store(q, k, v, op)
    builder.linear(builder.attention(q, op), [projection("o")], residual=x)

    normed = builder.norm(x, Norm(weights.vectors[prefix + "ffn_norm"], layer.norm_eps))
    gate, up = builder.linear(normed, [projection("gate"), projection("up")])
    builder.linear(builder.gated(gate, up, layer.ffn.activation), [projection("down")], residual=x)


def _attention_op(index: int, layer: LayerSpec, weights: Weights) -> AttentionOp:
    attention = layer.mixer
    return AttentionOp(
        layer=index,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        scale=attention.scale,
        inv_freq=attention.rope.inv_freq if attention.rope else np.empty(0, np.float32),
        amplitude=attention.rope.amplitude if attention.rope else 1.0,
        q_norm=weights.vectors.get(f"layers.{index}.q_norm"),
        k_norm=weights.vectors.get(f"layers.{index}.k_norm"),
        norm_eps=layer.norm_eps,
        window=attention.window,
        softcap=attention.softcap,
        sinks=weights.vectors.get(f"layers.{index}.sinks"),
    )
