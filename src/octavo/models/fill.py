"""Filling a spec's slots from a file's tensors: every slot gets its values, and every tensor is used or known."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Floats, Ints, Weight
from octavo.formats.blocks import dequantize
from octavo.formats.tensor import Bytes, Later, Tensor, TensorType
from octavo.models.names import Entry, Fused, Heads, Names, Pieces, Stacked
from octavo.models.rotary_rows import unpermute_rotary
from octavo.models.slots import TensorFile, Weights, WeightsError, is_norm, slot_shapes
from octavo.models.spec import DecoderSpec, MoE

_ELEMENT_BYTES = {TensorType.F32: 4, TensorType.F16: 2, TensorType.BF16: 2}


def fill(spec: DecoderSpec, file: TensorFile, names: Names) -> Weights:
    """Every slot of `spec` from the file's tensors; rows of q and k in the order of pairs (i, i + rotary_dim / 2).

    Raises WeightsError, and ModelFileError for a tensor's type.
    """
    filling = _Filling(spec, file, names)
    filling.check_names()
    weights = Weights({}, {})
    for slot, shape in filling.shapes.items():
        if len(shape) == 1:
            weights.vectors[slot] = filling.vector(slot)
        else:
            weights.matrices[slot] = filling.matrix(slot)
    unpermute_rotary(spec, weights)
    return weights


class _Filling:
    """The slots of one model, and where the file has them."""

    def __init__(self, spec: DecoderSpec, file: TensorFile, names: Names) -> None:
        self.shapes = slot_shapes(spec)
        self._spec = spec
        self._file = file
        self._names = names
        self._entries = {slot: names.entry(slot) for slot in self.shapes}

    def check_names(self) -> None:
        """Every slot has its tensors, and no tensor is left over."""
        wanted = {name: None for entry in self._entries.values() for name in _tensors(entry)}
        missing = [name for name in wanted if name not in self._file]
        what = self._spec.architecture
        if missing:
            raise WeightsError(f"the model file lacks {_listed(missing)}; is it complete, and a {what}?")
        left_over = [n for n in self._file.names if n not in wanted and not n.endswith(self._names.ignored)]
        left_over = [name for name in left_over if not self._adds_nothing(name, wanted)]
        if left_over:
            raise WeightsError(
                f"the model file holds {_listed(left_over)}, which a {what} model does not use; "
                "running without would give wrong text"
            )

    def _adds_nothing(self, name: str, wanted: Container[str]) -> bool:
        """A bias of zeros where the model has none: GPTQ's first writers gave one to every matrix."""
        module, ending = name[: -len("bias")], name[-len(".bias") :]
        return ending == ".bias" and f"{module}weight" in wanted and not dequantize(self._file.tensor(name)).any()

    def vector(self, slot: str) -> Floats:
        entry, (count,) = self._entries[slot], self.shapes[slot]
        match entry:
            case Pieces():
                part = count // entry.count
                values = np.concatenate([self._vector(name, part, slot) for name in _tensors(entry)])
            case Stacked():
                experts = self._experts(slot)
                stack = self._vector(entry.tensor, experts * count * entry.step, slot).reshape(experts, -1)
                values = stack[entry.index, entry.first :: entry.step]
            case Fused():
                values = self._vector(entry.tensor, self._fused_rows(slot, entry), slot)[self._rows(slot, entry)]
            case _:
                values = self._vector(_tensors(entry)[0], count, slot)
        if self._names.norm_offset and is_norm(slot):
            values = values + np.float32(self._names.norm_offset)
        return np.ascontiguousarray(values, np.float32)

    def matrix(self, slot: str) -> Weight:
        entry, (rows, width) = self._entries[slot], self.shapes[slot]
        match entry:
            case Fused():
                return self._fused(entry, rows, width, slot)
            case Stacked():
                return self._expert(entry, rows, width, slot)
            case Heads():
                return Weight(self._heads(entry, rows, width, slot))
            case _:
                return Weight(self._tensor(_tensors(entry)[0], (rows, width), slot))

    def _fused(self, entry: Fused, rows: int, width: int, slot: str) -> Weight:
        shape, chosen = (self._fused_rows(slot, entry), width), self._rows(slot, entry)
        if entry.per_head:
            return Weight(self._tensor(entry.tensor, shape, slot), chosen)
        begin = int(chosen[0])
        return Weight(self._tensor(entry.tensor, shape, slot, slice(begin, begin + rows)))

    def _vector(self, name: str, count: int, slot: str) -> Floats:
        tensor = self._file.tensor(name)
        self._check(tensor, (prod(tensor.shape),), (count,), slot)  # some are [heads, head_dim]
        return dequantize(tensor).reshape(count)

    def _tensor(self, name: str, shape: tuple[int, int], slot: str, chosen: slice | None = None) -> Tensor:
        """The tensor of that shape, or the chosen of its rows."""
        tensor = self._file.tensor(name)
        if self._names.transposed and slot.startswith("layers."):
            self._check(tensor, tensor.shape, shape[::-1], slot)
            return _transposed(tensor, chosen or slice(None))
        self._check(tensor, tensor.shape, shape, slot)
        return tensor.some_rows(chosen, (chosen.stop - chosen.start, shape[1])) if chosen else tensor

    def _experts(self, slot: str) -> int:
        ffn = self._spec.layers[int(slot.split(".")[1])].ffn
        assert isinstance(ffn, MoE), "only experts are stacked"
        return ffn.routing.experts

    def _expert(self, entry: Stacked, rows: int, width: int, slot: str) -> Weight:
        """One expert's matrix out of the tensor of all."""
        tensor, stored = self._file.tensor(entry.tensor), rows * entry.step
        # The inputs that share a scale lie side by side, so that a quantised stack is [experts, out, in] anyway.
        transposed = entry.transposed and tensor.type in _ELEMENT_BYTES
        shape = (width, stored) if transposed else (stored, width)
        self._check(tensor, tensor.shape, (self._experts(slot), *shape), slot)
        one = tensor.some_rows(slice(entry.index * shape[0], (entry.index + 1) * shape[0]), shape)
        if transposed:
            return Weight(_transposed(one, slice(entry.first, None, entry.step)))
        return Weight(one, np.arange(entry.first, stored, entry.step, dtype=np.int32) if entry.step > 1 else None)

    def _heads(self, entry: Heads, rows: int, width: int, slot: str) -> Tensor:
        """A matrix kept head by head. A transposed one is float32 from then on if it was quantised."""
        tensor, heads = self._file.tensor(entry.tensor), self._spec.layers[int(slot.split(".")[1])].mixer.heads
        own = rows // heads
        self._check(tensor, tensor.shape, (heads, width, own) if entry.transposed else (heads, own, width), slot)
        return _turned_heads(tensor) if entry.transposed else replace(tensor, shape=(rows, width))

    def _check(self, tensor: Tensor, stored: tuple[int, ...], shape: tuple[int, ...], slot: str) -> None:
        if stored != shape:
            raise WeightsError(
                f"tensor {tensor.name} has shape {tensor.shape}; the model's metadata asks for {shape} (slot {slot})"
            )

    def _siblings(self, slot: str, entry: Fused) -> list[str]:
        """The slots that share a tensor with this one, in its order."""
        prefix = slot.removesuffix(".bias").rsplit(".", 1)[0]
        bias = ".bias" if slot.endswith(".bias") else ""
        return [f"{prefix}.{name}{bias}" for name in entry.slots]

    def _fused_rows(self, slot: str, entry: Fused) -> int:
        return sum(self.shapes[other][0] for other in self._siblings(slot, entry))

    def _rows(self, slot: str, entry: Fused) -> Ints:
        """int32 [rows of the slot]: where they stand in the fused tensor."""
        siblings = self._siblings(slot, entry)
        sizes = [self.shapes[other][0] for other in siblings]
        before, size = sum(sizes[: siblings.index(slot)]), self.shapes[slot][0]
        if not entry.per_head:
            return np.arange(before, before + size, dtype=np.int32)
        heads = self._spec.layers[int(slot.split(".")[1])].mixer.heads
        begin, own = before // heads, size // heads
        rows = np.arange(heads)[:, None] * (sum(sizes) // heads) + np.arange(begin, begin + own)
        return rows.reshape(-1).astype(np.int32)


def _tensors(entry: Entry) -> list[str]:
    if isinstance(entry, Pieces):
        return [entry.tensor.format(index) for index in range(entry.count)]
    return [entry if isinstance(entry, str) else entry.tensor]


def _transposed(tensor: Tensor, chosen: slice) -> Tensor:
    """Of a matrix stored as [in, out] the chosen outputs, as [outputs, in]: made when it is asked for."""
    if tensor.type not in _ELEMENT_BYTES:
        raise WeightsError(f"tensor {tensor.name} is {tensor.type.name} and stored as [in, out]; only floats can be so")
    width, outputs, size = tensor.shape[0], range(tensor.shape[1])[chosen], _ELEMENT_BYTES[tensor.type]

    def make() -> Bytes:
        return np.ascontiguousarray(_elements(tensor)[:, chosen].T).view(np.uint8)

    def sample(row: int, count: int) -> bytes:
        before = outputs[row] * size  # of the first input's weights, those for other outputs
        return tensor.sample(before + count)[before:]

    later = Later(len(outputs), width * size, make, sample)
    return replace(tensor, shape=(len(outputs), width), stored=later)


def _turned_heads(tensor: Tensor) -> Tensor:
    """[heads, in, out] as [heads * out, in], made when it is asked for; in float32 if it is quantised."""
    heads, width, own = tensor.shape
    kept = tensor.type in _ELEMENT_BYTES
    type_ = tensor.type if kept else TensorType.F32

    def make() -> Bytes:
        values = _elements(tensor).reshape(tensor.shape) if kept else dequantize(tensor)
        return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(heads * own, width).view(np.uint8)

    def sample(row: int, count: int) -> bytes:
        head = row // own
        return tensor.some_rows(slice(head * width, None), (heads - head, width, own)).sample(count)

    later = Later(heads * own, width * _ELEMENT_BYTES[type_], make, sample)
    return Tensor(tensor.name, type_, (heads * own, width), later)


def _elements(tensor: Tensor) -> npt.NDArray[np.unsignedinteger]:
    """[rows, elements]: the bits of a float tensor's elements."""
    return np.ascontiguousarray(tensor.data).view(f"u{_ELEMENT_BYTES[tensor.type]}")


def _listed(names: list[str]) -> str:
    """Up to four names and how many more."""
    shown = ", ".join(names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"
