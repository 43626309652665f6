"""The value of each op as a function of plain arrays, all float32.

Every row is computed by calls whose shapes depend on the row's own position only (rows of a product go through BLAS in
tiles of a constant height), so results do not depend on the batch around a row.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Activation, AttentionOp, Floats, Ints, Norm

#: Rows of one BLAS call; the last tile is filled up with zeros. BLAS chooses its kernel by shape.
ROW_TILE = 16


def norm(x: Floats, op: Norm) -> Floats:
    """Each of `op.groups` equal parts of the last axis by itself."""
    shape = (op.groups, x.shape[-1] // op.groups)
    parts, weight = x.reshape(*x.shape[:-1], *shape), op.weight.reshape(shape)
    if op.kind == "rms":
        return rms_norm(parts, weight, op.eps).reshape(x.shape)
    centred = parts - np.mean(parts, axis=-1, keepdims=True, dtype=np.float32)
    normed = rms_norm(centred, weight, op.eps).reshape(x.shape)
    return normed if op.bias is None else normed + op.bias


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    scaled: Floats = x * (np.float32(1) / np.sqrt(mean_square + np.float32(eps))) * weight
    return scaled


def linear(x: Floats, matrix: Floats, bias: Floats | None) -> Floats:
    """x [T, in] @ matrix [out, in]^T + bias [out] -> [T, out]."""
    rows = len(x)
    tiles = -(-rows // ROW_TILE)
    padded = np.zeros((tiles * ROW_TILE, x.shape[1]), np.float32)
    padded[:rows] = x
    out = np.empty((len(padded), len(matrix)), np.float32)
    for start in range(0, len(padded), ROW_TILE):
        out[start : start + ROW_TILE] = (matrix @ padded[start : start + ROW_TILE].T).T
    if bias is not None:
        out += bias
    return out[:rows]


def rotate(heads: Floats, positions: Ints, inv_freq: Floats, amplitude: float) -> Floats:
    """Rotary embedding (Su et al., 2021) of heads [T, n, head_dim], pairs (i, i + rotary_dim / 2); a new array."""
    half = len(inv_freq)
    if half == 0:
        return heads
    angles = positions.astype(np.float32)[:, None] * inv_freq
    cos = (np.cos(angles) * np.float32(amplitude))[:, None, :]
    sin = (np.sin(angles) * np.float32(amplitude))[:, None, :]
    first, second = heads[..., :half], heads[..., half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, heads[..., 2 * half :]], axis=-1)


def attend(q: Floats, k: Floats, v: Floats, op: AttentionOp) -> Floats:
    """One query token over the keys it may see: q [heads, head_dim], k and v [n, kv_heads, head_dim] -> like q.

    Query heads h * (heads / kv_heads) ... share kv head h. The last key is the token itself.
    """
    if op.window:
        k, v = k[-op.window :], v[-op.window :]
    grouped = q.reshape(op.kv_heads, op.heads // op.kv_heads, op.head_dim)
    scores = np.matmul(grouped, k.transpose(1, 2, 0)) * np.float32(op.scale)
    if op.softcap:
        scores = np.float32(op.softcap) * np.tanh(scores / np.float32(op.softcap))
    largest = scores.max(axis=-1, keepdims=True)
    if op.sinks is not None:
        sinks = op.sinks.reshape(op.kv_heads, -1, 1)
        largest = np.maximum(largest, sinks)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if op.sinks is not None:
        total = total + np.exp(sinks - largest)
    out: Floats = np.matmul(weights / total, v.transpose(1, 0, 2)).reshape(op.heads, op.head_dim)
    return out


def activate(x: Floats, activation: Activation) -> Floats:
    """x * sigmoid(x), or gelu in its tanh form (Hendrycks and Gimpel, 2016) or with the error function."""
    active: Floats
    if activation == "silu":
        with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
            active = x / (1 + np.exp(-x))
    elif activation == "gelu_tanh":
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
        active = np.float32(0.5) * x * (1 + np.tanh(inner))
    else:
        active = (0.5 * x * (1 + _erf(x / np.sqrt(2.0)))).astype(np.float32)
    return active


def _erf(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The error function in float64, through the C library: numpy has none."""
    values: npt.NDArray[np.float64] = np.vectorize(math.erf, otypes=[np.float64])(x)
    return values


def gated(gate: Floats, up: Floats, activation: Activation) -> Floats:
    """activation(gate) * up."""
    product: Floats = activate(gate, activation) * up
    return product


def softcapped(logits: Floats, scale: float, softcap: float) -> Floats:
    """logits * scale, then softcap * tanh(logits / softcap) unless softcap is 0."""
    scaled: Floats = logits * np.float32(scale) if scale != 1.0 else logits
    if softcap:
        scaled = np.float32(softcap) * np.tanh(scaled / np.float32(softcap))
    return scaled
