"""fp8 weights (E4M3 of the OCP 8-bit floating point specification, 2023), kept as bf16.

A weight is its value times the scale of all, of its row or of its block: `weight_scale` (of all [] or [1], of rows
[out, 1]) or `weight_scale_inv` (of blocks, [out / 128, in / 128]; it multiplies, too). Products are computed in float32
and rounded to bf16 once, as transformers does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.formats.blocks import f32_to_bf16
from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.parts import Floats, Parts
from octavo.formats.tensor import Bytes, TensorType

_NAN = 0x7F
_LARGEST_SCALE = 1e35  # times 448, the largest value, stays a bf16


def e4m3_values() -> Floats:
    """float32 [256]: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, and NaN where all are set."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    size[(bits & _NAN) == _NAN] = np.nan
    values: Floats = np.where(bits & 128, -size, size).astype(np.float32)
    return values


_VALUES = e4m3_values()


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """x[r, k] = value(bits[r, k]) * scales[r // block[0], k // block[1]].

    not_finite: what `rows` raises for bits that mean NaN; a look at all of them is left to it.
    """

    bits: Bytes
    scales: Floats
    block: tuple[int, int]
    not_finite: ModelFileError

    @property
    def type(self) -> TensorType:
        return TensorType.BF16

    @property
    def order(self) -> None:
        return None

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.bits.shape
        return rows, width

    def rows(self, begin: int, end: int) -> Bytes:
        height, span = self.block
        if ((self.bits[begin:end] & _NAN) == _NAN).any():
            raise self.not_finite
        out = np.empty((end - begin, self.shape[1]), "<u2")
        first = begin
        while first < end:
            last = min(end, (first // height + 1) * height)
            for column, scale in enumerate(self.scales[first // height]):
                part = slice(column * span, (column + 1) * span)
                table = f32_to_bf16(_VALUES * scale).astype("<u2")
                np.take(table, self.bits[first:last, part], out=out[first - begin : last - begin, part])
            first = last
        return out.view(np.uint8)


def fp8(parts: Parts, block: tuple[int, int] | None) -> Fp8Matrix:
    """block: rows and columns that share a scale, where the model has blocks."""
    bits = parts.array("weight", "F8_E4M3", 2)
    rows, width = bits.shape
    if not bits.size:
        raise parts.error("weight", f"has shape {[rows, width]}; it must not be empty")
    part = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    scales = parts.floats(part)
    if scales.size == 1:
        scales, block = scales.reshape(1, 1), (rows, width)
    elif scales.shape == (rows, 1):
        block = (1, width)
    expected = block and (-(-rows // block[0]), -(-width // block[1]))
    if block is None or scales.shape != expected:
        raise parts.error(
            part, f"has shape {list(scales.shape)}; expected are one scale, one a row, or blocks: {expected}"
        )
    if np.abs(scales).max() > _LARGEST_SCALE:
        raise parts.error(part, f"holds a scale of {np.abs(scales).max():g}; the limit is {_LARGEST_SCALE:g}")
    return Fp8Matrix(bits, scales, block, parts.error("weight", "holds a number that is not finite"))
