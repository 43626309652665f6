"""A folder of safetensors with quantised modules, as if each were one tensor `<module>.weight`."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from octavo.formats.blocks import row_bytes
from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.matrix import Matrix
from octavo.formats.quantised.parts import Parts
from octavo.formats.quantised.scheme import Kind, kinds
from octavo.formats.safetensors import SafetensorsFolder
from octavo.formats.tensor import Tensor

#: Elements that are turned into rows of a tensor at a time.
_CHUNK_ELEMENTS = 1 << 20


class QuantisedFolder:
    """`names`, `tensor(name)` and `release(name)` as those of SafetensorsFolder.

    A tensor that is made of several exists in memory from when it is first asked for until it is released.
    """

    def __init__(self, folder: SafetensorsFolder, modules: dict[str, Kind]) -> None:
        self._folder = folder
        self._modules = {f"{module}.weight": kind for module, kind in modules.items()}
        hidden = {
            f"{module}.{part}" for module, kind in modules.items() for part in (*kind.parts, *kind.unused)
        } - self._modules.keys()
        shown = [name for name in folder.names if name not in hidden and name not in self._modules]
        self.names: Sequence[str] = [*shown, *self._modules]
        self._shown = set(self.names)
        self._made: dict[str, tuple[Tensor, mmap.mmap]] = {}

    @classmethod
    def over(cls, folder: SafetensorsFolder) -> QuantisedFolder | SafetensorsFolder:
        """The folder itself unless its config.json says that it is quantised. Raises ModelFileError for a scheme, or a
        variant of one, that is not supported."""
        known = kinds(folder.path, folder.config)
        if not known:
            return folder
        modules = {}
        for name in folder.names:
            for kind in known:
                if name.endswith(f".{kind.main}") and folder.info(name).dtype == kind.dtype:
                    modules[name.removesuffix(f".{kind.main}")] = kind
        return cls(folder, modules)

    def __contains__(self, name: str) -> bool:
        return name in self._shown

    def tensor(self, name: str) -> Tensor:
        """A view of the file, or what a quantised module's tensors make. Raises ModelFileError."""
        if name not in self._modules:
            if name not in self._shown:
                raise ModelFileError(self._folder.path, f"tensor {name} is missing")
            return self._folder.tensor(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name][0]

    def release(self, name: str) -> None:
        """Give a tensor's memory back. One that was made must not be read any more."""
        if name not in self._modules:
            self._folder.release(name)
        elif name in self._made:
            self._made.pop(name)[1].madvise(mmap.MADV_DONTNEED)

    def _make(self, name: str) -> tuple[Tensor, mmap.mmap]:
        kind, module = self._modules[name], name.removesuffix(".weight")
        matrix = kind.make(Parts(self._folder, module))
        rows, width = matrix.shape
        size = row_bytes(matrix.type, width)
        # Private, so that `release` gives the memory back whoever still holds a view.
        memory = mmap.mmap(-1, max(1, rows * size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        data = np.frombuffer(memory, np.uint8, rows * size).reshape(rows, size)
        _fill(data, matrix)
        for part in kind.parts:
            if f"{module}.{part}" in self._folder:
                self._folder.release(f"{module}.{part}")
        data.flags.writeable = False
        return Tensor(name, matrix.type, (rows, width), data, matrix.order), memory


def _fill(data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], matrix: Matrix) -> None:
    rows, width = matrix.shape
    step = max(8, _CHUNK_ELEMENTS // max(1, width) // 8 * 8)
    for begin in range(0, rows, step):
        end = min(rows, begin + step)
        data[begin:end] = matrix.rows(begin, end)
