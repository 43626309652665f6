"""Rotary frequencies: every known scaling, and an error for every unknown one."""

import numpy as np
import pytest

from octavo.models.fields import Fields, MetadataError
from octavo.models.rope import base_frequencies, from_config, from_gguf

DIM = 64


def config_rope(**config: object) -> np.ndarray:
    return from_config(Fields(config, "config.json"), DIM)


def gguf_rope(factors: np.ndarray | None = None, **keys: object) -> np.ndarray:
    return from_gguf(Fields({f"llama.rope.{k}": v for k, v in keys.items()}, "GGUF metadata"), "llama", DIM, factors)


def test_theta_at_the_top_inside_or_missing() -> None:
    expected = base_frequencies(5e5, DIM)
    np.testing.assert_array_equal(config_rope(rope_theta=5e5), expected)
    np.testing.assert_array_equal(config_rope(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}), expected)
    np.testing.assert_array_equal(config_rope(rope_theta=1.0, rope_parameters={"rope_theta": 5e5}), expected)
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


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", "su", "LINEAR", ""])
def test_unknown_scaling_is_an_error_that_names_it(kind: str) -> None:
    with pytest.raises(MetadataError, match=f"rope_type is '{kind}'.*default, linear and llama3"):
        config_rope(rope_scaling={"rope_type": kind, "factor": 2.0})
    with pytest.raises(MetadataError, match=f"scaling.type is '{kind}'"):
        gguf_rope(**{"scaling.type": kind})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"rope_theta": 0}, "rope_theta is 0; it must be a number from 1"),
        ({"rope_theta": "big"}, "rope_theta is 'big'"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings is missing"),
    ],
)
def test_bad_fields_are_named(config: dict[str, object], problem: str) -> None:
    with pytest.raises(MetadataError, match=problem):
        config_rope(**config)
