"""Rotary frequencies: every known scaling, and an error for every unknown one."""

import math
from typing import Any

import numpy as np
import pytest

from octavo.formats.blocks import quantize
from octavo.formats.tensor import Tensor, TensorType
from octavo.models.fields import Fields, MetadataError
from octavo.models.rope import Rope, base_frequencies
from octavo.models.rope_fields import from_config, from_gguf

DIM = 64


class Tensors:
    """A file that holds these vectors."""

    def __init__(self, **arrays: Any) -> None:
        self._arrays = {name.replace("__", "."): np.asarray(array, np.float32) for name, array in arrays.items()}

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def tensor(self, name: str) -> Tensor:
        return quantize(name, self._arrays[name], TensorType.F32)


def config(**fields: object) -> Rope:
    return from_config(Fields({"max_position_embeddings": 512, **fields}, "config.json"), DIM)


def config_rope(**fields: object) -> np.ndarray:
    return config(**fields).inv_freq


def gguf(file: Tensors | None = None, **keys: object) -> Rope:
    fields = Fields({f"llama.rope.{key}": value for key, value in keys.items()}, "GGUF metadata")
    return from_gguf(fields, "llama", DIM, file or Tensors())


def gguf_rope(factors: np.ndarray | None = None, **keys: object) -> np.ndarray:
    return gguf(Tensors() if factors is None else Tensors(rope_freqs__weight=factors), **keys).inv_freq


def test_theta_at_the_top_inside_or_missing() -> None:
    expected = base_frequencies(5e5, DIM)
    np.testing.assert_array_equal(config_rope(rope_theta=5e5), expected)
    np.testing.assert_array_equal(config_rope(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}), expected)
    np.testing.assert_array_equal(config_rope(rope_theta=2.0, rope_parameters={"rope_theta": 5e5}), expected)
    np.testing.assert_array_equal(config_rope(), base_frequencies(1e4, DIM))
    np.testing.assert_array_equal(gguf_rope(freq_base=5e5), expected)
    np.testing.assert_array_equal(gguf_rope(), base_frequencies(1e4, DIM))
    assert expected[0] == 1.0


def test_linear_scaling() -> None:
    expected = base_frequencies(1e4, DIM) / 4
    np.testing.assert_allclose(config_rope(rope_scaling={"type": "linear", "factor": 4.0}), expected, rtol=1e-7)
    np.testing.assert_allclose(gguf_rope(**{"scaling.type": "linear", "scaling.factor": 4.0}), expected, rtol=1e-7)
    np.testing.assert_allclose(gguf_rope(scale_linear=4.0), expected, rtol=1e-7)


def test_llama3_scaling_bends_between_its_two_wavelengths() -> None:
    plain = base_frequencies(5e5, DIM)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = config_rope(rope_theta=5e5, rope_scaling=scaling)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert np.all((scaled < plain)[between] & (scaled > plain / 8)[between])


def test_rope_factor_tensor_divides() -> None:
    factors = np.linspace(1, 8, DIM // 2, dtype=np.float32)
    np.testing.assert_allclose(gguf_rope(factors), base_frequencies(1e4, DIM) / factors, rtol=1e-6)


def test_yarn_stretches_slow_pairs_only() -> None:
    plain, factor, original = base_frequencies(1e4, DIM), 4.0, 64
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    rope = config(rope_scaling=scaling)
    turns = original * plain / (2 * np.pi)
    np.testing.assert_array_equal(rope.inv_freq[turns > 32], plain[turns > 32])
    np.testing.assert_allclose(rope.inv_freq[turns < 0.8], plain[turns < 0.8] / factor, rtol=1e-6)
    assert np.all(rope.inv_freq <= plain)
    assert rope.amplitude == pytest.approx(0.1 * math.log(factor) + 1)
    from_file = gguf(**{"scaling.type": "yarn", "scaling.factor": factor, "scaling.original_context_length": original})
    np.testing.assert_array_equal(from_file.inv_freq, rope.inv_freq)
    assert from_file.amplitude == rope.amplitude


@pytest.mark.parametrize(
    ("more", "amplitude"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, (0.07 * math.log(8) + 1) / (0.1 * math.log(8) + 1)),
        ({"factor": None}, 0.1 * math.log(512 / 64) + 1),  # the ratio of the contexts
    ],
)
def test_yarn_amplitudes(more: dict[str, object], amplitude: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, **more}
    assert config(rope_scaling=scaling).amplitude == pytest.approx(amplitude)


