"""A model from safetensors as the tensors and metadata of a GGUF file: names, order of rows and keys of llama.cpp's.

Nothing is kept that can't be read back: the draft's own metadata is read as a file's would be, and must describe the
same decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo.backends.ops import Floats, Ints, Weight
from octavo.formats.blocks import dequantize_rows, quantize, row_bytes
from octavo.formats.ggml_types import is_quantised
from octavo.formats.gguf_write import MetadataValue
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import MAX_INDEX_BYTES, read_json
from octavo.formats.tensor import Bytes, Later, Tensor, TensorType
from octavo.models.description import Description
from octavo.models.fields import Fields, MetadataError
from octavo.models.gguf_keys import gguf_keys, rope_factors
from octavo.models.load import LoadedModel, architecture_of, load_model
from octavo.models.names import Entry, Exact, Fused, Heads, Names, Stacked
from octavo.models.rope import Rope
from octavo.models.rotary_rows import stored_rows
from octavo.models.slots import WeightsError, slot_shapes
from octavo.models.spec import Attention, DecoderSpec, MoE

#: What the two descriptions of one model may differ in.
_OWN_WORDS = ("architecture", "interleaved")


@dataclass(slots=True)
class GgufDraft:
    """What to write. `metadata` has no tokenizer; `makers` give tensors in the order of the file.

    made_of: for each of those, the tensors of the folder that it is made of.
    """

    path: Path
    layers: int
    vocab: int
    release_stored: Callable[[str], None]
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    makers: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    made_of: dict[str, set[str]] = field(default_factory=dict)

    @property
    def names(self) -> Sequence[str]:
        return list(self.makers)

    def __contains__(self, name: str) -> bool:
        return name in self.makers

    def tensor(self, name: str) -> Tensor:
        return self.makers[name]()

    def release(self, name: str) -> None:
        """Give back the memory of what only this tensor was still to be made of. It can't be made again."""
        for stored in _only_for(name, self.made_of):
            self.release_stored(stored)
        self.made_of.pop(name, None)


def _only_for(name: str, made_of: dict[str, set[str]]) -> set[str]:
    """Of what a tensor is made of, what no other one is still to be made of."""
    return made_of.get(name, set()).difference(*(stored for other, stored in made_of.items() if other != name))


def draft_gguf(files: ModelFiles) -> GgufDraft:
    """Raises what load_model raises, and MetadataError for a model that can't be written."""
    loaded = load_model(files)
    config = read_json(files.path / "config.json", MAX_INDEX_BYTES)
    _, architecture = architecture_of(config)
    if not architecture.gguf:
        raise _cant(files, loaded)
    name, spec = architecture.gguf[0], loaded.spec
    draft = GgufDraft(files.path, len(spec.layers), spec.vocab, loaded.release)
    keys = gguf_keys(name, spec, Fields(config, "config.json"))
    draft.metadata = {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}
    # As a reader will see the keys: f32 for what is written so.
    seen = {
        key: float(np.float32(value)) if isinstance(value, float) else value for key, value in draft.metadata.items()
    }
    description = Description(name, Fields(seen, "GGUF metadata"), draft, in_gguf=True)
    names = architecture.names(description)
    tensors = _Tensors(loaded, names, files)
    draft.makers, draft.made_of = tensors.makers, tensors.made_of
    for factors in rope_factors(spec, Fields(config, "config.json")):
        draft.makers[factors.name] = partial(_itself, factors)
    try:
        read_back = architecture.spec(description)
    except MetadataError as error:
        raise _cant(files, loaded) from error
    if not _same(spec, read_back) or _computed_otherwise(spec):
        raise _cant(files, loaded)
    tensors.interleaved = [_interleaved(layer.mixer.rope) for layer in read_back.layers]
    return draft


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _computed_otherwise(spec: DecoderSpec) -> bool:
    """Whether others take the same metadata for something else: llama.cpp scores groups of experts by two of each."""
    mixtures = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, MoE)]
    return any(mixture.routing.groups > 1 and mixture.routing.group_score != "top2" for mixture in mixtures)


def _interleaved(rope: Rope | None) -> bool:
    return rope is not None and rope.interleaved


def _cant(files: ModelFiles, loaded: LoadedModel) -> MetadataError:
    return MetadataError(
        f"{files.path}: a {loaded.spec.architecture} with these settings can't be written as GGUF yet; convert it with "
        "llama.cpp's convert_hf_to_gguf.py and name the GGUF file here"
    )


def _same(one: Any, other: Any) -> bool:
    """Equal but for rounding to f32 and for how a file stores rows."""
    if is_dataclass(one):
        return type(one) is type(other) and all(
            _same(getattr(one, item.name), getattr(other, item.name))
            for item in fields(one)
            if item.name not in _OWN_WORDS
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=0)
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


