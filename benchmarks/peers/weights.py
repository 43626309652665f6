"""The forms of a model's weights that peers read, made once from its GGUF file and kept in the cache folder.

Every form comes from the shipped file's de-quantised values, so all engines compute with the same weights, up to the
rounding that the form's name says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.formats.blocks import dequantize, f32_to_bf16, quantize
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.tensor import TensorType
from octavo.models.names import HF
from peers.environment import peers_folder
from peers.hf_files import config_of, write_safetensors, write_tokenizer

Floats = npt.NDArray[np.float32]
Stored = tuple[str, str, npt.NDArray[np.generic]]
"""Name, safetensors dtype, values."""


@dataclass(frozen=True)
class Forms:
    """The forms of one model. shipped: gives its GGUF file, when the first form is needed."""

    shipped: Callable[[], Path]

    def q4_0(self) -> Path:
        """The file with its matrices re-rounded to Q4_0; those of 8 bits (a tied embedding) and vectors stay."""
        return self._requantised(TensorType.Q4_0)

    def q8_0(self) -> Path:
        """The same with Q8_0."""
        return self._requantised(TensorType.Q8_0)

    def hf_bf16(self) -> Path:
        """A Hugging Face folder with the de-quantised weights in bf16."""
        shipped = self.shipped()
        return _made(f"{shipped.stem}.hf-bf16", lambda path: _write_folder(shipped, path, _bf16, None))

    def hf_w8a8(self) -> Path:
        """The same as int8 for W8A8: matrices of the layers rounded with one scale for each output row.

        Activations are quantised by the engine, one scale a token. Embedding and head stay bf16. The layout is that of
        compressed-tensors' `int-quantized` format.
        """
        shipped = self.shipped()
        return _made(f"{shipped.stem}.hf-w8a8", lambda path: _write_folder(shipped, path, _w8a8, W8A8_CONFIG))

    def w8a8_values(self) -> Path:
        """The values of `hf_w8a8` as a GGUF file in f32, for engines that can't read its layout."""
        shipped = self.shipped()
        return _made(f"{shipped.stem}.w8a8-values.gguf", lambda path: _write_w8a8_values(shipped, path))

    def _requantised(self, type_: TensorType) -> Path:
        shipped = self.shipped()
        name = f"{shipped.stem}.requantised-{type_.name}.gguf"
        return _made(name, lambda path: _requantise(shipped, path, type_))


W8A8_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """`name` in the cache folder, made under another name first so that it is whole when it is there."""
    target = peers_folder() / name
    if not target.exists():
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        os.replace(part, target)
    return target


def _requantise(shipped: Path, path: Path, type_: TensorType) -> None:
    source = GgufFile.open(shipped)
    tensors = []
    for name in source.names:
        tensor = source.tensor(name)
        keep = len(tensor.shape) == 1 or tensor.type is TensorType.Q8_0
        tensors.append(tensor if keep else quantize(name, dequantize(tensor), type_))
    write_gguf(path, dict(source.metadata), tensors)


def _write_w8a8_values(shipped: Path, path: Path) -> None:
    source = GgufFile.open(shipped)
    tensors = []
    for tensor in map(source.tensor, source.names):
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2:
            steps, scale = int8_rows(dequantize(tensor))
            tensor = quantize(tensor.name, steps * scale, TensorType.F32)
        tensors.append(tensor)
    write_gguf(path, dict(source.metadata), tensors)


def _write_folder(
    shipped: Path, path: Path, store: Callable[[str, Floats], Iterator[Stored]], quantization: dict[str, object] | None
) -> None:
    path.mkdir(parents=True)
    source = GgufFile.open(shipped)
    config = config_of(source)
    if quantization is not None:
        config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(source, path)
    write_safetensors(path / "model.safetensors", _stored(source, config, store))


def _stored(
    source: GgufFile, config: dict[str, object], store: Callable[[str, Floats], Iterator[Stored]]
) -> Iterator[Stored]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in source.names:
        slot = slot_of(name)
        if slot is None:
            continue
        values = dequantize(source.tensor(name))
        part = name.split(".")[-2]
        if part in heads:
            values = halves_first(values, int(str(heads[part])))
        yield from store(str(HF.entry(slot)), values)


def slot_of(name: str) -> str | None:
    """blk.3.attn_q.weight -> layers.3.q; None for a tensor without a weight of its own in the folder."""
    parts = {
        "attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
        "ffn_norm": "ffn_norm", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
    }  # fmt: skip
    whole = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
    if name in whole:
        return whole[name]
    if not name.startswith("blk."):
        return None
    _, index, part, kind = name.split(".")
    return f"layers.{index}.{parts[part]}" + (".bias" if kind == "bias" else "")


def halves_first(values: Floats, heads: int) -> Floats:
    """Rows of Q or K from GGUF's order (a head's rotated pairs are neighbours) to safetensors' (two halves)."""
    grouped = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(values.shape)


def _bf16(name: str, values: Floats) -> Iterator[Stored]:
    yield name, "BF16", f32_to_bf16(values).reshape(values.shape)


def _w8a8(name: str, values: Floats) -> Iterator[Stored]:
    if not name.endswith("_proj.weight"):
        yield from _bf16(name, values)
        return
    steps, scale = int8_rows(values)
    yield name, "I8", steps
    yield name + "_scale", "F32", scale


def int8_rows(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """[rows, width] in 127 steps each way of one scale a row: (int8 [rows, width], float32 [rows, 1])."""
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-12).astype(np.float32) / np.float32(127)
    return np.clip(np.rint(values / scale), -127, 127).astype(np.int8), scale
