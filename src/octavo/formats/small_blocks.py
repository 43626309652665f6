"""Quantised blocks of 32 consecutive elements of a row.

    Q8_0    {f16 d; i8 q[32]}                         x = d * q
    Q4_0    {f16 d; u8 nibbles[16]}                   x = d * (q - 8)
    Q4_1    {f16 d; f16 m; u8 nibbles[16]}            x = d * q + m
    Q5_0    {f16 d; u8 fifth[4]; u8 nibbles[16]}      x = d * (q - 16)
    Q5_1    {f16 d; f16 m; u8 fifth[4]; u8 nibbles[16]}  x = d * q + m
    IQ4_NL  {f16 d; u8 nibbles[16]}                   x = d * CODEBOOK[q]
    MXFP4   {u8 e; u8 nibbles[16]}                    x = 2^(e - 128) * FP4[q]

A byte of nibbles holds element i in its low half and element i + 16 in its high half; bit i of `fifth` is bit 4 of
element i. Encoders round as ggml's quantize_row_*_ref; IQ4_NL's takes the scale that gives the largest its place.
MXFP4's scale is OCP's E8M0 (Microscaling Formats 1.0), halved because the values are doubled; 255, NaN there, is in no
valid block. Of a damaged one that has it the kernels make infinities and NaN, decoding here 2^127 as ggml does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.formats.tensor import Bytes, TensorType

Floats = npt.NDArray[np.float32]

BLOCK = 32

#: What the nibbles of IQ4_NL and IQ4_XS stand for (ggml-common.h, kvalues_iq4nl).
CODEBOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

#: What those of MXFP4 stand for, E2M1, doubled.
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def pack_nibbles(values: Bytes) -> Bytes:
    """[..., 32] -> [..., 16]."""
    half = BLOCK // 2
    packed: Bytes = values[..., :half] | (values[..., half:] << np.uint8(4))
    return packed


def unpack_nibbles(packed: Bytes) -> Bytes:
    """[..., 16] -> [..., 32]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def nearest_in_codebook(values: Floats) -> Bytes:
    """The place in CODEBOOK that is nearest to each value."""
    middles = (CODEBOOK[:-1].astype(np.float32) + CODEBOOK[1:]) / 2
    return np.searchsorted(middles, values).astype(np.uint8)


def inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where it is 0."""
    with np.errstate(divide="ignore"):
        result: Floats = np.where(scale == 0.0, np.float32(0.0), np.float32(1.0) / scale)
    return result


def _dtype(minimum: bool, fifth: bool) -> np.dtype[np.void]:
    fields: list[tuple[object, ...]] = [("d", "<f2")]
    if minimum:
        fields.append(("m", "<f2"))
    if fifth:
        fields.append(("fifth", "u1", (BLOCK // 8,)))
    return np.dtype([*fields, ("q", "u1", (BLOCK // 2,))])


_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", (BLOCK,))])
_MXFP4 = np.dtype([("e", "u1"), ("q", "u1", (BLOCK // 2,))])
_LAYOUTS = {
    TensorType.Q4_0: _dtype(minimum=False, fifth=False),
    TensorType.Q4_1: _dtype(minimum=True, fifth=False),
    TensorType.Q5_0: _dtype(minimum=False, fifth=True),
    TensorType.Q5_1: _dtype(minimum=True, fifth=True),
    TensorType.IQ4_NL: _dtype(minimum=False, fifth=False),
}


def _decode_q8_0(data: Bytes) -> Floats:
    blocks = data.view(_Q8_0)
    values = blocks["q"].astype(np.float32)
    values *= blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(data), -1)


def _encode_q8_0(rows: Floats) -> Bytes:
    x = rows.reshape(len(rows), -1, BLOCK)
    d = np.abs(x).max(axis=-1) / np.float32(127.0)
    scaled = x * inverse(d)[..., None]
    out = np.empty(d.shape, _Q8_0)
    out["d"] = d
    # Half away from zero, as C's roundf.
    out["q"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)
    return out.view(np.uint8).reshape(len(rows), -1)


def _codes(blocks: npt.NDArray[np.void]) -> Bytes:
    """uint8 [rows, blocks, 32]."""
    codes = unpack_nibbles(blocks["q"])
    if "fifth" in (blocks.dtype.names or ()):
        codes |= np.unpackbits(blocks["fifth"], axis=-1, bitorder="little") << np.uint8(4)
    return codes


def _write_codes(out: npt.NDArray[np.void], codes: Bytes) -> None:
    out["q"] = pack_nibbles(codes & np.uint8(15))
    if "fifth" in (out.dtype.names or ()):
        out["fifth"] = np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def join_blocks(type_: TensorType, scales: Floats, codes: Bytes) -> Bytes:
    """Rows of Q4_0, Q5_0 or Q8_0 (uint8 [rows, row_bytes]) out of scales float32 [rows, blocks], rounded to f16, and
    codes uint8 [rows, blocks, 32]: x = scale * (code - zero) with zero 8, 16 or 128."""
    out = np.empty(scales.shape, _Q8_0 if type_ is TensorType.Q8_0 else _LAYOUTS[type_])
    out["d"] = scales
    if type_ is TensorType.Q8_0:
        out["q"] = (codes ^ np.uint8(128)).view(np.int8)
    else:
        _write_codes(out, codes)
    return out.view(np.uint8).reshape(len(scales), -1)


def _symmetric(type_: TensorType, zero: int) -> tuple[Callable[[Bytes], Floats], Callable[[Floats], Bytes]]:
    """Decoder and encoder of x = d * (q - zero)."""

    def decode(data: Bytes) -> Floats:
        blocks = data.view(_LAYOUTS[type_])
        values = _codes(blocks).astype(np.float32)
        values -= np.float32(zero)
        values *= blocks["d"].astype(np.float32)[..., None]
        return values.reshape(len(data), -1)

    def encode(rows: Floats) -> Bytes:
        x = rows.reshape(len(rows), -1, BLOCK)
        extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]
        d = extreme / np.float32(-zero)
        out = np.empty(d.shape, _LAYOUTS[type_])
        out["d"] = d
        codes = np.minimum(x * inverse(d)[..., None] + np.float32(zero + 0.5), 2 * zero - 1).astype(np.uint8)
        _write_codes(out, codes)
        return out.view(np.uint8).reshape(len(rows), -1)

    return decode, encode


def _with_minimum(type_: TensorType, largest: int) -> tuple[Callable[[Bytes], Floats], Callable[[Floats], Bytes]]:
    """Decoder and encoder of x = d * q + m, q from 0 to `largest`."""

    def decode(data: Bytes) -> Floats:
        blocks = data.view(_LAYOUTS[type_])
        values = _codes(blocks).astype(np.float32)
        values *= blocks["d"].astype(np.float32)[..., None]
        values += blocks["m"].astype(np.float32)[..., None]
        return values.reshape(len(data), -1)

    def encode(rows: Floats) -> Bytes:
        x = rows.reshape(len(rows), -1, BLOCK)
        low = x.min(axis=-1)
        d = (x.max(axis=-1) - low) / np.float32(largest)
        out = np.empty(d.shape, _LAYOUTS[type_])
        out["d"] = d
        out["m"] = low
        scaled = (x - low[..., None]) * inverse(d)[..., None] + np.float32(0.5)
        _write_codes(out, np.minimum(scaled, largest).astype(np.uint8))
        return out.view(np.uint8).reshape(len(rows), -1)

    return decode, encode


def _decode_iq4_nl(data: Bytes) -> Floats:
    blocks = data.view(_LAYOUTS[TensorType.IQ4_NL])
    values = CODEBOOK[_codes(blocks)] * blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(data), -1)


def _encode_iq4_nl(rows: Floats) -> Bytes:
    x = rows.reshape(len(rows), -1, BLOCK)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    d = extreme / np.float32(CODEBOOK[0])
    out = np.empty(d.shape, _LAYOUTS[TensorType.IQ4_NL])
    out["d"] = d
    _write_codes(out, nearest_in_codebook(x * inverse(d)[..., None]))
    return out.view(np.uint8).reshape(len(rows), -1)


def _mxfp4_scale(e: Bytes) -> Floats:
    """2^(e - 128)."""
    scale: Floats = np.ldexp(np.float32(1.0), e.astype(np.int32) - 128)
    return scale


def _decode_mxfp4(data: Bytes) -> Floats:
    blocks = data.view(_MXFP4)
    values = FP4[unpack_nibbles(blocks["q"])] * _mxfp4_scale(blocks["e"])[..., None]
    return values.reshape(len(data), -1)


def _encode_mxfp4(rows: Floats) -> Bytes:
    """The scale is the power of two for which the largest magnitude is 4 to 8, as the standard says; 6 is the limit."""
    x = rows.reshape(len(rows), -1, BLOCK)
    largest = np.abs(x).max(axis=-1)
    _, exponent = np.frexp(largest)
    out = np.empty(largest.shape, _MXFP4)
    out["e"] = np.where(largest > 0, np.clip(exponent - 3 + 127, 0, 254), 0)
    distance = np.abs(_mxfp4_scale(out["e"])[..., None, None] * FP4.astype(np.float32) - x[..., None])
    out["q"] = pack_nibbles(distance.argmin(axis=-1).astype(np.uint8))
    return out.view(np.uint8).reshape(len(rows), -1)


_CODECS = {
    TensorType.Q8_0: (_decode_q8_0, _encode_q8_0),
    TensorType.Q4_0: _symmetric(TensorType.Q4_0, 8),
    TensorType.Q4_1: _with_minimum(TensorType.Q4_1, 15),
    TensorType.Q5_0: _symmetric(TensorType.Q5_0, 16),
    TensorType.Q5_1: _with_minimum(TensorType.Q5_1, 31),
    TensorType.IQ4_NL: (_decode_iq4_nl, _encode_iq4_nl),
    TensorType.MXFP4: (_decode_mxfp4, _encode_mxfp4),
}
DECODERS = {type_: decode for type_, (decode, _) in _CODECS.items()}
ENCODERS = {type_: encode for type_, (_, encode) in _CODECS.items()}
