"""The page pool's memory in numpy: K and V of every token, kept exactly as stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octavo.backends.kv_types import KV_TYPES
from octavo.backends.ops import Floats, Ints, KvSpec, UnsupportedError
from octavo.formats.blocks import bf16_to_f32, f32_to_bf16

#: What a number is kept as; bf16 as its bits.
_STORED: Mapping[str, type[np.generic]] = {"f32": np.float32, "bf16": np.uint16, "f16": np.float16, "int8": np.int8}

#: A part of a head whose magnitudes are all below this has the scale 0.
_LEAST_MAGNITUDE = np.float32(1e-30)


def quantise_heads(heads: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint16]]:
    """float32 [..., head_dim] -> int8 [..., head_dim] and bf16 bits [..., parts] of the scales that they count.

    For each part (kv_types.py): scale = bf16(greatest magnitude / 127), number = round to nearest even(x * (1 /
    scale)). A part that holds a NaN or an infinity has the scale NaN, so that attention shows it, and zeros.
    """
    *others, head_dim = heads.shape
    width, count = KV_TYPES["int8"].scale_numbers, KV_TYPES["int8"].head_scales(head_dim)
    padded = np.zeros((*others, count * width), np.float32)
    padded[..., :head_dim] = heads
    parts = padded.reshape(*others, count, width)
    greatest = np.abs(parts).max(axis=-1)
    finite = np.isfinite(greatest)
    ordinary = finite & (greatest >= _LEAST_MAGNITUDE)
    scales = f32_to_bf16(np.where(ordinary, greatest, np.float32(1)) / np.float32(127))
    inverse = np.where(ordinary, np.float32(1) / bf16_to_f32(scales), np.float32(0))
    numbers = np.rint(np.where(ordinary[..., None], parts, np.float32(0)) * inverse[..., None]).astype(np.int8)
    unusual = f32_to_bf16(np.where(finite, np.float32(0), np.float32(np.nan)))
    return numbers.reshape(padded.shape)[..., :head_dim], np.where(ordinary, scales, unusual)


def scaled_heads(numbers: npt.NDArray[np.int8], scales: npt.NDArray[np.uint16]) -> Floats:
    """What `quantise_heads` has made, as float32 [..., head_dim]."""
    of_numbers = np.repeat(bf16_to_f32(scales), KV_TYPES["int8"].scale_numbers, axis=-1)[..., : numbers.shape[-1]]
    return numbers * of_numbers


class KvMemory:
    """[num_pages, layers, K|V, page_size, kv_heads, head_dim] of numbers as stored, and [..., parts] for head_dim
    of bf16 scales, which only int8 has; zero at first. Raises UnsupportedError for another type."""

    def __init__(self, spec: KvSpec, num_pages: int) -> None:
        if spec.dtype not in _STORED:
            raise UnsupportedError(f"the KV type is {spec.dtype!r}; supported are {', '.join(_STORED)}.")
        self._spec = spec
        shape = (num_pages, spec.layers, 2, spec.page_size, spec.kv_heads)
        self._memory = np.zeros((*shape, spec.head_dim), _STORED[spec.dtype])
        self._scales = np.zeros((*shape, KV_TYPES[spec.dtype].head_scales(spec.head_dim)), np.uint16)

    def store(self, layer: int, pages: Ints, offsets: Ints, k: Floats, v: Floats) -> None:
        """Write token i into slot offsets[i] of page pages[i]; k and v float32 [T, kv_heads, head_dim]."""
        for plane, values in enumerate((k, v)):
            at = (pages, layer, plane, offsets)
            if self._spec.dtype == "int8":
                self._memory[at], self._scales[at] = quantise_heads(values)
            elif self._spec.dtype == "bf16":
                self._memory[at] = f32_to_bf16(values)
            else:
                with np.errstate(over="ignore"):  # beyond f16: infinite
                    self._memory[at] = values.astype(self._memory.dtype)

    def load(self, layer: int, blocks: Ints, tokens: int) -> tuple[Floats, Floats]:
        """K and V float32 [tokens, kv_heads, head_dim] of a sequence whose block table starts with `blocks`."""
        stored = self._memory[blocks, layer]
        if self._spec.dtype == "int8":
            values = scaled_heads(stored, self._scales[blocks, layer])
        else:
            values = bf16_to_f32(stored) if self._spec.dtype == "bf16" else stored.astype(np.float32)
        shape = (-1, self._spec.kv_heads, self._spec.head_dim)
        k, v = (values[:, plane].reshape(shape)[:tokens] for plane in (0, 1))
        return k, v

    def copy(self, pairs: Ints) -> None:
        """pairs int32 [C, 2]: copy page pairs[i, 0] to page pairs[i, 1], in order."""
        for source, target in pairs:
            self._memory[target] = self._memory[source]
            self._scales[target] = self._scales[source]
