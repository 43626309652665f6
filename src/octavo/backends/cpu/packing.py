"""Which activation type each matrix is multiplied in, and packing it for the kernels.

Activation types (`--activations`): auto multiplies quantised weights in int8, bf16 weights in bf16 on levels that have
it, everything else in f32. A named type holds for every matrix; one that can't be multiplied in it is an error. With
bf16, activations are rounded to it for every matrix; but only bf16 weights have products in it, others have theirs in
f32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from octavo import _native
from octavo.backends.ops import Projection, UnsupportedError, Weight
from octavo.formats.ggml_types import is_quantised
from octavo.formats.tensor import TensorType

#: Values of csrc/kernels.h ActivationKind.
KINDS = {"f32": 0, "bf16": 1, "int8": 2}
BF16_AS_F32 = 3
_BF16_LEVEL = "avx512_bf16"


def outputs_of(weight: Weight) -> int:
    """Output columns of a matrix."""
    return weight.tensor.shape[0] if weight.row_index is None else len(weight.row_index)


class ActivationKinds:
    """Which activation type a matrix is multiplied in."""

    def __init__(self, activations: str, level: str) -> None:
        self._activations = activations
        self._has_bf16 = level == _BF16_LEVEL

    def of(self, weight: Weight) -> int:
        stored = weight.tensor.type
        if self._activations == "bf16" and stored != TensorType.BF16:
            return BF16_AS_F32
        if self._activations != "auto":
            return KINDS[self._activations]
        if is_quantised(stored):
            return KINDS["int8"]
        return KINDS["bf16"] if stored == TensorType.BF16 and self._has_bf16 else KINDS["f32"]

    def of_all(self, projections: tuple[Projection, ...]) -> list[int]:
        """The types among these projections, ascending."""
        return sorted({self.of(projection.weight) for projection in projections})


class Packer:
    """Packs each matrix once, and tells how far it is."""

    def __init__(
        self,
        native: _native.Plan,
        kinds: ActivationKinds,
        weights: list[Weight],
        progress: Callable[[float], None] | None,
        release: Callable[[str], None] | None,
    ) -> None:
        self._native = native
        self._kinds = kinds
        self._progress = progress
        self._release = release
        self._handles: dict[tuple[int, int], int] = {}
        different = {self._key(weight): weight.tensor for weight in weights}
        self._total_bytes = sum(tensor.nbytes for tensor in different.values())
        self._unpacked = Counter(tensor.name for tensor in different.values())
        self._packed_bytes = 0

    def handle(self, weight: Weight) -> int:
        """The native handle of a matrix, packed now unless it is already."""
        key = self._key(weight)
        if key not in self._handles:
            self._handles[key] = self._pack(weight)
        return self._handles[key]

    def _pack(self, weight: Weight) -> int:
        tensor, kind = weight.tensor, self._kinds.of(weight)
        if tensor.order is not None:
            raise UnsupportedError(
                f"tensor {tensor.name!r} has its columns in the order of activations (act-order); supported are "
                "projections of plain layers, not experts, embeddings and heads"
            )
        data = np.ascontiguousarray(tensor.data)  # outside of the try: a damaged file's error is a ValueError, too
        try:
            handle = self._native.add_weight(
                format=int(tensor.type),
                activation=kind,
                n=outputs_of(weight),
                k=tensor.shape[1],
                data=data,
                row_index=weight.row_index,
            )
        except ValueError as error:
            name = next(name for name, value in KINDS.items() if value == kind)
            raise UnsupportedError(
                f"tensor {tensor.name!r} ({tensor.type.name}, shape {tensor.shape}) with activations {name}: {error}"
            ) from None
        self._packed_bytes += tensor.nbytes
        self._unpacked[tensor.name] -= 1  # a fused tensor is packed once for each of its slots
        if self._release is not None and not self._unpacked[tensor.name]:
            self._release(tensor.name)
        if self._progress is not None:
            self._progress(self._packed_bytes / self._total_bytes)
        return handle

    @staticmethod
    def _key(weight: Weight) -> tuple[int, int]:
        """Equal for the same stored bytes in the same row order."""
        index = weight.row_index
        return weight.tensor.place, 0 if index is None else index.ctypes.data
