"""The one decoder: walks a DecoderSpec and asks a builder for ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from octavo.backends.ops import (
    AttentionOp,
    Buffer,
    Expert,
    Ints,
    Norm,
    Projection,
    Recorder,
    Weight,
)
from octavo.models.slots import Weights
from octavo.models.spec import MLP, Attention, DecoderSpec, LatentAttention, LayerSpec, MoE, NormSpec, QkNorm


def record(
    spec: DecoderSpec, weights: Weights, builder: Recorder, places: Sequence[tuple[int, int]] | None = None
) -> None:
    """Record one forward pass of `spec` on `builder`; afterwards `builder.finish()` gives the plan.

    places: the KV group of each layer, and which of the group's layers it is; None: all in one group.
    """
    embedding = weights.matrices["embed"]
    x = builder.embed(embedding, spec.embedding_scale)
    if spec.learned_positions:
        builder.add_positions(x, weights.matrices["positions"])
    for index, layer in enumerate(spec.layers):
        _Layer(index, layer, weights, builder, places[index] if places else (0, index)).record(x)
    head = embedding if spec.tied_head else weights.matrices["head"]
    builder.head_and_sample(x, _norm(spec.norm, weights, "norm"), head, spec.logit_scale, spec.logit_softcap)


def _norm(norm: NormSpec, weights: Weights, slot: str, groups: int = 1) -> Norm:
    return Norm(weights.vectors[slot], norm.eps, norm.kind, weights.vectors.get(f"{slot}.bias"), groups)


def _normed_with_rope(qk_norm: QkNorm) -> bool:
    """Whether this norm of q and k is the one that rope_and_store does on the way."""
    return qk_norm.over == "head" and qk_norm.norm.kind == "rms"


def _by_order(named: list[tuple[str, Projection]]) -> list[tuple[Ints | None, list[tuple[str, Projection]]]]:
    """Projections with the same order of columns together, and now as if theirs were that of x."""
    found: list[tuple[Ints | None, list[tuple[str, Projection]]]] = []
    for name, projection in named:
        tensor, rows = projection.weight.tensor, projection.weight.row_index
        if tensor.order is not None:
            projection = Projection(Weight(replace(tensor, order=None), rows), projection.bias)
        for order, same in found:
            if _same_order(order, tensor.order):
                same.append((name, projection))
                break
        else:
            found.append((tensor.order, [(name, projection)]))
    return found


def _same_order(one: Ints | None, other: Ints | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


class _Layer:
    """Attention and feed-forward, each added to x in place."""

    def __init__(
        self, index: int, layer: LayerSpec, weights: Weights, builder: Recorder, place: tuple[int, int]
    ) -> None:
        self._group, self._place = place
        self._layer = layer
        self._weights = weights
        self._builder = builder
        self._prefix = f"layers.{index}."

    def record(self, x: Buffer) -> None:
        layer = self._layer
        normed = self._normed(x, "attn_norm") if layer.pre_norm else x
        attended = self._attend(normed)
        if layer.parallel:  # what the feed-forward reads is taken before attention is added
            if not layer.shared_norm:
                normed = self._normed(x, "ffn_norm")
            assert isinstance(layer.ffn, MLP), "parallel layers have plain feed-forwards"
            activated = self._activate(normed, layer.ffn)
            self._add_projected(x, attended, "o", "attn_post_norm")
            self._add_projected(x, activated, "down", "ffn_post_norm")
            return
        self._add_projected(x, attended, "o", "attn_post_norm")
        normed = self._normed(x, "ffn_norm") if layer.pre_norm else x
        if isinstance(layer.ffn, MoE):
            self._add(x, self._mixture(normed, layer.ffn), "ffn_post_norm")
        else:
            self._add_projected(x, self._activate(normed, layer.ffn), "down", "ffn_post_norm")

    def _attend(self, x: Buffer) -> Buffer:
        mixer = self._layer.mixer
        return self._attend_latent(x, mixer) if isinstance(mixer, LatentAttention) else self._attend_heads(x, mixer)

    def _attend_latent(self, x: Buffer, mixer: LatentAttention) -> Buffer:
        """K and V of every head are made of one vector a token; V is filled up to the width of K with zeros."""
        builder, heads, rotary = self._builder, mixer.heads, mixer.rope.rotary_dim
        inner = x
        if mixer.q_rank:
            (inner,) = self._linear(x, ["q_a"])
            inner = self._latent_norm(inner, "q_a_norm", mixer)
        (q,) = self._linear(inner, ["q"])
        latent, k_rope = self._linear(x, ["kv_a", "k_rope"])
        latent = self._latent_norm(latent, "kv_a_norm", mixer)
        k_nope, v = self._linear(latent, ["k_b", "v_b"])

        own = rotary + np.arange(heads * mixer.nope_dim, dtype=np.int32).reshape(heads, -1)
        shared = np.tile(np.arange(rotary, dtype=np.int32), (heads, 1))
        k = builder.columns([k_rope, k_nope], np.concatenate([shared, own], axis=1).reshape(-1))
        values = np.full((heads, mixer.head_dim), -1, np.int32)
        values[:, : mixer.v_dim] = np.arange(heads * mixer.v_dim, dtype=np.int32).reshape(heads, -1)
        v = builder.columns([v], values.reshape(-1))
        op = AttentionOp(
            layer=self._place,
            heads=heads,
            kv_heads=heads,
            head_dim=mixer.head_dim,
            scale=mixer.scale,
            inv_freq=mixer.rope.inv_freq,
            amplitude=mixer.rope.amplitude,
            group=self._group,
        )
        builder.rope_and_store(q, k, v, op)
        attended = builder.attention(q, op)
        if mixer.v_dim == mixer.head_dim:
            return attended
        kept = np.arange(heads * mixer.head_dim, dtype=np.int32).reshape(heads, -1)[:, : mixer.v_dim]
        return builder.columns([attended], kept.reshape(-1))

    def _latent_norm(self, x: Buffer, slot: str, mixer: LatentAttention) -> Buffer:
        return self._builder.norm(x, _norm(mixer.norm, self._weights, self._prefix + slot))

    def _attend_heads(self, x: Buffer, mixer: Attention) -> Buffer:
        builder = self._builder
        q, k, v = self._linear(x, ["q", "k", "v"])
        qk_norm = mixer.qk_norm
        if qk_norm is not None and not _normed_with_rope(qk_norm):
            own = qk_norm.over != "all"
            q = builder.norm(q, self._head_norm("q_norm", qk_norm, mixer.heads if own else 1))
            k = builder.norm(k, self._head_norm("k_norm", qk_norm, mixer.kv_heads if own else 1))
        op = self._attention_op(mixer)
        builder.rope_and_store(q, k, v, op)
        return builder.attention(q, op)

    def _activate(self, x: Buffer, ffn: MLP, prefix: str = "") -> Buffer:
        """What the last matrix of a feed-forward reads."""
        builder = self._builder
        if not ffn.gated:
            (up,) = self._linear(x, [f"{prefix}up"])
            return builder.activation(up, ffn.activation)
        gate, up = self._linear(x, [f"{prefix}gate", f"{prefix}up"])
        return builder.gated(gate, up, ffn.activation)

    def _mixture(self, x: Buffer, ffn: MoE) -> Buffer:
        """The sum of the experts that each token uses, and of the shared one."""
        builder = self._builder
        experts = [
            Expert(*(self._projection(f"experts.{index}.{name}") for name in ("gate", "up", "down")))
            for index in range(ffn.routing.experts)
        ]
        correction = self._weights.vectors.get(f"{self._prefix}correction")
        mixed = builder.moe(x, self._projection("router"), correction, experts, ffn.routing, ffn.activation)
        if ffn.shared is not None:
            activated = self._activate(x, ffn.shared, "shared.")
            self._linear(activated, ["shared.down"], residual=mixed)
        return mixed

    def _add_projected(self, x: Buffer, values: Buffer, projection: str, post_norm: str) -> None:
        """x += residual_scale * norm(projection of values)."""
        if not self._layer.post_norm and self._layer.residual_scale == 1.0:
            self._linear(values, [projection], residual=x)
        else:
            (projected,) = self._linear(values, [projection])
            self._add(x, projected, post_norm)

    def _add(self, x: Buffer, values: Buffer, post_norm: str) -> None:
        """x += residual_scale * norm(values)."""
        if self._layer.post_norm:
            values = self._normed(values, post_norm)
        self._builder.add(x, values, self._layer.residual_scale)

    def _normed(self, x: Buffer, slot: str) -> Buffer:
        return self._builder.norm(x, _norm(self._layer.norm, self._weights, self._prefix + slot))

    def _linear(self, x: Buffer, names: Sequence[str], residual: Buffer | None = None) -> tuple[Buffer, ...]:
        """Projections of x; those whose columns stand in another order read x in that order."""
        outs: dict[str, Buffer] = {}
        for order, same in _by_order([(name, self._projection(name)) for name in names]):
            inputs = x if order is None else self._builder.columns([x], order)
            found = self._builder.linear(inputs, [projection for _, projection in same], residual)
            outs.update((name, out) for (name, _), out in zip(same, found, strict=True))
        return tuple(outs[name] for name in names)

    def _projection(self, name: str) -> Projection:
        slot = self._prefix + name
        return Projection(self._weights.matrices[slot], self._weights.vectors.get(f"{slot}.bias"))

    def _head_norm(self, slot: str, qk_norm: QkNorm, groups: int) -> Norm:
        norm = _norm(qk_norm.norm, self._weights, self._prefix + slot, groups)
        if qk_norm.over != "head":
            return norm
        bias = None if norm.bias is None else np.tile(norm.bias, groups)
        return Norm(np.tile(norm.weight, groups), norm.eps, norm.kind, bias, groups)

    def _attention_op(self, attention: Attention) -> AttentionOp:
        vectors, rope, qk_norm = self._weights.vectors, attention.rope, attention.qk_norm
        fused = qk_norm is not None and _normed_with_rope(qk_norm)
        return AttentionOp(
            layer=self._place,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            scale=attention.scale,
            inv_freq=rope.inv_freq if rope else np.empty(0, np.float32),
            amplitude=rope.amplitude if rope else 1.0,
            q_norm=vectors[f"{self._prefix}q_norm"] if fused else None,
            k_norm=vectors[f"{self._prefix}k_norm"] if fused else None,
            norm_eps=qk_norm.norm.eps if qk_norm else 0.0,
            window=attention.window,
            softcap=attention.softcap,
            sinks=vectors.get(f"{self._prefix}sinks"),
            group=self._group,
        )
