"""One stored matrix, still in its file's own format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


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
    MXFP4 = 15


@dataclass(frozen=True, slots=True)
class Later:
    """Data that is made when it is asked for, since all of a model's at once would be too much.

    make: gives uint8 [rows, row_bytes], perhaps made anew by each call. sample: as Tensor.sample, of what the rows from
    the given one on are made of; where that takes less than making it all.
    """

    rows: int
    row_bytes: int
    make: Callable[[], Bytes]
    sample: Callable[[int, int], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model file.

    shape: row-major, so a matrix is (out_features, in_features); a vector is (n,) with data [1, row_bytes].
    stored: `data`, usually a read-only view of the mapped file, or what makes it.
    order: int32 [in_features] of a matrix whose columns stand in another order: column i is of input order[i].
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    stored: Bytes | Later
    order: npt.NDArray[np.int32] | None = None

    @property
    def data(self) -> Bytes:
        """uint8 [rows, row_bytes]. Asked for twice it may be made twice. Raises ModelFileError if it can't be made."""
        return self.stored.make() if isinstance(self.stored, Later) else self.stored

    @property
    def row_bytes(self) -> int:
        return self.stored.row_bytes if isinstance(self.stored, Later) else self.stored.shape[1]

    @property
    def nbytes(self) -> int:
        """Of `data`."""
        return self.stored.rows * self.stored.row_bytes if isinstance(self.stored, Later) else self.stored.nbytes

    @property
    def place(self) -> int:
        """Equal for tensors (that exist at the same time) of the same data."""
        return id(self.stored) if isinstance(self.stored, Later) else self.stored.ctypes.data

    def sample(self, count: int) -> bytes:
        """At least `count` bytes (all, if there are fewer) that tell this tensor from others, at little cost."""
        if isinstance(self.stored, Later) and self.stored.sample is not None:
            return self.stored.sample(0, count)
        rows = -(-count // max(1, self.row_bytes))
        return self.data[:rows].reshape(-1)[:count].tobytes()

    def some_rows(self, chosen: slice, shape: tuple[int, ...]) -> Tensor:
        """Some rows of `data` as a tensor of that shape: a view, or made when asked for as this one is."""
        stored = self.stored
        if not isinstance(stored, Later):
            return replace(self, shape=shape, stored=stored[chosen])
        rows, make, sample = range(stored.rows)[chosen], stored.make, stored.sample
        own: Callable[[int, int], bytes] | None = (
            None if sample is None else lambda row, count: sample(rows[row], count)
        )
        return replace(self, shape=shape, stored=Later(len(rows), stored.row_bytes, lambda: make()[chosen], own))