class _Tensors:
    """How each tensor of the file is made of the model's slots.

    interleaved: for each layer, whether the file stores q and k for pairs (2i, 2i + 1).
    """

    def __init__(self, loaded: LoadedModel, names: Names, files: ModelFiles) -> None:
        self.interleaved = [False] * len(loaded.spec.layers)
        self.makers: dict[str, Callable[[], Tensor]] = {}
        self.made_of: dict[str, set[str]] = {}
        self._spec = loaded.spec
        self._weights = loaded.weights
        self._release = loaded.release
        self._shapes = slot_shapes(loaded.spec)
        made_of: dict[str, tuple[Entry, list[str]]] = {}
        for slot in self._shapes:
            entry = names.entry(slot)
            plain = isinstance(entry, (str, Exact, Stacked, Heads)) or (isinstance(entry, Fused) and not entry.per_head)
            if not plain or (isinstance(entry, Stacked) and (entry.transposed or entry.step != 1)):
                raise _cant(files, loaded)
            tensor = entry if isinstance(entry, str) else entry.tensor
            made_of.setdefault(tensor, (entry, []))[1].append(slot)
        for tensor, (entry, slots) in made_of.items():
            self.makers[tensor] = self._maker(tensor, entry, slots)
            matrices = self._weights.matrices
            self.made_of[tensor] = {matrices[slot].tensor.name for slot in slots if slot in matrices}

    def _maker(self, name: str, entry: Entry, slots: list[str]) -> Callable[[], Tensor]:
        if slots[0] in self._weights.vectors:
            return lambda: self._vector(name, entry, slots)
        return lambda: self._matrix(name, entry, slots)

    def _vector(self, name: str, entry: Entry, slots: list[str]) -> Tensor:
        parts = []
        for slot in slots:
            values, rows = self._weights.vectors[slot], self._stored_rows(slot)
            parts.append(values if rows is None else values[rows[: len(values)]])
        values = np.stack(parts) if isinstance(entry, Stacked) else np.concatenate(parts)
        if slots[0].endswith(("q_norm", "k_norm")):
            values = self._norm_of_heads(int(slots[0].split(".")[1]), values)
        return quantize(name, values, TensorType.F32)

    def _norm_of_heads(self, layer: int, values: Floats) -> Floats:
        """A norm of q or k: a row for each head, if each has its own weights."""
        mixer = self._spec.layers[layer].mixer
        own = isinstance(mixer, Attention) and mixer.qk_norm is not None and mixer.qk_norm.over == "own"
        return values.reshape(-1, mixer.head_dim) if own else values

    def _matrix(self, name: str, entry: Entry, slots: list[str]) -> Tensor:
        weights = [self._weights.matrices[slot] for slot in slots]
        type_, width = weights[0].tensor.type, weights[0].tensor.shape[-1]
        if any(weight.tensor.type is not type_ for weight in weights):
            found = ", ".join(sorted({weight.tensor.type.name for weight in weights}))
            raise WeightsError(f"what GGUF has as {name} is {found} here; all of it must have one type")
        if any(weight.tensor.order is not None for weight in weights):
            raise WeightsError(f"what GGUF has as {name} is in act-order here, which GGUF can't say")
        if isinstance(entry, Heads):
            return self._by_head(name, entry, slots[0])

        rows, size = sum(self._shapes[slot][0] for slot in slots), weights[0].tensor.row_bytes

        def make() -> Bytes:
            return self._joined(name, slots, rows, size)

        shape = (len(slots), rows // len(slots), width) if isinstance(entry, Stacked) else (rows, width)
        return Tensor(name, type_, shape, Later(rows, size, make))

    def _joined(self, name: str, slots: list[str], rows: int, size: int) -> Bytes:
        """uint8 [rows, size]: the slots' rows one after another. Of several, what was made for one is given back before
        the next is made."""
        weights = [self._weights.matrices[slot] for slot in slots]
        if len(slots) == 1:
            return _rows(weights[0], self._stored_rows(slots[0]))
        last = {weight.tensor.name: index for index, weight in enumerate(weights)}
        own, out, begin = _only_for(name, self.made_of), np.empty((rows, size), np.uint8), 0
        for index, (slot, weight) in enumerate(zip(slots, weights, strict=True)):
            end = begin + self._shapes[slot][0]
            out[begin:end] = _rows(weight, self._stored_rows(slot))
            begin = end
            if last[weight.tensor.name] == index and weight.tensor.name in own:
                self._release(weight.tensor.name)
        return out

    def _by_head(self, name: str, entry: Heads, slot: str) -> Tensor:
        """A transposed one is float32 from then on if it was quantised."""
        weight, (rows, width) = self._weights.matrices[slot], self._shapes[slot]
        heads, type_ = self._spec.layers[int(slot.split(".")[1])].mixer.heads, weight.tensor.type
        own = rows // heads
        if not entry.transposed:
            later = Later(rows, weight.tensor.row_bytes, lambda: _rows(weight, None))
            return Tensor(name, type_, (heads, own, width), later)
        kept = not is_quantised(type_)
        element_bytes = row_bytes(type_, 1) if kept else 4

        def make() -> Bytes:
            data = np.ascontiguousarray(_rows(weight, None))
            values = data.view(f"u{element_bytes}") if kept else dequantize_rows(type_, data)
            turned = np.ascontiguousarray(values.reshape(heads, own, width).swapaxes(1, 2))
            return turned.view(np.uint8).reshape(heads * width, -1)

        later = Later(heads * width, own * element_bytes, make)
        return Tensor(name, type_ if kept else TensorType.F32, (heads, width, own), later)

    def _stored_rows(self, slot: str) -> Ints | None:
        """Which of the slot's rows each stored row is; None: in order. The inverse of rotary_rows.unpermute_rotary."""
        if not slot.startswith("layers."):
            return None
        kind, index = slot.removesuffix(".bias").removesuffix("_norm").rsplit(".", 1)[-1], int(slot.split(".")[1])
        rows = stored_rows(self._spec.layers[index].mixer, kind, self.interleaved[index])
        return None if rows is None else np.argsort(rows).astype(np.int32)


def _rows(weight: Weight, order: Ints | None) -> Bytes:
    """uint8 [rows, row_bytes]: the slot's rows in this order."""
    data = weight.tensor.data
    if weight.row_index is not None:
        return data[weight.row_index if order is None else weight.row_index[order]]
    return data if order is None else data[order]
