"""The types that K and V can be stored in: one table for sizes, backends and cost models.

int8: each token's K, and V, of one head is cut into parts of 64 numbers, the last of which may have fewer. A part is
rounded to multiples of a scale of its own, bf16(greatest magnitude / 127), which lies beside it. Nothing but the part's
own numbers decides how they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

KvDtype = Literal["f32", "bf16", "f16", "int8"]


@dataclass(frozen=True, slots=True)
class KvType:
    """Bytes of one number, and of the scale that each `scale_numbers` numbers of a head share (0: there are none)."""

    element_bytes: int
    scale_bytes: int = 0
    scale_numbers: int = 0

    def head_scales(self, head_dim: int) -> int:
        """Scales beside K, or V, of one token and head."""
        return -(-head_dim // self.scale_numbers) if self.scale_numbers else 0

    def head_bytes(self, head_dim: int) -> int:
        """K, or V, of one token and head."""
        return head_dim * self.element_bytes + self.head_scales(head_dim) * self.scale_bytes


#: As csrc/kernels.h has them (kKvTypes).
KV_TYPES: Mapping[str, KvType] = {"f32": KvType(4), "bf16": KvType(2), "f16": KvType(2), "int8": KvType(1, 2, 64)}