def test_longrope_has_two_sets_of_factors() -> None:
    short, long = np.linspace(1, 2, DIM // 2), np.linspace(1, 9, DIM // 2)
    scaling = {"type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist()}
    plain = base_frequencies(1e4, DIM)
    amplitude = math.sqrt(1 + math.log(512 / 64) / math.log(64))
    from_file = gguf(
        Tensors(rope_factors_short__weight=short, rope_factors_long__weight=long),
        **{"scaling.original_context_length": 64, "scaling.attn_factor": amplitude},
    )
    for rope in (config(rope_scaling=scaling, original_max_position_embeddings=64), from_file):
        for tokens, factors in ((1, short), (64, short), (65, long), (512, long)):
            settled = rope.for_context(tokens)
            np.testing.assert_allclose(settled.inv_freq, plain / factors, rtol=1e-6)
            assert settled.amplitude == pytest.approx(amplitude)
            assert settled.beyond is None


def test_dynamic_scaling_follows_the_longest_sequence() -> None:
    rope = config(rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    plain = base_frequencies(1e4, DIM)
    np.testing.assert_array_equal(rope.for_context(512).inv_freq, plain)
    theta = 1e4 * (2.0 * 1024 / 512 - 1) ** (DIM / (DIM - 2))
    np.testing.assert_allclose(rope.for_context(1024).inv_freq, base_frequencies(theta, DIM), rtol=1e-6)


def test_bases_and_heads_that_have_no_logarithm_or_no_exponent() -> None:
    for theta in (1.0, 0.0, -5.0, 1e13):
        with pytest.raises(MetadataError, match=r"must be a number from 1\.001 to 1e"):
            config_rope(rope_theta=theta)
        with pytest.raises(MetadataError, match=r"must be a number from 1\.001 to 1e"):
            gguf_rope(freq_base=theta, **{"scaling.type": "yarn", "scaling.factor": 4.0})
    with pytest.raises(MetadataError, match="dynamic, which needs heads with more than 2"):
        config_rope(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, partial_rotary_factor=2 / DIM)


def test_part_of_a_head_rotates() -> None:
    for fields in ({"partial_rotary_factor": 0.25}, {"rope_parameters": {"partial_rotary_factor": 0.25}}):
        np.testing.assert_array_equal(config_rope(**fields), base_frequencies(1e4, DIM // 4))
    assert gguf(dimension_count=16).rotary_dim == 16


@pytest.mark.parametrize("kind", ["ntk", "LINEAR", ""])
def test_unknown_scaling_is_an_error_that_names_it(kind: str) -> None:
    with pytest.raises(MetadataError, match=f"rope_type is '{kind}'.*default, linear, dynamic, yarn, longrope, llama3"):
        config_rope(rope_scaling={"rope_type": kind, "factor": 2.0})
    with pytest.raises(MetadataError, match=f"scaling.type is '{kind}'; supported are none, linear, yarn, longrope"):
        gguf_rope(**{"scaling.type": kind})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"rope_theta": 0}, "rope_theta is 0; it must be a number from 1"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor is .* a list of 32 numbers"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0] * 32}}, "short_factor is 0.0"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor makes 3 elements of a head rotate"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor is 2.0"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(MetadataError, match=problem):
        config_rope(**fields)


@pytest.mark.parametrize(
    ("file", "keys", "problem"),
    [
        (Tensors(rope_freqs__weight=[1.0, 2.0]), {}, "tensor rope_freqs.weight must hold 32 positive numbers"),
        (Tensors(rope_factors_long__weight=[1.0] * 32), {}, "tensor rope_factors_short.weight must hold 32 positive"),
        (Tensors(), {"scaling.type": "longrope"}, "tensor rope_factors_long.weight is missing"),
        (Tensors(), {"dimension_count": 7}, "dimension_count is 7; it must be even"),
        (Tensors(), {"dimension_count": 66}, "dimension_count is 66; it must be an integer from 2 to 64"),
    ],
)
def test_bad_gguf_is_named(file: Tensors, keys: dict[str, object], problem: str) -> None:
    with pytest.raises(MetadataError, match=problem):
        gguf(file, **keys)
