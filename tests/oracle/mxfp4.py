"""Stacks of experts in MXFP4 as gpt-oss publishes them: random valid ones, and what they mean.

The meaning is that of OCP Microscaling Formats 1.0, worked out in float64 and not with octavo's code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: As gpt-oss' config.json has it.
CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
BLOCK = 32


def random_stack(rng: np.random.RandomState, shape: tuple[int, int, int]) -> tuple[Bytes, Bytes]:
    """Blocks uint8 [experts, out, in / 32, 16] and scales uint8 [experts, out, in / 32]; values of ordinary size."""
    experts, outer, inner = shape
    groups = (experts, outer, inner // BLOCK)
    return rng.randint(0, 256, (*groups, BLOCK // 2)).astype(np.uint8), rng.randint(121, 125, groups).astype(np.uint8)


def values(blocks: Bytes, scales: Bytes) -> npt.NDArray[np.float32]:
    """float32 [experts, out, in]."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, BLOCK)
    table = np.array([e2m1(code) for code in range(16)])
    return (
        (table[codes] * 2.0 ** (scales[..., None].astype(np.float64) - 127))
        .astype(np.float32)
        .reshape(*scales.shape[:2], -1)
    )


def e2m1(code: int) -> float:
    """A sign, two bits of exponent (bias 1; 0: subnormal), one of mantissa."""
    sign, exponent, mantissa = -1.0 if code & 8 else 1.0, code >> 1 & 3, code & 1
    return sign * (mantissa * 0.5 if exponent == 0 else (1 + mantissa * 0.5) * 2.0 ** (exponent - 1))
