"""A model from safetensors as the tensors and metadata of a GGUF file: names, order of rows and keys of llama.cpp's.

Nothing is kept that can't be read back: the draft's own metadata is read as a file's would be, and must describe the
same decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.backends.ops import Floats, Ints, Weight
from octavo.formats.blocks import quantize
from octavo.formats.gguf_write import MetadataValue
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import MAX_INDEX_BYTES, read_json
from octavo.formats.tensor import Bytes, Later, Tensor, TensorType
from octavo.models.description import Description
from octavo.models.fields import Fields, MetadataError
from octavo.models.load import LoadedModel, architecture_of, load_model
from octavo.models.names import Entry, Exact, Fused, Names, Stacked
from octavo.models.rope import Rope, base_frequencies
from octavo.models.rope_fields import THETA
from octavo.models.rotary_rows import half_order
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
        needed = set().union(*(stored for other, stored in self.made_of.items() if other != name))
        for stored in self.made_of.pop(name, set()) - needed:
            self.release_stored(stored)


def draft_gguf(files: ModelFiles) -> GgufDraft:
    """Raises what load_model raises, and MetadataError for a model that can't be written."""
    loaded = load_model(files)
    config = read_json(files.path / "config.json", MAX_INDEX_BYTES)
    _, architecture = architecture_of(config)
    if not architecture.gguf:
        raise _cant(files, loaded)
    name, spec = architecture.gguf[0], loaded.spec
    draft = GgufDraft(files.path, len(spec.layers), spec.vocab, loaded.release)
    keys = _keys(name, spec, Fields(config, "config.json"))
    draft.metadata = {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}
    # As a reader will see the keys: f32 for what is written so.
    seen = {
        key: float(np.float32(value)) if isinstance(value, float) else value for key, value in draft.metadata.items()
    }
    description = Description(name, Fields(seen, "GGUF metadata"), draft, in_gguf=True)
    names = architecture.names(description)
    tensors = _Tensors(loaded, names, files)
    draft.makers, draft.made_of = tensors.makers, tensors.made_of
    if (factors := _rope_factors(spec, Fields(config, "config.json"))) is not None:
        freqs = quantize("rope_freqs.weight", factors, TensorType.F32)
        draft.makers["rope_freqs.weight"] = lambda: freqs
    try:
        read_back = architecture.spec(description)
    except MetadataError as error:
        raise _cant(files, loaded) from error
    if not _same(spec, read_back):
        raise _cant(files, loaded)
    tensors.interleaved = [_interleaved(layer.mixer.rope) for layer in read_back.layers]
    return draft


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


# ------------------------------------------------------------------------------------------------------------- metadata


def _keys(name: str, spec: DecoderSpec, config: Fields) -> dict[str, MetadataValue]:
    """Keys without the architecture before them."""
    layer = spec.layers[0]
    mixer = layer.mixer
    keys: dict[str, MetadataValue] = {
        "block_count": len(spec.layers),
        "context_length": spec.context,
        "embedding_length": spec.hidden,
        "feed_forward_length": layer.ffn.hidden,
        "vocab_size": spec.vocab,
        "attention.head_count": mixer.heads,
        "attention.head_count_kv": mixer.kv_heads,
        "attention.key_length": mixer.head_dim,
        "attention.value_length": mixer.head_dim,
        f"attention.layer_norm_{'rms_' if layer.norm.kind == 'rms' else ''}epsilon": float(layer.norm.eps),
    }
    if isinstance(layer.ffn, MoE):
        keys["expert_count"], keys["expert_used_count"] = layer.ffn.routing.experts, layer.ffn.routing.used
        keys["expert_feed_forward_length"] = layer.ffn.hidden
    if isinstance(mixer, Attention):
        windows = {one.mixer.window for one in spec.layers if isinstance(one.mixer, Attention)} - {0}
        if windows:
            keys["attention.sliding_window"] = max(windows)
        if mixer.softcap:
            keys["attn_logit_softcapping"] = float(mixer.softcap)
    if spec.logit_softcap:
        keys["final_logit_softcapping"] = float(spec.logit_softcap)
    if name == "granite":
        keys["attention.scale"], keys["embedding_scale"] = float(mixer.scale), float(spec.embedding_scale)
        keys["residual_scale"], keys["logit_scale"] = float(layer.residual_scale), 1.0 / spec.logit_scale
    if name in ("command-r", "cohere2"):
        keys["logit_scale"] = float(spec.logit_scale)
    if name in ("gptneox", "stablelm"):
        keys["use_parallel_residual"] = layer.parallel
    return {**keys, **_rope_keys(spec, config)}


