"""Integer codes in groups with scales: GPTQ, AWQ, and compressed-tensors' pack-quantized and int-quantized.

    GPTQ  qweight int32 [in * bits / 32, out], qzeros int32 [groups, out * bits / 32], scales [groups, out], g_idx int32
          [in]; zeros are stored less one, but not in checkpoint format gptq_v2 (AutoGPTQ, GPTQModel: qlinear)
    AWQ   qweight int32 [in, out / 8], qzeros int32 [groups, out / 8], scales [groups, out]; outputs in the order
          0 2 4 6 1 3 5 7 within a word (AutoAWQ: WQLinear_GEMM)
    pack-quantized  weight_packed int32 [out, in * bits / 32], weight_scale [out, groups], weight_zero_point int32
          [out * bits / 32, groups] unless symmetric, weight_shape int64 [2], weight_g_idx (compressed_tensors:
          pack_to_int32)
    int-quantized  weight int8 [out, in], weight_scale [out, 1], [out, groups] or one; weight_zero_point only zeros

A word holds the code with the lowest number in its lowest bits. All mean scale * (code - zero). g_idx and weight_g_idx
say which group each input is in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.formats.quantised.matrix import GroupMatrix, Ints, group_type, unpack
from octavo.formats.quantised.parts import Array, Floats, Parts
from octavo.formats.small_blocks import BLOCK
from octavo.formats.tensor import Bytes

Zeros = npt.NDArray[np.int16]

_WORD_BITS = 32
#: Where output i of eight stands in AWQ's word.
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_LARGEST_F16 = 65504.0


def gptq(parts: Parts, bits: int, group_size: int, zeros_less: int) -> GroupMatrix:
    """zeros_less: what is taken from zero points before they are stored. group_size -1: one group."""
    words = parts.array("qweight", "I32", 2)
    width, rows = words.shape[0] * _WORD_BITS // bits, words.shape[1]
    group, groups = _groups(parts, "qweight", width, group_size)
    scales = _shaped(parts, "scales", parts.floats("scales"), (groups, rows)).T
    stored = _shaped(parts, "qzeros", parts.array("qzeros", "I32", 2), (groups, -(-rows * bits // _WORD_BITS)))
    zeros = unpack(stored, bits)[:, :rows].T.astype(np.int16) + np.int16(zeros_less)

    def codes(begin: int, end: int) -> Bytes:
        return unpack(words[:, begin:end].T, bits)

    order = _order(parts, "g_idx", width, group)
    return _matrix(parts, "qweight", bits, (rows, width), group, scales, zeros, codes, order)


def awq(parts: Parts, bits: int, group_size: int) -> GroupMatrix:
    words = parts.array("qweight", "I32", 2)
    width, rows = words.shape[0], words.shape[1] * _WORD_BITS // bits
    group, groups = _groups(parts, "qweight", width, group_size)
    scales = _shaped(parts, "scales", parts.floats("scales"), (groups, rows)).T
    stored = _shaped(parts, "qzeros", parts.array("qzeros", "I32", 2), (groups, words.shape[1]))

    def codes(begin: int, end: int) -> Bytes:
        first = begin * bits // _WORD_BITS
        some = _in_order(words[:, first : -(-end * bits // _WORD_BITS)])
        return np.ascontiguousarray(some[:, : end - begin].T)

    zeros = _in_order(stored).T.astype(np.int16)
    return _matrix(parts, "qweight", bits, (rows, width), group, scales, zeros, codes)


def _in_order(words: Array) -> Bytes:
    """AWQ's words [n, m] -> codes [n, 8 * m]."""
    codes = unpack(words, 4).reshape(len(words), -1, 8)
    return codes[..., _AWQ_PLACES].reshape(len(words), -1)


