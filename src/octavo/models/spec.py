"""A model is data: the DecoderSpec that one decoder walks. What can't be said here extends this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `rotary_dim` elements of a head, pairs (i, i + rotary_dim / 2).

    inv_freq: float32 [rotary_dim / 2], scaling already applied. amplitude multiplies sin and cos (yarn).
    interleaved: the *file's* rows are ordered for pairs (2i, 2i + 1) (GGUF `llama`); packing permutes them.
    """

    rotary_dim: int
    inv_freq: npt.NDArray[np.float32]
    amplitude: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention with grouped K and V heads. `window` 0 means full; `softcap` 0 means none."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    qk_norm: bool = False
    bias: bool = False
    output_bias: bool = False
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.kv_heads * self.head_dim * element_bytes


@dataclass(frozen=True, slots=True)
class MLP:
    """Gated feed-forward: down(activation(gate(x)) * up(x))."""

    hidden: int
    activation: Literal["silu", "gelu_tanh"] = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    mixer: Attention
    ffn: MLP
    norm_eps: float


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only model. `context` is the length it was trained for; `eos_ids` all ids that end a turn."""

    architecture: str
    vocab: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied_head: bool
    context: int
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
