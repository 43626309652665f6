"""Rotary frequencies from metadata. A scaling type that is not known here is an error, never ignored."""

from __future__ import annotations

import math

import numpy as np

from octavo.backends.ops import Floats
from octavo.models.fields import Fields

_DEFAULT_THETA = 10_000.0


def base_frequencies(theta: float, rotary_dim: int) -> Floats:
    """inv_freq float32 [rotary_dim / 2] = theta^(-2i / rotary_dim) (Su et al., 2021)."""
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    return (1.0 / theta**exponents).astype(np.float32)


def llama3_frequencies(inv_freq: Floats, factor: float, low: float, high: float, original_context: int) -> Floats:
    """Llama 3's scaling of inv_freq float32 [n]: wavelengths over original_context / low are stretched by `factor`,
    those under original_context / high stay, those between are blended (Llama 3.1's published rule)."""
    wavelengths = 2 * math.pi / inv_freq.astype(np.float64)
    smooth = np.clip((original_context / wavelengths - low) / (high - low), 0.0, 1.0)
    scaled = inv_freq * ((1 - smooth) / factor + smooth)
    return scaled.astype(np.float32)


def from_config(config: Fields, rotary_dim: int) -> Floats:
    """inv_freq float32 [rotary_dim / 2] from config.json: `rope_parameters`, or `rope_theta` and `rope_scaling`."""
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = config.number("rope_theta", 1.0, 1e12, _DEFAULT_THETA)
    theta = scaling.number("rope_theta", 1.0, 1e12, theta)
    inv_freq = base_frequencies(theta, rotary_dim)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind in ("default", "none"):
        return inv_freq
    if kind == "linear":
        return (inv_freq / scaling.number("factor", 1e-3, 1e6)).astype(np.float32)
    if kind == "llama3":
        original = scaling.integer("original_max_position_embeddings", 1, 1 << 31)
        low, high = scaling.number("low_freq_factor", 1e-6, 1e6), scaling.number("high_freq_factor", 1e-6, 1e6)
        if high <= low:
            raise scaling.error("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
        return llama3_frequencies(inv_freq, scaling.number("factor", 1e-3, 1e6), low, high, original)
    raise scaling.error("rope_type", f"is {kind!r}; this build knows default, linear and llama3")


def from_gguf(metadata: Fields, prefix: str, rotary_dim: int, factors: Floats | None) -> Floats:
    """inv_freq float32 [rotary_dim / 2] from GGUF keys `{prefix}.rope.*`; `factors` float32 [rotary_dim / 2] are the
    divisors in `rope_freqs.weight` (llama3 scaling is stored that way), or None."""
    inv_freq = base_frequencies(metadata.number(f"{prefix}.rope.freq_base", 1.0, 1e12, _DEFAULT_THETA), rotary_dim)
    if factors is not None:
        inv_freq = (inv_freq / factors).astype(np.float32)
    kind = metadata.text(f"{prefix}.rope.scaling.type", "none")
    legacy = metadata.number(f"{prefix}.rope.scale_linear", 1e-3, 1e6, 1.0)
    if kind == "linear":
        legacy = metadata.number(f"{prefix}.rope.scaling.factor", 1e-3, 1e6, legacy)
    elif kind != "none":
        raise metadata.error(f"{prefix}.rope.scaling.type", f"is {kind!r}; this build knows none and linear")
    return inv_freq if legacy == 1.0 else (inv_freq / legacy).astype(np.float32)
