"""MXFP4 experts (OCP Microscaling Formats 1.0) as gpt-oss publishes them, kept as GGUF's MXFP4.

All experts' matrices are one stack: `_blocks` uint8 [experts, out, in / 32, 16] holds two codes of E2M1 a byte, the
first in its low half, and `_scales` uint8 [experts, out, in / 32] the exponents of E8M0, 127 above that of the power of
two. GGUF has the same codes and exponents, and only their places differ: nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from octavo.formats.quantised.parts import Parts
from octavo.formats.small_blocks import BLOCK
from octavo.formats.tensor import Bytes, TensorType

_NAN = 255
#: The halves of eight bytes at once.
_LOW, _HIGH, _HALF = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(4)


@dataclass(frozen=True, slots=True)
class Mxfp4Stack:
    """shape: (experts, out, in). blocks: uint8 [experts * out, in / 32, 16]; scales: uint8 [experts * out, in / 32]."""

    shape: tuple[int, ...]
    blocks: Bytes
    scales: Bytes

    @property
    def type(self) -> TensorType:
        return TensorType.MXFP4

    @property
    def order(self) -> None:
        return None

    def rows(self, begin: int, end: int) -> Bytes:
        words = self.blocks[begin:end].view("<u8")
        # Elements 0-15 of a block are in its first 8 bytes, and belong into low halves; 16-31 into high ones.
        first, second = words[..., 0], words[..., 1]
        even, odd = (first & _LOW) | ((second & _LOW) << _HALF), ((first & _HIGH) >> _HALF) | (second & _HIGH)
        out = np.empty((*first.shape, 1 + BLOCK // 2), np.uint8)
        out[..., 0] = self.scales[begin:end]
        for place, half in ((1, even), (2, odd)):
            out[..., place::2] = half.view(np.uint8).reshape(*first.shape, 8)
        return out.reshape(end - begin, -1)


def mxfp4(parts: Parts) -> Mxfp4Stack:
    blocks, scales = parts.array("blocks", "U8", 4), parts.array("scales", "U8", 3)
    experts, out, groups, size = blocks.shape
    if size != BLOCK // 2:
        raise parts.error("blocks", f"has shape {list(blocks.shape)}; a block must have {BLOCK // 2} bytes")
    if scales.shape != blocks.shape[:3]:
        raise parts.error("scales", f"has shape {list(scales.shape)}; its blocks ask for {list(blocks.shape[:3])}")
    if scales.max() == _NAN:
        raise parts.error("scales", f"holds a scale of {_NAN}, which is no number in E8M0; the limit is {_NAN - 1}")
    stacked = prod(blocks.shape[:2])
    return Mxfp4Stack(
        (experts, out, groups * BLOCK), blocks.reshape(stacked, groups, size), scales.reshape(stacked, groups)
    )
