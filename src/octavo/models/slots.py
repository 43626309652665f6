"""The weights a DecoderSpec needs, by name and shape, and filling them from a file's tensors.

Slot names: `embed`, `norm`, `head` (absent when tied) and, for layer i, `layers.{i}.` + `attn_norm`, `q`, `k`, `v`,
`o`, `ffn_norm`, `gate`, `up`, `down`, and `q_norm`, `k_norm`, `sinks`; a bias is its matrix's name + `.bias`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Floats, Ints, Weight
from octavo.formats.blocks import dequantize
from octavo.formats.tensor import Tensor
from octavo.models.spec import DecoderSpec


class WeightsError(ValueError):
    """Missing, left-over or wrongly shaped tensors, or metadata this build can't run; the message names them."""


class TensorFile(Protocol):
    """Opened weights (formats.gguf.GgufFile, formats.safetensors.SafetensorsFolder): names, and views on demand."""

    @property
    def names(self) -> Sequence[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass(slots=True)
class Weights:
    """All slots of one model, filled: matrices as stored, vectors (norms, biases) as float32."""

    matrices: dict[str, Weight]
    vectors: dict[str, Floats]


def slot_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every slot of `spec` with its shape: (out, in) of a matrix, (n,) of a vector."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab, spec.hidden), "norm": (spec.hidden,)}
    if not spec.tied_head:
        shapes["head"] = (spec.vocab, spec.hidden)
    for index in range(len(spec.layers)):
        shapes.update((f"layers.{index}.{name}", shape) for name, shape in _layer_shapes(spec, index))
    return shapes


def _layer_shapes(spec: DecoderSpec, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    attention, ffn = spec.layers[index].mixer, spec.layers[index].ffn
    queries, stored = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    yield "attn_norm", (spec.hidden,)
    for name, width in (("q", queries), ("k", stored), ("v", stored)):
        yield name, (width, spec.hidden)
        if attention.bias:
            yield f"{name}.bias", (width,)
    if attention.qk_norm:
        yield "q_norm", (attention.head_dim,)
        yield "k_norm", (attention.head_dim,)
    if attention.sinks:
        yield "sinks", (attention.heads,)
    yield "o", (spec.hidden, queries)
    if attention.output_bias:
        yield "o.bias", (spec.hidden,)
    yield "ffn_norm", (spec.hidden,)
    for name, shape in (("gate", (ffn.hidden, spec.hidden)), ("up", (ffn.hidden, spec.hidden))):
        yield name, shape
        if ffn.bias:
            yield f"{name}.bias", shape[:1]
    yield "down", (spec.hidden, ffn.hidden)
    if ffn.bias:
        yield "down.bias", (spec.hidden,)


def fill(
    spec: DecoderSpec,
    file: TensorFile,
    file_name: Callable[[str], str],
    ignored: Callable[[str], bool],
) -> Weights:
    """Every slot of `spec` from the file's tensors. `file_name` maps slot to tensor name; `ignored` tells which
    left-over tensors carry nothing the model needs. Raises WeightsError, and ModelFileError for a tensor's type."""
    shapes = slot_shapes(spec)
    names = {slot: file_name(slot) for slot in shapes}
    missing = [name for name in names.values() if name not in file]
    if missing:
        raise WeightsError(f"the model file lacks {_listed(missing)}; is it complete, and a {spec.architecture}?")
    known = set(names.values())
    left_over = [name for name in file.names if name not in known and not ignored(name)]
    if left_over:
        raise WeightsError(
            f"the model file holds {_listed(left_over)}, which a {spec.architecture} model does not use; "
            "running without would give wrong text"
        )
    weights = Weights({}, {})
    for slot, shape in shapes.items():
        tensor = file.tensor(names[slot])
        if tensor.shape != shape:
            raise WeightsError(
                f"tensor {tensor.name} has shape {tensor.shape}; the model's metadata asks for {shape} (slot {slot})"
            )
        if len(shape) == 1:
            weights.vectors[slot] = dequantize(tensor).reshape(shape)
        else:
            weights.matrices[slot] = Weight(tensor)
    return weights


def unpermute_rotary(spec: DecoderSpec, weights: Weights) -> None:
    """Give Q and K of layers whose rows are stored for pairs (2i, 2i + 1) the row order of pairs (i, i + d / 2)."""
    for index, layer in enumerate(spec.layers):
        if layer.mixer.rope is None or not layer.mixer.rope.interleaved:
            continue
        for name, heads in (("q", layer.mixer.heads), ("k", layer.mixer.kv_heads)):
            rows = half_order(heads, layer.mixer.head_dim)
            slot = f"layers.{index}.{name}"
            weights.matrices[slot] = Weight(weights.matrices[slot].tensor, rows)
            if f"{slot}.bias" in weights.vectors:
                weights.vectors[f"{slot}.bias"] = weights.vectors[f"{slot}.bias"][rows]


def half_order(heads: int, head_dim: int) -> Ints:
    """int32 [heads * head_dim]: the stored row of each output row, stored ones being interleaved within a head."""
    within = np.arange(head_dim, dtype=np.int32).reshape(head_dim // 2, 2).T.reshape(-1)
    rows: npt.NDArray[np.int32] = np.arange(heads, dtype=np.int32)[:, None] * head_dim + within
    return rows.reshape(-1)


def _listed(names: list[str]) -> str:
    """Up to four names and how many more."""
    shown = ", ".join(names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"
