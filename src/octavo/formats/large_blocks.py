"""Quantised blocks of 256 consecutive elements of a row: f16 scales for the block, small integer ones for its groups.

    Q2_K    {u8 scales[16]; u8 q[64]; f16 d; f16 dmin}            16 groups of 16   x = d * s * q - dmin * m
    Q3_K    {u8 third[32]; u8 q[64]; u8 scales[12]; f16 d}        16 of 16          x = d * s * (q - 4)
    Q4_K    {f16 d; f16 dmin; u8 scales[12]; u8 q[128]}           8 of 32           x = d * s * q - dmin * m
    Q5_K    {f16 d; f16 dmin; u8 scales[12]; u8 fifth[32]; u8 q[128]}  8 of 32      x = d * s * q - dmin * m
    Q6_K    {u8 low[128]; u8 high[64]; i8 scales[16]; f16 d}      16 of 16          x = d * s * (q - 32)
    IQ4_XS  {f16 d; u16 scales_high; u8 scales_low[4]; u8 q[128]}  8 of 32          x = d * s * CODEBOOK[q]

A byte of q (and of third, fifth and high) holds elements that lie 32 apart, in Q6_K's q 64, in IQ4_XS's 16. Encoders
give a group the scale that suits it best, or its extreme, and the block the one that the largest of those asks for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.formats.small_blocks import CODEBOOK, inverse, nearest_in_codebook, pack_nibbles, unpack_nibbles
from octavo.formats.tensor import Bytes, TensorType

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]

BLOCK = 256

# Scales that an encoder tries for a group with a minimum.
_TRIES = 21

_Q2_K = np.dtype([("scales", "u1", (16,)), ("q", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])
_Q3_K = np.dtype([("third", "u1", (32,)), ("q", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])
_Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("q", "u1", (128,))])
_Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("fifth", "u1", (32,)), ("q", "u1", (128,))])
_Q6_K = np.dtype([("q", "u1", (128,)), ("high", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])
_IQ4_XS = np.dtype([("d", "<f2"), ("scales_high", "<u2"), ("scales_low", "u1", (4,)), ("q", "u1", (128,))])


# ------------------------------------------------------------------------------------------------------ fields of bits


def _split(packed: Bytes, bits: int, run: int) -> Bytes:
    """Every byte of a run of `run` holds 8 / bits elements, `run` apart. [..., n] -> [..., n * 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs: Bytes = packed.reshape(*packed.shape[:-1], -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return runs.reshape(*packed.shape[:-1], -1)


def _join(values: Bytes, bits: int, run: int) -> Bytes:
    """The inverse of _split."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = values.reshape(*values.shape[:-1], -1, 8 // bits, run) << shifts
    joined: Bytes = np.bitwise_or.reduce(runs, axis=-2)
    return joined.reshape(*values.shape[:-1], -1)


def _split_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Q4_K's and Q5_K's 12 bytes -> scales and minima, [..., 8] of 6 bits each."""
    first, second, mixed = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (mixed & 15) | (first >> 6) << 4], axis=-1)
    minima = np.concatenate([second & 63, mixed >> 4 | (second >> 6) << 4], axis=-1)
    return scales, minima


