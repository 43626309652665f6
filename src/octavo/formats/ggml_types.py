"""GGML's tensor types: the ids that GGUF files use, and how many bytes a block takes."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.formats.tensor import TensorType


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A block of `block_elements` consecutive elements of a row takes `block_bytes` bytes."""

    id: int
    name: str
    block_elements: int
    block_bytes: int


_TABLE = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
)

GGML_TYPES: dict[int, GgmlType] = {type_.id: type_ for type_ in _TABLE}

# Every TensorType has GGML's own name and block.
BY_TENSOR_TYPE: dict[TensorType, GgmlType] = {TensorType[t.name]: t for t in _TABLE if t.name in TensorType.__members__}


def is_quantised(type_: TensorType) -> bool:
    """Whether elements share scales in blocks."""
    return BY_TENSOR_TYPE[type_].block_elements > 1


def tensor_type(ggml: GgmlType) -> TensorType | None:
    """The type Octavo computes with, or None if it can't yet."""
    return TensorType.__members__.get(ggml.name)
