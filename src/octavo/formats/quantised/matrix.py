"""Matrices of codes with scales, as rows of the formats that the kernels know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.formats.small_blocks import BLOCK, join_blocks
from octavo.formats.tensor import Bytes, TensorType

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class Matrix(Protocol):
    """What folder.py makes a tensor of."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """As Tensor.shape."""
        ...

    @property
    def order(self) -> Ints | None:
        """As Tensor.order."""
        ...

    def rows(self, begin: int, end: int) -> Bytes:
        """uint8 [end - begin, row_bytes], of all but the last dimension as one. `begin` is a multiple of 8."""
        ...


@dataclass(frozen=True, slots=True)
class GroupMatrix:
    """x[r, k] = scales[r, g] * (codes[r, k] - zeros[r, g]) with g = k // group, for column k; `order` as Tensor.order.

    shape: (rows, width). scales float32, zeros int16, both [rows, groups]. codes(begin, end): of these rows, uint8
    [end - begin, width], in the order of inputs. type: Q4_0 (codes of 4 bits, all zeros 8), Q5_0 (4 bits, zeros from 0
    to 16) or Q8_0 (8 bits, all zeros 128): those have a scale for every 32 elements, and so hold exactly the same
    numbers, but for a scale that f16 can't say, which is rounded to it.
    """

    type: TensorType
    shape: tuple[int, int]
    group: int
    scales: Floats
    zeros: npt.NDArray[np.int16]
    codes: Callable[[int, int], Bytes]
    order: Ints | None = None

    def rows(self, begin: int, end: int) -> Bytes:
        blocks = self.shape[1] // BLOCK
        group_of_block = np.arange(blocks) * BLOCK // self.group
        codes = self.codes(begin, end)
        codes = (codes if self.order is None else codes[:, self.order]).reshape(-1, blocks, BLOCK)
        if self.type is TensorType.Q5_0:
            codes = codes + (16 - self.zeros[begin:end, group_of_block]).astype(np.uint8)[..., None]
        return join_blocks(self.type, self.scales[begin:end, group_of_block], codes)


def group_type(bits: int, zeros: npt.NDArray[np.int16]) -> TensorType | None:
    """The format for codes with these zeros; None if there is none."""
    if bits == 4:
        return TensorType.Q4_0 if (zeros == 8).all() else TensorType.Q5_0
    return TensorType.Q8_0 if (zeros == 128).all() else None


def unpack(words: npt.NDArray[np.int32], bits: int) -> Bytes:
    """int32 [n, m] -> uint8 [n, m * 32 / bits]: 4 or 8 bits each, the lowest first."""
    packed = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return packed
    codes = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    np.bitwise_and(packed, np.uint8(15), out=codes[:, 0::2])
    np.right_shift(packed, np.uint8(4), out=codes[:, 1::2])
    return codes
