"""Reading a Rope from config.json or GGUF metadata: every known scaling, and an error for every unknown one."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import Floats
from octavo.formats.blocks import dequantize
from octavo.models.fields import Fields
from octavo.models.rope import (
    DynamicNtk,
    LongFactors,
    Rope,
    Yarn,
    base_frequencies,
    llama3_frequencies,
    longrope_amplitude,
    yarn_amplitude,
)
from octavo.models.slots import TensorFile

_DEFAULT_THETA = 10_000.0
FACTOR = (1e-3, 1e6)
_LENGTH = (1, (1 << 31) - 1)
#: A base of 1 would turn every pair alike; logarithms of it are divided by.
THETA = (1.001, 1e12)
_CONFIG_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_GGUF_TYPES = ("none", "linear", "yarn", "longrope")


def from_config(
    config: Fields, head_dim: int, kind: str | None = None, theta_name: str = "rope_theta", share: float = 1.0
) -> Rope:
    """The Rope of config.json: `rope_parameters`, or `theta_name` and `rope_scaling`.

    kind: the section of `rope_parameters` for one type of layers ("full_attention"), where it has such sections.
    share: how much of a head rotates unless the file says otherwise.
    """
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    if kind is not None and scaling.has(kind):
        scaling = scaling.section(kind)
    theta = scaling.number("rope_theta", *THETA, config.number(theta_name, *THETA, _DEFAULT_THETA))
    share = config.number("partial_rotary_factor", 0.0, 1.0, config.number("rotary_pct", 0.0, 1.0, share))
    rotary_dim = int(head_dim * scaling.number("partial_rotary_factor", 0.0, 1.0, share))
    if rotary_dim < 2 or rotary_dim % 2:
        raise config.error("partial_rotary_factor", f"makes {rotary_dim} elements of a head rotate; it must be even")
    return _scaled(config, scaling, theta, rotary_dim)


def _scaled(config: Fields, scaling: Fields, theta: float, rotary_dim: int) -> Rope:
    plain = base_frequencies(theta, rotary_dim)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind in ("default", "none"):
        return Rope(rotary_dim, plain)
    if kind == "linear":
        return Rope(rotary_dim, (plain / scaling.number("factor", *FACTOR)).astype(np.float32))
    if kind == "dynamic":
        if rotary_dim == 2:
            raise config.error("rope_scaling", "is dynamic, which needs heads with more than 2 elements that rotate")
        limit = config.integer("max_position_embeddings", *_LENGTH)
        return Rope(rotary_dim, plain, beyond=DynamicNtk(limit, theta, scaling.number("factor", 1.0, 1e6)))
    if kind == "llama3":
        return Rope(rotary_dim, _llama3(scaling, plain))
    if kind == "yarn":
        return _yarn(config, scaling, theta, rotary_dim)
    if kind in ("longrope", "su"):
        return _longrope(config, scaling, plain)
    raise scaling.error("rope_type", f"is {kind!r}; supported are {', '.join(_CONFIG_TYPES)}")


def _llama3(scaling: Fields, plain: Floats) -> Floats:
    original = scaling.integer("original_max_position_embeddings", *_LENGTH)
    low, high = scaling.number("low_freq_factor", 1e-6, 1e6), scaling.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise scaling.error("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
    return llama3_frequencies(plain, scaling.number("factor", *FACTOR), low, high, original)


def _original(config: Fields, scaling: Fields) -> tuple[int, float]:
    """The context before scaling, and how much longer the scaled one is."""
    context = config.integer("max_position_embeddings", *_LENGTH)
    outer = config.integer("original_max_position_embeddings", *_LENGTH, context)
    original = scaling.integer("original_max_position_embeddings", *_LENGTH, outer)
    return original, scaling.number("factor", *FACTOR, context / original)


def _yarn(config: Fields, scaling: Fields, theta: float, rotary_dim: int) -> Rope:
    original, factor = _original(config, scaling)
    fast, slow = scaling.number("beta_fast", 0.0, 1e6, 32.0) or 32.0, scaling.number("beta_slow", 0.0, 1e6, 1.0) or 1.0
    amplitude = yarn_amplitude(factor)
    mscale, all_dim = scaling.number("mscale", 0.0, 1e3, 0.0), scaling.number("mscale_all_dim", 0.0, 1e3, 0.0)
    if mscale and all_dim:
        amplitude = yarn_amplitude(factor, mscale) / yarn_amplitude(factor, all_dim)
    amplitude = scaling.number("attention_factor", 1e-3, 1e3, amplitude)
    yarn = Yarn(factor, original, fast, slow, scaling.flag("truncate", True))
    return Rope(rotary_dim, yarn.inv_freq(theta, rotary_dim), amplitude)


def _longrope(config: Fields, scaling: Fields, plain: Floats) -> Rope:
    original, factor = _original(config, scaling)
    short, long = (scaling.numbers(name, len(plain), *FACTOR) for name in ("short_factor", "long_factor"))
    if original < 2:
        raise scaling.error("original_max_position_embeddings", f"is {original}; it must be at least 2")
    amplitude = scaling.number("attention_factor", 1e-3, 1e3, longrope_amplitude(factor, original))
    beyond = LongFactors(original, _divided(plain, np.asarray(long)))
    return Rope(2 * len(plain), _divided(plain, np.asarray(short)), amplitude, beyond=beyond)


def _divided(plain: Floats, factors: Floats) -> Floats:
    return (plain / factors).astype(np.float32)


def from_gguf(metadata: Fields, prefix: str, head_dim: int, file: TensorFile, whole: bool = True) -> Rope:
    """The Rope of GGUF keys `{prefix}.rope.*` and tensors `rope_freqs.weight` (divisors: llama3 scaling is stored that
    way) and `rope_factors_short/long.weight`; `whole` as in Yarn."""
    rotary_dim = metadata.integer(f"{prefix}.rope.dimension_count", 2, head_dim, head_dim)
    if rotary_dim % 2:
        raise metadata.error(f"{prefix}.rope.dimension_count", f"is {rotary_dim}; it must be even")
    theta = metadata.number(f"{prefix}.rope.freq_base", *THETA, _DEFAULT_THETA)
    plain = base_frequencies(theta, rotary_dim)
    if "rope_freqs.weight" in file:
        plain = _divided(plain, _factors(file, "rope_freqs.weight", metadata, rotary_dim))
    amplitude = metadata.number(f"{prefix}.rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    legacy = metadata.number(f"{prefix}.rope.scale_linear", *FACTOR, 1.0)
    factor = metadata.number(f"{prefix}.rope.scaling.factor", *FACTOR, legacy)
    original = metadata.integer(
        f"{prefix}.rope.scaling.original_context_length",
        *_LENGTH,
        metadata.integer(f"{prefix}.context_length", *_LENGTH, 2048),
    )
    if "rope_factors_long.weight" in file:
        short, long = (_factors(file, f"rope_factors_{n}.weight", metadata, rotary_dim) for n in ("short", "long"))
        return Rope(rotary_dim, _divided(plain, short), amplitude, beyond=LongFactors(original, _divided(plain, long)))
    kind = metadata.text(f"{prefix}.rope.scaling.type", "none")
    if kind == "linear" or (kind == "none" and legacy != 1.0):
        return Rope(rotary_dim, plain if factor == 1.0 else (plain / np.float32(factor)).astype(np.float32))
    if kind == "yarn":
        fast = metadata.number(f"{prefix}.rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0)
        slow = metadata.number(f"{prefix}.rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0)
        yarn = Yarn(factor, original, fast, slow, whole)
        return Rope(rotary_dim, yarn.inv_freq(theta, rotary_dim), amplitude * yarn_amplitude(factor))
    if kind == "longrope":
        raise metadata.error("tensor rope_factors_long.weight", "is missing; longrope scaling needs it")
    if kind != "none":
        raise metadata.error(f"{prefix}.rope.scaling.type", f"is {kind!r}; supported are {', '.join(_GGUF_TYPES)}")
    return Rope(rotary_dim, plain, amplitude)


def _factors(file: TensorFile, name: str, metadata: Fields, rotary_dim: int) -> Floats:
    factors = dequantize(file.tensor(name)).reshape(-1) if name in file else np.empty(0, np.float32)
    if factors.shape != (rotary_dim // 2,) or not np.all(factors > 0):
        raise metadata.error(f"tensor {name}", f"must hold {rotary_dim // 2} positive numbers")
    return factors
