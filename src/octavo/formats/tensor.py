"""One stored matrix, still in its file's own format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class TensorType(IntEnum):
    """Element formats, with the values of csrc/weight_formats.h WeightFormat."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q2_K = 8
    Q3_K = 9
    Q4_K = 10
    Q5_K = 11
    Q6_K = 12
    IQ4_NL = 13
    IQ4_XS = 14


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model file. `data` is uint8 [rows, row_bytes], usually a read-only view of the mapped file.

    shape: row-major, so a matrix is (out_features, in_features); a vector is (n,) with data [1, row_bytes].
    order: int32 [in_features] of a matrix whose columns stand in another order: column i is of input order[i].
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    order: npt.NDArray[np.int32] | None = None
