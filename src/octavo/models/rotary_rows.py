"""The order of Q's and K's rows: kernels rotate pairs (i, i + rotary_dim / 2), some files store pairs (2i, 2i + 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Ints, Weight
from octavo.models.slots import Weights
from octavo.models.spec import Attention, DecoderSpec, LatentAttention


def unpermute_rotary(spec: DecoderSpec, weights: Weights) -> None:
    """Give Q and K of layers whose rows are stored for pairs (2i, 2i + 1) the row order of pairs (i, i + r / 2)."""
    for index, layer in enumerate(spec.layers):
        rope = layer.mixer.rope
        for name in ("q", "k_rope") if isinstance(layer.mixer, LatentAttention) else ("q", "k"):
            rows = stored_rows(layer.mixer, name, rope is not None and rope.interleaved)
            if rows is not None:
                _reorder(weights, f"layers.{index}.{name}", rows)


def stored_rows(mixer: Attention | LatentAttention, name: str, interleaved: bool) -> Ints | None:
    """int32 [out]: which stored row each row of a layer's matrix `name` is, in a file that stores what rotates
    interleaved, or not. None: they are stored in order."""
    if isinstance(mixer, LatentAttention):
        if name == "q":
            return _rotated_first(mixer, interleaved)
        rotary = mixer.rope.rotary_dim
        return half_order(1, rotary, rotary) if name == "k_rope" and interleaved else None
    if name not in ("q", "k") or mixer.rope is None or not interleaved:
        return None
    return half_order(mixer.heads if name == "q" else mixer.kv_heads, mixer.head_dim, mixer.rope.rotary_dim)


def _reorder(weights: Weights, slot: str, rows: Ints) -> None:
    """Row i of the matrix, its bias and its norm is the stored row rows[i]."""
    weight = weights.matrices[slot]
    stored = rows if weight.row_index is None else weight.row_index[rows]
    weights.matrices[slot] = Weight(weight.tensor, stored)
    for vector in (f"{slot}.bias", f"{slot}_norm", f"{slot}_norm.bias"):
        if vector in weights.vectors:
            values = weights.vectors[vector]
            weights.vectors[vector] = values[rows[: len(values)]]  # one head's order is that of the first


def _rotated_first(mixer: LatentAttention, interleaved: bool) -> Ints:
    """int32 [heads * head_dim]: what is rotated is stored behind the rest of each of q's heads; it comes first."""
    rotary = mixer.rope.rotary_dim
    order = half_order(1, rotary, rotary) if interleaved else np.arange(rotary, dtype=np.int32)
    within = np.concatenate([mixer.nope_dim + order, np.arange(mixer.nope_dim)])
    rows: Ints = (np.arange(mixer.heads)[:, None] * mixer.head_dim + within).reshape(-1).astype(np.int32)
    return rows


def half_order(heads: int, head_dim: int, rotary_dim: int) -> Ints:
    """int32 [heads * head_dim]: the stored row of each output row; the first `rotary_dim` of a head are stored
    interleaved."""
    within = np.arange(head_dim, dtype=np.int32)
    within[:rotary_dim] = np.arange(rotary_dim, dtype=np.int32).reshape(rotary_dim // 2, 2).T.reshape(-1)
    rows: npt.NDArray[np.int32] = np.arange(heads, dtype=np.int32)[:, None] * head_dim + within
    return rows.reshape(-1)
