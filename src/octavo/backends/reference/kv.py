"""The page pool's memory in numpy: K and V of every token, kept exactly as stored."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import Floats, Ints, KvSpec
from octavo.formats.blocks import bf16_to_f32, f32_to_bf16


class KvMemory:
    """[num_pages, layers, K|V, page_size, kv_heads, head_dim] of float32, or of bf16 bits in uint16; zero at first."""

    def __init__(self, spec: KvSpec, num_pages: int) -> None:
        self._spec = spec
        shape = (num_pages, spec.layers, 2, spec.page_size, spec.kv_heads, spec.head_dim)
        self._memory = np.zeros(shape, np.float32 if spec.dtype == "f32" else np.uint16)

    def store(self, layer: int, pages: Ints, offsets: Ints, k: Floats, v: Floats) -> None:
        """Write token i into slot offsets[i] of page pages[i]; k and v float32 [T, kv_heads, head_dim]."""
        for plane, values in enumerate((k, v)):
            self._memory[pages, layer, plane, offsets] = values if self._spec.dtype == "f32" else f32_to_bf16(values)

    def load(self, layer: int, blocks: Ints, tokens: int) -> tuple[Floats, Floats]:
        """K and V float32 [tokens, kv_heads, head_dim] of a sequence whose block table starts with `blocks`."""
        stored = self._memory[blocks, layer]
        values = stored if self._spec.dtype == "f32" else bf16_to_f32(stored)
        shape = (-1, self._spec.kv_heads, self._spec.head_dim)
        k, v = (values[:, plane].reshape(shape)[:tokens] for plane in (0, 1))
        return k, v

    def copy(self, pairs: Ints) -> None:
        """pairs int32 [C, 2]: copy page pairs[i, 0] to page pairs[i, 1], in order."""
        for source, target in pairs:
            self._memory[target] = self._memory[source]
