"""Random valid blocks of every quantised type."""

from __future__ import annotations

import numpy as np

from octavo.formats.blocks import row_bytes
from octavo.formats.ggml_types import BY_TENSOR_TYPE
from octavo.formats.tensor import TensorType

#: Where a block has its f16 numbers. Every other byte may have any value.
_F16_OFFSETS = {
    TensorType.Q8_0: (0,),
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,),
    TensorType.IQ4_XS: (0,),
    TensorType.MXFP4: (),
}


def random_blocks(type_: TensorType, rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """uint8 [rows, row_bytes]: random bits around f16 numbers from the normal distribution, or powers of two near 1."""
    ggml = BY_TENSOR_TYPE[type_]
    data = rng.integers(0, 256, (rows, row_bytes(type_, width)), np.uint8)
    blocks = data.reshape(rows, -1, ggml.block_bytes)
    for offset in _F16_OFFSETS[type_]:
        values = rng.standard_normal((*blocks.shape[:2], 1))
        blocks[..., offset : offset + 2] = values.astype("<f2").view(np.uint8)
    if type_ == TensorType.MXFP4:
        blocks[..., 0] = rng.integers(118, 130, blocks.shape[:2], np.uint8)
    return data