def _join_scales(scales: Bytes, minima: Bytes) -> Bytes:
    first = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    second = minima[..., :4] | (minima[..., 4:] >> 4) << 6
    return np.concatenate([first, second, (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4], axis=-1)


def _split_q3_scales(packed: Bytes) -> npt.NDArray[np.int8]:
    """12 bytes -> int8 [..., 16]: low nibbles of all in the first eight, high 2 bits in the others."""
    low, high = _split(packed[..., :8], 4, 8), _split(packed[..., 8:], 2, 4)
    scales: npt.NDArray[np.int8] = (low | high << 4).astype(np.int8) - np.int8(32)
    return scales


def _join_q3_scales(scales: npt.NDArray[np.int8]) -> Bytes:
    codes = (scales + np.int8(32)).astype(np.uint8)
    return np.concatenate([_join(codes & 15, 4, 8), _join(codes >> 4, 2, 4)], axis=-1)


# ------------------------------------------------------------------------------------------------------------- decoding


def _float(field: npt.NDArray[np.generic]) -> Floats:
    return field.astype(np.float32)


def _values(blocks: npt.NDArray[np.void], scales: Ints, weights: Ints, minima: Ints | None = None) -> Floats:
    """scales, minima [rows, blocks, groups]; weights [rows, blocks, 256] before scales -> float32 [rows, width]."""
    groups = scales.shape[-1]
    values = _float(weights).reshape(*scales.shape, BLOCK // groups)
    values *= (_float(blocks["d"])[..., None] * _float(scales))[..., None]
    if minima is not None:
        values -= (_float(blocks["dmin"])[..., None] * _float(minima))[..., None]
    return values.reshape(len(blocks), -1)


def _decode_q2_k(data: Bytes) -> Floats:
    blocks = data.view(_Q2_K)
    scales = blocks["scales"]
    return _values(blocks, scales & 15, _split(blocks["q"], 2, 32), scales >> 4)


def _decode_q3_k(data: Bytes) -> Floats:
    blocks = data.view(_Q3_K)
    codes = _split(blocks["q"], 2, 32) | _split(blocks["third"], 1, 32) << 2
    return _values(blocks, _split_q3_scales(blocks["scales"]), codes.astype(np.int8) - np.int8(4))


def _decode_q4_k(data: Bytes) -> Floats:
    blocks = data.view(_Q4_K)
    scales, minima = _split_scales(blocks["scales"])
    return _values(blocks, scales, _split(blocks["q"], 4, 32), minima)


def _decode_q5_k(data: Bytes) -> Floats:
    blocks = data.view(_Q5_K)
    scales, minima = _split_scales(blocks["scales"])
    return _values(blocks, scales, _split(blocks["q"], 4, 32) | _split(blocks["fifth"], 1, 32) << 4, minima)


def _decode_q6_k(data: Bytes) -> Floats:
    blocks = data.view(_Q6_K)
    codes = _split(blocks["q"], 4, 64) | _split(blocks["high"], 2, 32) << 4
    return _values(blocks, blocks["scales"], codes.astype(np.int8) - np.int8(32))


def _decode_iq4_xs(data: Bytes) -> Floats:
    blocks = data.view(_IQ4_XS)
    low = _split(blocks["scales_low"], 4, 1)
    high = blocks["scales_high"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    nibbles = unpack_nibbles(blocks["q"].reshape(*blocks.shape, 8, 16))
    return _values(
        blocks, (low | high << 4).astype(np.int8) - np.int8(32), CODEBOOK[nibbles].reshape(*blocks.shape, BLOCK)
    )


# ------------------------------------------------------------------------------------------------------------- encoding


def _round(values: Floats, least: int, most: int) -> Floats:
    return np.clip(np.rint(values), least, most)


def _groups(rows: Floats, groups: int) -> Floats:
    """[rows, width] -> [rows, blocks, groups, elements]."""
    return rows.reshape(len(rows), -1, groups, BLOCK // groups)


def _bytes(out: npt.NDArray[np.void]) -> Bytes:
    return out.view(np.uint8).reshape(len(out), -1)


def _with_minima(rows: Floats, groups: int, most: int, most_scale: int, out: npt.NDArray[np.void]) -> tuple[Bytes, ...]:
    """Writes d and dmin; scales, minima [rows, blocks, groups] and codes [rows, blocks, 256] from 0 to `most`."""
    x = _groups(rows, groups)
    wanted, low = _best_scale_and_minimum(x, most)
    out["d"] = wanted.max(axis=-1) / np.float32(most_scale)
    out["dmin"] = -low.min(axis=-1) / np.float32(most_scale)
    d, dmin = _float(out["d"])[..., None], _float(out["dmin"])[..., None]
    scales, minima = _round(wanted * inverse(d), 0, most_scale), _round(-low * inverse(dmin), 0, most_scale)
    codes = _round((x + (dmin * minima)[..., None]) * inverse(d * scales)[..., None], 0, most)
    return scales.astype(np.uint8), minima.astype(np.uint8), codes.astype(np.uint8).reshape(*d.shape[:-1], BLOCK)


def _best_scale_and_minimum(x: Floats, most: int) -> tuple[Floats, Floats]:
    """Of each group, scale and minimum (at most 0) with the least error, large values counting more.

    Steps around the one that the extremes ask for, each with the least squares' fit to the codes that it gives.
    """
    low = np.minimum(x.min(axis=-1), np.float32(0.0))
    span = x.max(axis=-1) - low
    scale, minimum = span / np.float32(most), low
    weight = np.abs(x) + np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    all_, all_x = weight.sum(axis=-1), (weight * x).sum(axis=-1)
    least = np.full(scale.shape, np.inf, np.float32)
    for change in np.linspace(-1.0, 1.0, _TRIES, dtype=np.float32):
        codes = _round((x - low[..., None]) * (inverse(span) * np.float32(most + change))[..., None], 0, most)
        weighted = weight * codes
        sum_, squares, products = weighted.sum(axis=-1), (weighted * codes).sum(axis=-1), (weighted * x).sum(axis=-1)
        fitted = (all_ * products - sum_ * all_x) * inverse(all_ * squares - sum_ * sum_)
        offset = (all_x - fitted * sum_) * inverse(all_)
        fitted = np.where(offset > 0, products * inverse(squares), fitted)
        offset = np.minimum(offset, np.float32(0.0))
        error = (weight * (fitted[..., None] * codes + offset[..., None] - x) ** 2).sum(axis=-1)
        better = (error < least) & (fitted >= 0)
        scale, minimum = np.where(better, fitted, scale), np.where(better, offset, minimum)
        least = np.where(better, error, least)
    return scale, minimum


def _signed_scales(
    rows: Floats, groups: int, largest: int, most_scale: int, out: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.int8], Floats]:
    """Writes d; int8 scales [rows, blocks, groups] and the rows in units of them, whose extreme becomes `largest`."""
    x = _groups(rows, groups)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    wanted = extreme / np.float32(largest)
    out["d"] = np.abs(wanted).max(axis=-1) / np.float32(most_scale)
    d = _float(out["d"])[..., None]
    scales = _round(wanted * inverse(d), -most_scale, most_scale)
    return scales.astype(np.int8), (x * inverse(d * scales)[..., None]).reshape(*d.shape[:-1], BLOCK)


def _encode_q2_k(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _Q2_K)
    scales, minima, codes = _with_minima(rows, 16, 3, 15, out)
    out["scales"], out["q"] = scales | minima << np.uint8(4), _join(codes, 2, 32)
    return _bytes(out)


def _encode_q3_k(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _Q3_K)
    scales, scaled = _signed_scales(rows, 16, -4, 31, out)
    codes = (_round(scaled, -4, 3) + np.float32(4)).astype(np.uint8)
    out["scales"] = _join_q3_scales(scales)
    out["q"], out["third"] = _join(codes & 3, 2, 32), _join(codes >> 2, 1, 32)
    return _bytes(out)


def _encode_q4_k(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _Q4_K)
    scales, minima, codes = _with_minima(rows, 8, 15, 63, out)
    out["scales"], out["q"] = _join_scales(scales, minima), _join(codes, 4, 32)
    return _bytes(out)


def _encode_q5_k(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _Q5_K)
    scales, minima, codes = _with_minima(rows, 8, 31, 63, out)
    out["scales"] = _join_scales(scales, minima)
    out["q"], out["fifth"] = _join(codes & np.uint8(15), 4, 32), _join(codes >> np.uint8(4), 1, 32)
    return _bytes(out)


def _encode_q6_k(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _Q6_K)
    out["scales"], scaled = _signed_scales(rows, 16, -32, 127, out)
    codes = (_round(scaled, -32, 31) + np.float32(32)).astype(np.uint8)
    out["q"], out["high"] = _join(codes & 15, 4, 64), _join(codes >> 4, 2, 32)
    return _bytes(out)


def _encode_iq4_xs(rows: Floats) -> Bytes:
    out = np.empty((len(rows), rows.shape[1] // BLOCK), _IQ4_XS)
    scales, scaled = _signed_scales(rows, 8, int(CODEBOOK[0]), 31, out)
    codes: Bytes = (scales + np.int8(32)).astype(np.uint8)
    out["scales_low"] = _join(codes & np.uint8(15), 4, 1)
    out["scales_high"] = np.bitwise_or.reduce(
        (codes >> 4).astype("<u2") << np.arange(0, 16, 2, dtype=np.uint16), axis=-1
    )
    out["q"] = pack_nibbles(nearest_in_codebook(scaled).reshape(*out.shape, 8, 32)).reshape(*out.shape, 128)
    return _bytes(out)


DECODERS = {
    TensorType.Q2_K: _decode_q2_k,
    TensorType.Q3_K: _decode_q3_k,
    TensorType.Q4_K: _decode_q4_k,
    TensorType.Q5_K: _decode_q5_k,
    TensorType.Q6_K: _decode_q6_k,
    TensorType.IQ4_XS: _decode_iq4_xs,
}
ENCODERS = {
    TensorType.Q2_K: _encode_q2_k,
    TensorType.Q3_K: _encode_q3_k,
    TensorType.Q4_K: _encode_q4_k,
    TensorType.Q5_K: _encode_q5_k,
    TensorType.Q6_K: _encode_q6_k,
    TensorType.IQ4_XS: _encode_iq4_xs,
}
