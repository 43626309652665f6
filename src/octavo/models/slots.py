"""The weights a DecoderSpec needs, by name and shape.

Slot names: `embed`, `norm`, `head` (absent when tied), `positions` (learned ones) and, for layer i, `layers.{i}.` +
`attn_norm`, `q`, `k`, `v`, `o`, `ffn_norm`, `gate`, `up`, `down`, and `q_norm`, `k_norm`, `attn_post_norm`,
`ffn_post_norm`, `sinks`; a mixture of experts has `router`, `correction`, `experts.{e}.gate`, `.up`, `.down` and
`shared.gate`, `.up`, `.down` instead of one feed-forward; latent attention `q_a`, `q_a_norm`, `q`, `kv_a`, `k_rope`,
`kv_a_norm`, `k_b`, `v_b` instead of q, k and v. A bias is the name of what it belongs to + `.bias`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.backends.ops import Floats, Weight
from octavo.formats.tensor import Tensor
from octavo.models.spec import MLP, Attention, DecoderSpec, LatentAttention, LayerSpec, MoE, NormSpec

Slot = tuple[str, tuple[int, ...]]


class WeightsError(ValueError):
    """Missing, left-over or wrongly shaped tensors, or metadata this build can't run; the message names them."""


class TensorFile(Protocol):
    """Opened weights (formats.gguf.GgufFile, formats.safetensors.SafetensorsFolder): names, and views on demand."""

    @property
    def names(self) -> Sequence[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass(slots=True)
class Weights:
    """All slots of one model, filled: matrices as stored, vectors (norms, biases) as float32."""

    matrices: dict[str, Weight]
    vectors: dict[str, Floats]


def slot_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every slot of `spec` with its shape: (out, in) of a matrix, (n,) of a vector."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab, spec.hidden)}
    shapes.update(_norm("norm", spec.norm, spec.hidden))
    if not spec.tied_head:
        shapes["head"] = (spec.vocab, spec.hidden)
    if spec.learned_positions:
        shapes["positions"] = (spec.learned_positions, spec.hidden)
    for index, layer in enumerate(spec.layers):
        shapes.update((f"layers.{index}.{name}", shape) for name, shape in _layer_slots(spec.hidden, layer))
    return shapes


def _layer_slots(hidden: int, layer: LayerSpec) -> Iterator[Slot]:
    if layer.pre_norm:
        yield from _norm("attn_norm", layer.norm, hidden)
    if isinstance(layer.mixer, LatentAttention):
        yield from _latent_slots(hidden, layer.mixer)
    else:
        yield from _attention_slots(hidden, layer.mixer)
    if layer.pre_norm and not layer.shared_norm:
        yield from _norm("ffn_norm", layer.norm, hidden)
    if layer.post_norm:
        yield from _norm("attn_post_norm", layer.norm, hidden)
        yield from _norm("ffn_post_norm", layer.norm, hidden)
    yield from _moe_slots(hidden, layer.ffn) if isinstance(layer.ffn, MoE) else _mlp_slots(hidden, layer.ffn)


def _attention_slots(hidden: int, attention: Attention) -> Iterator[Slot]:
    queries, stored = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    for name, width in (("q", queries), ("k", stored), ("v", stored)):
        yield from _matrix(name, width, hidden, attention.bias)
    if attention.qk_norm is not None:
        whole = attention.qk_norm.over != "head"
        for name, width in (("q_norm", queries), ("k_norm", stored)):
            yield from _norm(name, attention.qk_norm.norm, width if whole else attention.head_dim)
    if attention.sinks:
        yield "sinks", (attention.heads,)
    yield from _matrix("o", hidden, queries, attention.output_bias)


def _latent_slots(hidden: int, mixer: LatentAttention) -> Iterator[Slot]:
    queries = mixer.heads * mixer.head_dim
    if mixer.q_rank:
        yield from _matrix("q_a", mixer.q_rank, hidden, mixer.bias)
        yield from _norm("q_a_norm", mixer.norm, mixer.q_rank)
    yield "q", (queries, mixer.q_rank or hidden)
    yield from _matrix("kv_a", mixer.kv_rank, hidden, mixer.bias)
    yield from _matrix("k_rope", mixer.rope.rotary_dim, hidden, mixer.bias)
    yield from _norm("kv_a_norm", mixer.norm, mixer.kv_rank)
    yield "k_b", (mixer.heads * mixer.nope_dim, mixer.kv_rank)
    yield "v_b", (mixer.heads * mixer.v_dim, mixer.kv_rank)
    yield from _matrix("o", hidden, mixer.heads * mixer.v_dim, mixer.bias)


def _mlp_slots(hidden: int, ffn: MLP, prefix: str = "") -> Iterator[Slot]:
    if ffn.gated:
        yield from _matrix(f"{prefix}gate", ffn.hidden, hidden, ffn.bias)
    yield from _matrix(f"{prefix}up", ffn.hidden, hidden, ffn.bias)
    yield from _matrix(f"{prefix}down", hidden, ffn.hidden, ffn.bias)


def _moe_slots(hidden: int, ffn: MoE) -> Iterator[Slot]:
    yield from _matrix("router", ffn.routing.experts, hidden, ffn.bias)
    if ffn.corrected:
        yield "correction", (ffn.routing.experts,)
    for index in range(ffn.routing.experts):
        yield from _mlp_slots(hidden, MLP(ffn.hidden, bias=ffn.bias), f"experts.{index}.")
    if ffn.shared is not None:
        yield from _mlp_slots(hidden, ffn.shared, "shared.")


def _matrix(name: str, out: int, width: int, bias: bool) -> Iterator[Slot]:
    yield name, (out, width)
    if bias:
        yield f"{name}.bias", (out,)


def _norm(name: str, norm: NormSpec, width: int) -> Iterator[Slot]:
    yield name, (width,)
    if norm.bias:
        yield f"{name}.bias", (width,)


def is_norm(slot: str) -> bool:
    """Whether the slot holds a norm's weight."""
    return slot.rsplit(".", 1)[-1].endswith("norm")
