"""A model with its matrices in another format, as a GGUF file: what `octavo quantize` writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np

from octavo.formats.blocks import dequantize_rows, quantize, row_bytes
from octavo.formats.errors import ModelFileError
from octavo.formats.ggml_types import BY_TENSOR_TYPE, is_quantised
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import Check, MetadataValue, write_gguf
from octavo.formats.tensor import Bytes, Later, Tensor, TensorType

#: A mix has one format for most matrices and better ones for those that need it.
Mix = Literal["Q8_0", "Q4_0", "Q4_K_M"]
MIXES: tuple[Mix, ...] = get_args(Mix)

#: general.file_type, as llama.cpp numbers its mixes (llama.h, llama_ftype).
_FILE_TYPES: Mapping[Mix, int] = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
_QUANTIZATION_VERSION = 2

#: Few numbers that a lot depends on: routers of experts, learned positions, norms with a row for each head.
_KEPT = re.compile(r"ffn_gate_inp|position_embd|token_types|_norm\.weight")
#: Rows are encoded so many elements at a time.
_CHUNK_ELEMENTS = 1 << 22

Progress = Callable[[str, int, int], None]


class Source(Protocol):
    """A model under GGUF's names (GgufSource, models.gguf_draft.GgufDraft). `metadata` is what the new file gets."""

    path: Path
    layers: int
    metadata: dict[str, MetadataValue]

    @property
    def names(self) -> Sequence[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor: ...

    def release(self, name: str) -> None: ...


class GgufSource:
    """A GGUF file: its own metadata but for what says how it was split."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self.layers = file.metadata.integer(f"{file.metadata.string('general.architecture')}.block_count")
        dropped = ("split.", "general.alignment")
        self.metadata: dict[str, MetadataValue] = {
            key: file.metadata.encoded(key) for key in file.metadata if not key.startswith(dropped)
        }
        self.names: Sequence[str] = file.names
        self.tensor = file.tensor
        self.release = file.release

    def __contains__(self, name: str) -> bool:
        return name in self.names


@dataclass(slots=True)
class FormatError:
    """What rounding did to all tensors of one format. error: root mean square, relative to the values' own."""

    tensors: int = 0
    nbytes: int = 0
    squared_error: float = 0.0
    squared: float = 0.0

    @property
    def error(self) -> float:
        return float(np.sqrt(self.squared_error / self.squared)) if self.squared else 0.0


@dataclass(slots=True)
class Report:
    """By format; those that were not rounded have no error. source_nbytes: of all tensors before."""

    source_nbytes: int = 0
    formats: dict[TensorType, FormatError] = field(default_factory=dict)


def requantize(
    source: Source,
    target: Path,
    mix: Mix,
    again: bool = False,
    progress: Progress | None = None,
    check: Check | None = None,
) -> Report:
    """Write `source` to `target` with its matrices in `mix`; vectors and metadata are kept.

    again: also round matrices that were rounded before. check: as write_gguf has it. Raises ModelFileError for a model
    that holds such ones without `again`, or nothing to quantise.
    """
    stored = [source.tensor(name) for name in source.names]
    chosen = [(tensor, _chosen(source, tensor, mix)) for tensor in stored]
    before = {tensor.type for tensor, type_ in chosen if type_ is not None}
    if not before:
        raise ModelFileError(source.path, f"holds no matrix that {mix} would change")
    if any(is_quantised(type_) for type_ in before) and not again:
        names = ", ".join(sorted(type_.name for type_ in before if is_quantised(type_)))
        raise ModelFileError(
            source.path, f"is quantised already ({names}); rounding it again loses more, --again does it all the same"
        )
    encoding = _Encoding(source, sum(tensor.nbytes for tensor in stored), progress)
    write_gguf(target, {**source.metadata, **_of_mix(mix)}, [encoding.tensor(*one) for one in chosen], check)
    return encoding.report


def _chosen(source: Source, tensor: Tensor, mix: Mix) -> TensorType | None:
    """The format that a tensor gets, or None: as it is."""
    if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or _KEPT.search(tensor.name):
        return None
    wanted = _fitting(_wanted(source, tensor.name, mix), tensor.shape[-1])
    return None if wanted is tensor.type else wanted


def _wanted(source: Source, name: str, mix: Mix) -> TensorType:
    """llama.cpp's rules (llama_tensor_get_type): the head and, in Q4_K_M, half of v and down get more bits."""
    if mix == "Q8_0":
        return TensorType.Q8_0
    head = "output.weight" if "output.weight" in source else "token_embd.weight"
    if name == head:
        return TensorType.Q6_K
    if mix == "Q4_0":
        return TensorType.Q4_0
    if name.endswith("attn_qkv.weight"):
        return TensorType.Q5_K
    layer = re.fullmatch(r"blk\.(\d+)\.(?:attn_v|ffn_down)(?:_exps)?\.weight", name)
    return TensorType.Q6_K if layer is not None and _gets_more(int(layer[1]), source.layers) else TensorType.Q4_K


def _gets_more(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _fitting(wanted: TensorType, width: int) -> TensorType:
    """The format, or the nearest one with blocks that the width divides into."""
    instead = {
        TensorType.Q4_K: TensorType.Q5_0,
        TensorType.Q5_K: TensorType.Q5_1,
        TensorType.Q6_K: TensorType.Q8_0,
    }
    if width % BY_TENSOR_TYPE[wanted].block_elements == 0:
        return wanted
    smaller = instead.get(wanted, TensorType.F16)
    return smaller if width % BY_TENSOR_TYPE[smaller].block_elements == 0 else TensorType.F16


def _of_mix(mix: Mix) -> dict[str, MetadataValue]:
    return {
        "general.file_type": np.uint32(_FILE_TYPES[mix]),
        "general.quantization_version": np.uint32(_QUANTIZATION_VERSION),
    }


class _Encoding:
    """Makes one tensor at a time, and adds up what rounding does."""

    def __init__(self, source: Source, total_bytes: int, progress: Progress | None) -> None:
        self.report = Report(source_nbytes=total_bytes)
        self._source = source
        self._progress = progress
        self._done_bytes = 0

    def tensor(self, stored: Tensor, type_: TensorType | None) -> Tensor:
        """The same as it will be: made when it is written."""
        size = stored.row_bytes if type_ is None else row_bytes(type_, stored.shape[-1])
        later = Later(prod(stored.shape[:-1]), size, lambda: self._make(stored, type_))
        return Tensor(stored.name, type_ or stored.type, stored.shape, later)

    def _make(self, stored: Tensor, type_: TensorType | None) -> Bytes:
        of_format = self.report.formats.setdefault(type_ or stored.type, FormatError())
        # A copy: what the source releases may be gone before the file is written.
        data = np.array(stored.data) if type_ is None else self._encoded(stored, type_, of_format)
        of_format.tensors += 1
        of_format.nbytes += data.nbytes
        self._source.release(stored.name)
        self._done_bytes += stored.nbytes
        if self._progress is not None:
            self._progress("quantising", self._done_bytes, self.report.source_nbytes)
        return data

    def _encoded(self, stored: Tensor, type_: TensorType, of_format: FormatError) -> Bytes:
        rows, width = prod(stored.shape[:-1]), stored.shape[-1]
        data = stored.data.reshape(rows, -1)
        out = np.empty((rows, row_bytes(type_, width)), np.uint8)
        step = max(1, _CHUNK_ELEMENTS // width)
        for begin in range(0, rows, step):
            values = dequantize_rows(stored.type, data[begin : begin + step])
            if not np.isfinite(values).all():
                raise ModelFileError(self._source.path, f"tensor {stored.name} holds a number that is not finite")
            out[begin : begin + step] = quantize(stored.name, values, type_).data
            error = dequantize_rows(type_, out[begin : begin + step]) - values
            of_format.squared_error += float(np.vdot(error, error))
            of_format.squared += float(np.vdot(values, values))
        return out
