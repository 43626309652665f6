"""From stored rows to numbers and back for every tensor type: the kernels' reference, and what re-quantises files.

The quantised ones are in small_blocks.py (blocks of 32 elements) and large_blocks.py (256). Their values are those of
ggml's dequantize_row_* (ggml-quants.c), bit for bit in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt

from octavo.formats import large_blocks, small_blocks
from octavo.formats.ggml_types import BY_TENSOR_TYPE
from octavo.formats.tensor import Bytes, Tensor, TensorType

Floats = npt.NDArray[np.float32]


def row_bytes(type_: TensorType, width: int) -> int:
    """Bytes of a row of `width` elements. Raises ValueError if the format can't hold rows of that width."""
    ggml = BY_TENSOR_TYPE[type_]
    if width % ggml.block_elements:
        raise ValueError(
            f"a row of {width} elements can't be {type_.name}; it needs a multiple of {ggml.block_elements}"
        )
    return width // ggml.block_elements * ggml.block_bytes


def dequantize(tensor: Tensor) -> Floats:
    """The tensor's values, float32 in its own shape, columns in the order of inputs."""
    values = dequantize_rows(tensor.type, tensor.data).reshape(tensor.shape)
    if tensor.order is None:
        return values
    in_order = np.empty_like(values)
    in_order[..., tensor.order] = values
    return in_order


def dequantize_rows(type_: TensorType, data: Bytes) -> Floats:
    """uint8 [rows, row_bytes] -> float32 [rows, width]."""
    return _DECODERS[type_](np.ascontiguousarray(data))


def quantize(name: str, values: npt.ArrayLike, type_: TensorType) -> Tensor:
    """A tensor of the given format holding these values, each rounded to the nearest that its block can say.

    values: float, at least one-dimensional; the last dimension must be a multiple of the format's block. Blocks of 32
    (but IQ4_NL's) get the scales that ggml's quantize_row_*_ref gives them.
    """
    array = np.asarray(values, np.float32)
    row_bytes(type_, array.shape[-1])
    rows = np.ascontiguousarray(array.reshape(prod(array.shape[:-1]), array.shape[-1]))
    return Tensor(name, type_, array.shape, _ENCODERS[type_](rows))


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> Floats:
    """bf16 bit patterns -> the same values in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """Nearest bf16 bit patterns, ties to even; NaN stays NaN (quiet, sign kept)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    result: npt.NDArray[np.uint16] = np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
    return result


def _decode_f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: Bytes) -> Floats:
    return bf16_to_f32(data.view("<u2"))


def _encode_f32(rows: Floats) -> Bytes:
    return rows.astype("<f4").view(np.uint8)


def _encode_f16(rows: Floats) -> Bytes:
    return rows.astype("<f2").view(np.uint8)


def _encode_bf16(rows: Floats) -> Bytes:
    return f32_to_bf16(rows).astype("<u2").view(np.uint8)


_DECODERS: dict[TensorType, Callable[[Bytes], Floats]] = {
    TensorType.F32: _decode_f32,
    TensorType.F16: _decode_f16,
    TensorType.BF16: _decode_bf16,
    **small_blocks.DECODERS,
    **large_blocks.DECODERS,
}
_ENCODERS: dict[TensorType, Callable[[Floats], Bytes]] = {
    TensorType.F32: _encode_f32,
    TensorType.F16: _encode_f16,
    TensorType.BF16: _encode_bf16,
    **small_blocks.ENCODERS,
    **large_blocks.ENCODERS,
}
