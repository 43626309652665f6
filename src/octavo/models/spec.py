"""A model is data: the DecoderSpec that one decoder walks. What can't be said here extends this file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from octavo.backends.ops import Activation, ClampedSwiglu, Routing
from octavo.models.rope import Rope


@dataclass(frozen=True, slots=True)
class NormSpec:
    """RMS norm, or layer norm (mean subtracted) with or without a bias."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Norm of q and k before rotation.

    over: "head": every head by itself, one weight [head_dim] for all of them; "own": the same with a weight for each
    head, [heads * head_dim]; "all": over all heads at once, weight [heads * head_dim].
    """

    over: Literal["head", "own", "all"]
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention with grouped K and V heads. `window` 0 means full; `softcap` 0 means none; rope None: no
    positions in this layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    qk_norm: QkNorm | None = None
    bias: bool = False
    output_bias: bool = False
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024): K and V of all heads are made of one vector of `kv_rank`.

    A head of q and k is `rope.rotary_dim` rotated elements, the same k for all heads, and `nope_dim` others; of v it is
    `v_dim`, at most as many. q_rank: q is made of a vector of that size too (0: of x itself). norm: of both vectors.
    What is stored for a token is K and V of every head, not the vector they are made of.
    """

    heads: int
    kv_rank: int
    nope_dim: int
    v_dim: int
    scale: float
    rope: Rope
    norm: NormSpec
    q_rank: int = 0
    bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.rope.rotary_dim + self.nope_dim

    @property
    def kv_heads(self) -> int:
        return self.heads


@dataclass(frozen=True, slots=True)
class MLP:
    """Feed-forward: down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x)))."""

    hidden: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True


@dataclass(frozen=True, slots=True)
class MoE:
    """Gated feed-forwards of which each token uses a few, `hidden` wide each.

    bias: of the router and of the experts. corrected: the choice of experts has a correction of its own. shared: one
    more feed-forward that every token goes through.
    """

    hidden: int
    routing: Routing
    activation: Activation | ClampedSwiglu = "silu"
    bias: bool = False
    corrected: bool = False
    shared: MLP | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer. pre_norm: each part reads x through a norm; post_norm: what it adds to x goes through one.

    parallel: both parts read the x from before the layer (else the feed-forward sees what attention has added);
    shared_norm: they then read it through the same norm. residual_scale multiplies what is added to x.
    """

    mixer: Attention | LatentAttention
    ffn: MLP | MoE
    norm: NormSpec
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    residual_scale: float = 1.0

    def with_rope(self, rope: Rope | None) -> LayerSpec:
        """The same with other positions, or none."""
        return replace(self, mixer=replace(self._heads, rope=rope))

    def with_window(self, window: int) -> LayerSpec:
        """The same with a sliding window."""
        return replace(self, mixer=replace(self._heads, window=window))

    def with_qk_norm(self, qk_norm: QkNorm) -> LayerSpec:
        """The same with a norm of q and k."""
        return replace(self, mixer=replace(self._heads, qk_norm=qk_norm))

    @property
    def _heads(self) -> Attention:
        if not isinstance(self.mixer, Attention):
            raise TypeError("only attention with K and V of its own can be changed that way")
        return self.mixer


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only model. `context` is the length it was trained for. learned_positions: rows of a table that is
    added to the embeddings by position (0: there is none)."""

    architecture: str
    vocab: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied_head: bool
    context: int
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    learned_positions: int = 0

    def for_context(self, tokens: int) -> DecoderSpec:
        """The spec for sequences of at most `tokens`: rotary scalings that depend on the length are settled."""
        settled: dict[LayerSpec, LayerSpec] = {}
        for layer in self.layers:
            rope = layer.mixer.rope
            if layer not in settled and rope is not None and rope.beyond is not None:
                settled[layer] = replace(layer, mixer=replace(layer.mixer, rope=rope.for_context(tokens)))
        if not settled:
            return self
        return replace(self, layers=tuple(settled.get(layer, layer) for layer in self.layers))
