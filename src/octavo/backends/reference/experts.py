"""Mixtures of experts: who is chosen with what weight (ops.Routing), and gpt-oss' gate; all float32."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import ClampedSwiglu, Floats, Ints, Routing


def route(logits: Floats, correction: Floats | None, op: Routing) -> tuple[Ints, Floats]:
    """Experts int32 [T, used], ascending, and their weights float32 [T, used], of router logits [T, experts]."""
    scores = _scores(logits, op)
    preference = scores if correction is None else scores + correction
    if op.groups > 1:
        preference = _only_best_groups(preference, op)
    chosen: Ints = np.sort(np.argsort(-preference, axis=-1, kind="stable")[:, : op.used], axis=-1).astype(np.int32)
    weights: Floats = np.take_along_axis(scores, chosen, axis=-1)
    if op.scoring == "chosen":
        weights = _softmax(weights)
    if op.normalise:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + np.float32(1e-20))
    return chosen, weights * np.float32(op.scale)


def _scores(logits: Floats, op: Routing) -> Floats:
    if op.scoring == "softmax":
        return _softmax(logits)
    if op.scoring == "chosen":
        return logits
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
        scores: Floats = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return scores


def _only_best_groups(preference: Floats, op: Routing) -> Floats:
    """Minus infinity for the experts of all groups but the best `used_groups`."""
    runs = preference.reshape(len(preference), op.groups, -1)
    best = -np.sort(-runs, axis=-1)
    score = best[..., :2].sum(axis=-1) if op.group_score == "top2" else best[..., 0]
    rank = np.argsort(np.argsort(-score, axis=-1, kind="stable"), axis=-1)
    kept: Floats = np.where((rank < op.used_groups)[..., None], runs, np.float32(-np.inf)).reshape(preference.shape)
    return kept


def _softmax(logits: Floats) -> Floats:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


def clamped_swiglu(gate: Floats, up: Floats, op: ClampedSwiglu) -> Floats:
    """See ops.ClampedSwiglu."""
    limit = np.float32(op.limit)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    with np.errstate(over="ignore"):
        product: Floats = gate / (1 + np.exp(-np.float32(op.alpha) * gate)) * (up + 1)
    return product
