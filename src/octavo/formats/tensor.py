"""One stored matrix, still in its file's own format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class TensorType(IntEnum):
    """Element formats, with the values of csrc/kernels.h WeightFormat."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model file. `data` is uint8 [rows, row_bytes], usually a read-only view of the mapped file.

    shape: row-major, so a matrix is (out_features, in_features); a vector is (n,) with data [1, row_bytes].
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
