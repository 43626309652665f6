"""Rotary frequencies: the known scalings, and reading them. A type that is not known is an error, never ignored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LongFactors:
    """Frequencies float32 [rotary_dim / 2] for sequences that may grow beyond `limit` tokens (longrope)."""

    limit: int
    inv_freq: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DynamicNtk:
    """A base that grows with the length of the sequences, once they may be longer than `limit` tokens."""

    limit: int
    theta: float
    factor: float

    def inv_freq(self, rotary_dim: int, tokens: int) -> Floats:
        stretch = self.factor * tokens / self.limit - (self.factor - 1)
        return base_frequencies(self.theta * stretch ** (rotary_dim / (rotary_dim - 2)), rotary_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary embedding of the first `rotary_dim` elements of a head, pairs (i, i + rotary_dim / 2).

    inv_freq: float32 [rotary_dim / 2], scaling already applied. amplitude multiplies sin and cos (yarn, longrope).
    interleaved: the *file's* rows are ordered for pairs (2i, 2i + 1); packing permutes them.
    beyond: what changes for sequences over a limit. transformers decides that anew for each pass, which keys that are
    already cached can't follow; here the longest sequence that the engine allows decides, once (`for_context`).
    """

    rotary_dim: int
    inv_freq: npt.NDArray[np.float32]
    amplitude: float = 1.0
    interleaved: bool = False
    beyond: LongFactors | DynamicNtk | None = None

    def for_context(self, tokens: int) -> Rope:
        """The frequencies for sequences of at most `tokens`."""
        if self.beyond is None or tokens <= self.beyond.limit:
            return replace(self, beyond=None)
        if isinstance(self.beyond, LongFactors):
            return replace(self, inv_freq=self.beyond.inv_freq, beyond=None)
        return replace(self, inv_freq=self.beyond.inv_freq(self.rotary_dim, tokens), beyond=None)


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


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al., 2023): pairs that turn more than `beta_fast` times in `original_context` tokens stay, those
    that turn fewer than `beta_slow` times are stretched by `factor`, those between are blended."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole: bool = True  # the ends of the blend are rounded outwards to whole dimensions

    def inv_freq(self, theta: float, rotary_dim: int) -> Floats:
        plain = base_frequencies(theta, rotary_dim).astype(np.float64)
        low, high = (
            self._dimension(self.beta_fast, theta, rotary_dim),
            self._dimension(self.beta_slow, theta, rotary_dim),
        )
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        ramp = np.clip((np.arange(rotary_dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        blended: Floats = (plain / self.factor * ramp + plain * (1 - ramp)).astype(np.float32)
        return blended

    def _dimension(self, turns: float, theta: float, rotary_dim: int) -> float:
        """The (fractional) pair that turns that often in the original context."""
        return rotary_dim * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_amplitude(factor: float, multiplier: float = 1.0) -> float:
    """What YaRN multiplies sines and cosines with, 0.1 * multiplier * ln(factor) + 1; 1 for a factor up to 1."""
    return 1.0 if factor <= 1.0 else 0.1 * multiplier * math.log(factor) + 1.0


def longrope_amplitude(factor: float, original_context: int) -> float:
    """LongRoPE's (Ding et al., 2024): sqrt(1 + ln(factor) / ln(original_context)); 1 for a factor up to 1."""
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original_context))