def packed(parts: Parts) -> GroupMatrix:
    """compressed-tensors' pack-quantized."""
    words, said = parts.array("weight_packed", "I32", 2), parts.array("weight_shape", "I64", 1)
    rows, width = (int(size) for size in said) if said.shape == (2,) else (-1, -1)
    bits = next((n for n in (4, 8) if (rows, -(-width * n // _WORD_BITS)) == words.shape), 0)
    if not bits:
        raise parts.error(
            "weight_packed", f"has shape {list(words.shape)}, which {[rows, width]} codes of 4 or 8 bits don't fill"
        )
    scales = parts.floats("weight_scale")
    group, groups = _groups_of_scales(parts, scales, rows, width)
    zeros = np.full((rows, groups), 1 << (bits - 1), np.int16)
    if "weight_zero_point" in parts:
        stored = parts.array("weight_zero_point", "I32", 2)
        stored = _shaped(parts, "weight_zero_point", stored, (-(-rows * bits // _WORD_BITS), groups))
        zeros = unpack(stored.T, bits)[:, :rows].T.astype(np.int16)

    def codes(begin: int, end: int) -> Bytes:
        return unpack(words[begin:end], bits)[:, :width]

    order = _order(parts, "weight_g_idx", width, group)
    return _matrix(parts, "weight_packed", bits, (rows, width), group, scales, zeros, codes, order)


def plain_int8(parts: Parts) -> GroupMatrix:
    """compressed-tensors' int-quantized."""
    stored = parts.array("weight", "I8", 2)
    rows, width = stored.shape
    scales = parts.floats("weight_scale")
    if scales.size == 1:
        scales = np.broadcast_to(scales.reshape(1, 1), (rows, 1))
    group, groups = _groups_of_scales(parts, scales, rows, width)
    if "weight_zero_point" in parts and parts.array("weight_zero_point", parts.dtype("weight_zero_point"), 2).any():
        raise parts.error("weight_zero_point", "is not zero; weights of 8 bits are supported without zero points")

    def codes(begin: int, end: int) -> Bytes:
        unsigned: Bytes = stored[begin:end].view(np.uint8) ^ np.uint8(128)
        return unsigned

    zeros = np.full((rows, groups), 128, np.int16)
    return _matrix(parts, "weight", 8, (rows, width), group, scales, zeros, codes)


def _matrix(
    parts: Parts,
    part: str,
    bits: int,
    shape: tuple[int, int],
    group: int,
    scales: Floats,
    zeros: Zeros,
    codes: Callable[[int, int], Bytes],
    order: Ints | None = None,
) -> GroupMatrix:
    type_ = group_type(bits, zeros)
    if type_ is None:
        raise parts.error(part, "has codes of 8 bits with zero points; those are supported with 4 bits only")
    if scales.size and np.abs(scales).max() > _LARGEST_F16:
        raise parts.error(part, f"has a scale of {np.abs(scales).max():g}; the limit is {_LARGEST_F16:g}")
    return GroupMatrix(type_, shape, group, scales, zeros, codes, order)


def _shaped(parts: Parts, part: str, array: Array, shape: tuple[int, int]) -> Array:
    if array.shape != shape:
        raise parts.error(part, f"has shape {list(array.shape)}; the others of its module ask for {list(shape)}")
    return array


def _groups(parts: Parts, part: str, width: int, group_size: int) -> tuple[int, int]:
    """Elements in a group, and groups in a row."""
    group = width if group_size == -1 else group_size
    if width % BLOCK or group % BLOCK or not group:
        raise parts.error(part, f"has {width} inputs in groups of {group}; both must be multiples of {BLOCK}")
    return group, -(-width // group)


def _groups_of_scales(parts: Parts, scales: Floats, rows: int, width: int) -> tuple[int, int]:
    """As _groups, where only the scales tell."""
    if scales.ndim != 2 or scales.shape[0] != rows or not scales.shape[1] or width % scales.shape[1]:
        raise parts.error(
            "weight_scale", f"has shape {list(scales.shape)}; expected are [{rows}, groups] for rows of {width}"
        )
    return _groups(parts, "weight_scale", width, width // scales.shape[1])


def _order(parts: Parts, part: str, width: int, group: int) -> Ints | None:
    """What brings the inputs of each group together: act-order (desc_act) spreads them over the row. None: they are.

    `part` says for each input which group it is in.
    """
    if part not in parts:
        return None
    group_of = parts.array(part, "I32", 1)
    if len(group_of) != width:
        raise parts.error(part, f"has {len(group_of)} entries; its module has {width} inputs")
    neighbours = np.arange(width) // group
    if np.array_equal(group_of, neighbours) or (group_of == -1).all():
        return None
    order = np.argsort(group_of, kind="stable").astype(np.int32)
    if not np.array_equal(group_of[order], neighbours):
        raise parts.error(part, f"does not put {width} inputs into groups of {group}")
    return order
