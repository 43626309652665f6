"""Every compiled ISA level gives the reference's values."""

import numpy as np
import pytest

from octavo import _native


@pytest.mark.parametrize("level", _native.supported_levels())
@pytest.mark.parametrize("width", [1, 15, 16, 17, 64, 576, 577])
def test_rms_norm(level: str, width: int) -> None:
    rng = np.random.default_rng(width)
    x, weight = rng.standard_normal((2, width), np.float32)
    out = np.empty_like(x)
    _native.rms_norm(level, x, weight, 1e-5, out)
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-7)
