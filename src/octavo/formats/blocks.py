"""The quantised block formats in numpy: the reference for the kernels, and what re-quantises files.

A block is 32 consecutive elements of a row. Values are those of ggml's quantize_row_*_ref and dequantize_row_*
(ggml-quants.c), bit for bit in float32:

    Q8_0  {f16 d; i8 q[32]}            x = d * q
    Q4_0  {f16 d; u8 nibbles[16]}      x = d * (q - 8)
    Q4_1  {f16 d; f16 m; u8 nibbles[16]}  x = d * q + m

A byte of nibbles holds element i in its low half and element i + 16 in its high half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt

from octavo.formats.ggml_types import BY_TENSOR_TYPE
from octavo.formats.tensor import Tensor, TensorType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 32


def row_bytes(type_: TensorType, width: int) -> int:
    """Bytes of a row of `width` elements. Raises ValueError if the format can't hold rows of that width."""
    ggml = BY_TENSOR_TYPE[type_]
    if width % ggml.block_elements:
        raise ValueError(f"a row of {width} elements can't be {type_.name}; it needs a multiple of {BLOCK}")
    return width // ggml.block_elements * ggml.block_bytes


def dequantize(tensor: Tensor) -> Floats:
    """The tensor's values, float32 in its own shape."""
    return dequantize_rows(tensor.type, tensor.data).reshape(tensor.shape)


def dequantize_rows(type_: TensorType, data: Bytes) -> Floats:
    """uint8 [rows, row_bytes] -> float32 [rows, width]."""
    return _DECODERS[type_](np.ascontiguousarray(data))


def quantize(name: str, values: npt.ArrayLike, type_: TensorType) -> Tensor:
    """A tensor of the given format holding these values, rounded as ggml rounds them.

    values: float, at least one-dimensional; the last dimension must be a multiple of the format's block.
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


def _blocks(data: Bytes, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """[rows, row_bytes] -> structs [rows, blocks]."""
    return data.view(dtype)


_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", (BLOCK,))])
_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", (BLOCK // 2,))])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", (BLOCK // 2,))])


def _unpack_nibbles(packed: Bytes) -> Bytes:
    """[..., 16] -> [..., 32]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _pack_nibbles(values: Bytes) -> Bytes:
    """[..., 32] -> [..., 16]."""
    half = BLOCK // 2
    packed: Bytes = values[..., :half] | (values[..., half:] << np.uint8(4))
    return packed


def _decode_f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: Bytes) -> Floats:
    return bf16_to_f32(data.view("<u2"))


def _decode_q8_0(data: Bytes) -> Floats:
    blocks = _blocks(data, _Q8_0)
    values = blocks["q"].astype(np.float32)
    values *= blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(data), -1)


def _decode_q4_0(data: Bytes) -> Floats:
    blocks = _blocks(data, _Q4_0)
    values = _unpack_nibbles(blocks["q"]).astype(np.float32)
    values -= 8.0
    values *= blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(data), -1)


def _decode_q4_1(data: Bytes) -> Floats:
    blocks = _blocks(data, _Q4_1)
    values = _unpack_nibbles(blocks["q"]).astype(np.float32)
    values *= blocks["d"].astype(np.float32)[..., None]
    values += blocks["m"].astype(np.float32)[..., None]
    return values.reshape(len(data), -1)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where it is 0."""
    with np.errstate(divide="ignore"):
        inverse: Floats = np.where(scale == 0.0, np.float32(0.0), np.float32(1.0) / scale)
    return inverse


def _encode_f32(rows: Floats) -> Bytes:
    return rows.astype("<f4").view(np.uint8)


def _encode_f16(rows: Floats) -> Bytes:
    return rows.astype("<f2").view(np.uint8)


def _encode_bf16(rows: Floats) -> Bytes:
    return f32_to_bf16(rows).astype("<u2").view(np.uint8)


def _encode_q8_0(rows: Floats) -> Bytes:
    x = rows.reshape(len(rows), -1, BLOCK)
    d = np.abs(x).max(axis=-1) / np.float32(127.0)
    scaled = x * _inverse(d)[..., None]
    out = np.empty(d.shape, _Q8_0)
    out["d"] = d
    # Half away from zero, as C's roundf.
    out["q"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)
    return out.view(np.uint8).reshape(len(rows), -1)


def _encode_q4_0(rows: Floats) -> Bytes:
    x = rows.reshape(len(rows), -1, BLOCK)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    d = extreme / np.float32(-8.0)
    q = np.minimum(x * _inverse(d)[..., None] + np.float32(8.5), 15.0).astype(np.uint8)
    out = np.empty(d.shape, _Q4_0)
    out["d"] = d
    out["q"] = _pack_nibbles(q)
    return out.view(np.uint8).reshape(len(rows), -1)


def _encode_q4_1(rows: Floats) -> Bytes:
    x = rows.reshape(len(rows), -1, BLOCK)
    low = x.min(axis=-1)
    d = (x.max(axis=-1) - low) / np.float32(15.0)
    q = np.minimum((x - low[..., None]) * _inverse(d)[..., None] + np.float32(0.5), 15.0).astype(np.uint8)
    out = np.empty(d.shape, _Q4_1)
    out["d"] = d
    out["m"] = low
    out["q"] = _pack_nibbles(q)
    return out.view(np.uint8).reshape(len(rows), -1)


_DECODERS: dict[TensorType, Callable[[Bytes], Floats]] = {
    TensorType.F32: _decode_f32,
    TensorType.F16: _decode_f16,
    TensorType.BF16: _decode_bf16,
    TensorType.Q8_0: _decode_q8_0,
    TensorType.Q4_0: _decode_q4_0,
    TensorType.Q4_1: _decode_q4_1,
}
_ENCODERS: dict[TensorType, Callable[[Floats], Bytes]] = {
    TensorType.F32: _encode_f32,
    TensorType.F16: _encode_f16,
    TensorType.BF16: _encode_bf16,
    TensorType.Q8_0: _encode_q8_0,
    TensorType.Q4_0: _encode_q4_0,
    TensorType.Q4_1: _encode_q4_1,
}
