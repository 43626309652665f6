"""What a model name resolves to: paths, nothing opened yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.formats.gguf import GgufFile
from octavo.formats.safetensors import SafetensorsFolder


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    kind "gguf": `path` is the file. kind "safetensors": `path` is the folder with config.json, tokenizer and weights.
    name: what users call the model (catalogue name, hub id, or the file's or folder's own name).
    """

    kind: Literal["gguf", "safetensors"]
    path: Path
    name: str

    @property
    def folder(self) -> Path:
        """Where files that accompany the weights (chat template, configs) lie."""
        return self.path if self.kind == "safetensors" else self.path.parent


def open_weights(files: ModelFiles) -> GgufFile | SafetensorsFolder:
    """Open and check the weights: both have `names`, `tensor(name)` and `release(name)`. Raises ModelFileError."""
    if files.kind == "gguf":
        return GgufFile.open(files.path)
    return SafetensorsFolder.open(files.path)
