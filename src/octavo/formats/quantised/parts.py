"""The tensors that one quantised module is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.blocks import bf16_to_f32
from octavo.formats.errors import ModelFileError
from octavo.formats.safetensors import SafetensorsFolder

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Parts:
    """`part` is what stands behind the module's name: `qweight` of `model.layers.0.mlp.up_proj.qweight`.

    joint: what stands between the two. used: the names of the tensors that were read so far.
    """

    def __init__(self, folder: SafetensorsFolder, module: str, joint: str = ".") -> None:
        self._folder = folder
        self._prefix = module + joint
        self.used: list[str] = []

    def __contains__(self, part: str) -> bool:
        return self._prefix + part in self._folder

    def dtype(self, part: str) -> str:
        """As safetensors names it. Raises ModelFileError if the part is missing."""
        return self._folder.info(self._prefix + part).dtype

    def array(self, part: str, dtype: str, dims: int) -> Array:
        """A view of a part, of that type and number of dimensions. Raises ModelFileError."""
        name = self._prefix + part
        info = self._folder.info(name)
        if not info.nbytes:
            raise self.error(part, f"has shape {list(info.shape)}; it must not be empty")
        if info.dtype != dtype or len(info.shape) != dims:
            raise self.error(
                part, f"has type {info.dtype} and shape {list(info.shape)}; expected are {dtype} and {dims} dimensions"
            )
        return self._array(name)

    def floats(self, part: str) -> Floats:
        """A part of type F32, F16 or BF16 as float32; all finite. Raises ModelFileError."""
        name = self._prefix + part
        stored, dtype = self._array(name), self._folder.info(name).dtype
        if not stored.size:
            raise self.error(part, f"has shape {list(stored.shape)}; it must not be empty")
        if dtype not in ("F32", "F16", "BF16"):
            raise self.error(part, f"has type {dtype}; scales must be F32, F16 or BF16")
        values = bf16_to_f32(stored) if dtype == "BF16" else stored.astype(np.float32)
        if not np.isfinite(values).all():
            raise self.error(part, "holds a scale that is not finite")
        return values

    def _array(self, name: str) -> Array:
        array = self._folder.array(name)
        if name not in self.used:
            self.used.append(name)
        return array

    def error(self, part: str, problem: str) -> ModelFileError:
        """About one of the module's tensors."""
        return ModelFileError(self._folder.path, f"tensor {self._prefix}{part} {problem}")
