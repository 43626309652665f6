"""A folder of safetensors with quantised modules, as if each were one tensor."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import numpy as np

from octavo.formats.blocks import row_bytes
from octavo.formats.errors import ModelFileError
from octavo.formats.quantised.matrix import Matrix
from octavo.formats.quantised.parts import Array, Parts
from octavo.formats.quantised.scheme import Kind, kinds
from octavo.formats.safetensors import SafetensorsFolder
from octavo.formats.tensor import Bytes, Later, Tensor

#: Elements that are turned into rows of a tensor at a time.
_CHUNK_ELEMENTS = 1 << 20


class QuantisedFolder:
    """`names`, `tensor(name)` and `release(name)` as those of SafetensorsFolder.

    A module's tensor costs little: its parts are checked, of which scales and zero points are read. The data exist in
    memory from when they are first asked for until they are released.
    """

    def __init__(self, folder: SafetensorsFolder, modules: dict[str, Kind]) -> None:
        self._folder = folder
        self._modules = {module + kind.shown: (module, kind) for module, kind in modules.items()}
        hidden = {name for module, kind in modules.items() for name in kind.names(module)} - self._modules.keys()
        shown = [name for name in folder.names if name not in hidden and name not in self._modules]
        self.names: Sequence[str] = [*shown, *self._modules]
        self._shown = set(self.names)
        self._tensors: dict[str, Tensor] = {}
        self._made: dict[str, tuple[Bytes, mmap.mmap]] = {}

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
                module = kind.module(name, folder.info(name).dtype)
                if module is None:
                    continue
                tensor = module + kind.shown
                if tensor in folder and tensor not in kind.names(module):
                    raise ModelFileError(folder.path, f"holds both {name} and {tensor}; a module must be stored once")
                modules[module] = kind
        return cls(folder, modules)

    def __contains__(self, name: str) -> bool:
        return name in self._shown

    def tensor(self, name: str) -> Tensor:
        """A view of the file, or what a quantised module's tensors will make. Raises ModelFileError."""
        if name not in self._modules:
            if name not in self._shown:
                raise ModelFileError(self._folder.path, f"tensor {name} is missing")
            return self._folder.tensor(name)
        if name not in self._tensors:
            self._tensors[name] = self._tensor(name)
        return self._tensors[name]

    def release(self, name: str) -> None:
        """Give a tensor's memory back. Data that were made must not be read any more; asked for, they are made anew."""
        for stored in self._parts(name) if name in self._modules else [name]:
            self._folder.release(stored)
        if name in self._made:
            self._made.pop(name)[1].madvise(mmap.MADV_DONTNEED)

    def _tensor(self, name: str) -> Tensor:
        matrix, used = self._matrix(name)  # not kept: it holds scales and zero points as numpy has them
        rows, size = prod(matrix.shape[:-1]), row_bytes(matrix.type, matrix.shape[-1])
        last = self._modules[name][1].outputs_last

        def sample(row: int, count: int) -> bytes:
            return b"".join(_bytes_from(self._folder.array(part), row, rows, last, count) for part in used)

        later = Later(rows, size, lambda: self._data(name), sample)
        return Tensor(name, matrix.type, matrix.shape, later, matrix.order)

    def _matrix(self, name: str) -> tuple[Matrix, list[str]]:
        """And the stored tensors that were used for it."""
        module, kind = self._modules[name]
        parts = Parts(self._folder, module, kind.joint)
        return kind.make(parts), parts.used

    def _parts(self, name: str) -> list[str]:
        """The stored tensors that a module has."""
        module, kind = self._modules[name]
        return [part for part in kind.names(module) if part in self._folder]

    def _data(self, name: str) -> Bytes:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name][0]

    def _make(self, name: str) -> tuple[Bytes, mmap.mmap]:
        matrix, _ = self._matrix(name)
        rows, size = prod(matrix.shape[:-1]), row_bytes(matrix.type, matrix.shape[-1])
        # Private, so that `release` gives the memory back whoever still holds a view.
        memory = mmap.mmap(-1, max(1, rows * size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        data = np.frombuffer(memory, np.uint8, rows * size).reshape(rows, size)
        _fill(data, matrix)
        for part in self._parts(name):
            self._folder.release(part)
        data.flags.writeable = False
        return data, memory


def _bytes_from(part: Array, row: int, rows: int, outputs_last: bool, count: int) -> bytes:
    """Some of a part, from the place that belongs to a row of all `rows` on."""
    begin = (part.shape[-1] if outputs_last and part.ndim else part.size) * row // rows
    return part.reshape(-1)[begin : begin + count].tobytes()[:count]


def _fill(data: Bytes, matrix: Matrix) -> None:
    step = max(8, _CHUNK_ELEMENTS // max(1, matrix.shape[-1]) // 8 * 8)
    for begin in range(0, len(data), step):
        end = min(len(data), begin + step)
        data[begin:end] = matrix.rows(begin, end)