def _rope_keys(spec: DecoderSpec, config: Fields) -> dict[str, MetadataValue]:
    rope = _rope(spec)
    if rope is None:
        return {}
    scaling = _scaling(config)
    keys: dict[str, MetadataValue] = {"rope.dimension_count": rope.rotary_dim, "rope.freq_base": _theta(config)}
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind in ("linear", "yarn"):
        keys["rope.scaling.type"], keys["rope.scaling.factor"] = kind, scaling.number("factor", 1e-3, 1e6)
    if kind == "yarn" and scaling.has("original_max_position_embeddings"):
        keys["rope.scaling.original_context_length"] = scaling.integer("original_max_position_embeddings", 1, 1 << 31)
    return keys


def _rope_factors(spec: DecoderSpec, config: Fields) -> Floats | None:
    """Divisors of the frequencies, which say llama3's scaling; None with another, or none."""
    rope, scaling = _rope(spec), _scaling(config)
    if rope is None or scaling.text("rope_type", "default") != "llama3":
        return None
    return (base_frequencies(_theta(config), rope.rotary_dim) / rope.inv_freq).astype(np.float32)


def _rope(spec: DecoderSpec) -> Rope | None:
    """Of the first full layer that rotates, or of the first that does."""
    ropes = [layer.mixer.rope for layer in spec.layers if getattr(layer.mixer, "window", 0) == 0]
    ropes += [layer.mixer.rope for layer in spec.layers]
    return next((rope for rope in ropes if rope is not None), None)


def _scaling(config: Fields) -> Fields:
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return scaling.section("full_attention") if scaling.has("full_attention") else scaling


def _theta(config: Fields) -> float:
    outer = config.number("rotary_emb_base", *THETA, 10_000.0)
    return _scaling(config).number("rope_theta", *THETA, config.number("rope_theta", *THETA, outer))


# -------------------------------------------------------------------------------------------------------------- tensors


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
        self._shapes = slot_shapes(loaded.spec)
        made_of: dict[str, tuple[Entry, list[str]]] = {}
        for slot in self._shapes:
            entry = names.entry(slot)
            plain = isinstance(entry, (str, Exact, Stacked)) or (isinstance(entry, Fused) and not entry.per_head)
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
        return quantize(name, values, TensorType.F32)

    def _matrix(self, name: str, entry: Entry, slots: list[str]) -> Tensor:
        weights = [self._weights.matrices[slot] for slot in slots]
        type_, width = weights[0].tensor.type, weights[0].tensor.shape[-1]
        if any(weight.tensor.type is not type_ for weight in weights):
            found = ", ".join(sorted({weight.tensor.type.name for weight in weights}))
            raise WeightsError(f"what GGUF has as {name} is {found} here; all of it must have one type")
        if any(weight.tensor.order is not None for weight in weights):
            raise WeightsError(f"what GGUF has as {name} is in act-order here, which GGUF can't say")

        def make() -> Bytes:
            data = [_rows(weight, self._stored_rows(slot)) for slot, weight in zip(slots, weights, strict=True)]
            return data[0] if len(data) == 1 else np.concatenate(data)

        rows = sum(self._shapes[slot][0] for slot in slots)
        shape = (len(slots), rows // len(slots), width) if isinstance(entry, Stacked) else (rows, width)
        return Tensor(name, type_, shape, Later(rows, weights[0].tensor.row_bytes, make))

    def _stored_rows(self, slot: str) -> Ints | None:
        """Which of the slot's rows each stored row is; None: in order. The inverse of rotary_rows.unpermute_rotary."""
        kind = slot.removesuffix(".bias").removesuffix("_norm").rsplit(".", 1)[-1]
        if kind not in ("q", "k") or not self.interleaved[index := int(slot.split(".")[1])]:
            return None
        mixer = self._spec.layers[index].mixer
        assert mixer.rope is not None, "layers without positions are not interleaved"
        order = half_order(mixer.heads if kind == "q" else mixer.kv_heads, mixer.head_dim, mixer.rope.rotary_dim)
        return np.argsort(order).astype(np.int32)


def _rows(weight: Weight, order: Ints | None) -> Bytes:
    """uint8 [rows, row_bytes]: the slot's rows in this order."""
    data = weight.tensor.data
    if weight.row_index is not None:
        return data[weight.row_index if order is None else weight.row_index[order]]
    return data if order is None else data[order]
