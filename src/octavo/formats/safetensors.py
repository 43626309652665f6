"""safetensors files and folders of them, memory-mapped and bounded.

The format is an 8-byte header length, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors' bytes
without holes. Every length and span is compared with the file's size before it is used.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError
from octavo.formats.mapped import drop_pages, map_file
from octavo.formats.tensor import Tensor, TensorType

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 16 << 20
MAX_INDEX_BYTES = 16 << 20
MAX_SHARDS = 1024
MAX_DIMS = 8
MAX_SIZE = 1 << 40  # of one dimension; products of two still fit 64 bits beside a size of 0

_SUPPORTED = ("F32", "F16", "BF16")
#: Types that quantised weights are made of; bf16 and fp8 as their bits.
_ARRAYS = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1",
}  # fmt: skip
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I64": 64, "I32": 32,
    "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies; offset and nbytes are in bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """One open file: `infos` and views of its tensors. The mapping lives as long as any view of it."""

    def __init__(self, path: Path, raw: mmap.mmap, infos: dict[str, TensorInfo]) -> None:
        self.path = path
        self.infos = infos
        self._raw = raw

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Map and check a file. Raises ModelFileError."""
        file_path = Path(path)
        raw = map_file(file_path)
        return cls(file_path, raw, _read_infos(file_path, raw))

    def tensor(self, name: str) -> Tensor:
        """A read-only view. Raises ModelFileError if the tensor is missing or of a type Octavo can't compute with."""
        info = self.infos.get(name)
        if info is None:
            raise ModelFileError(self.path, f"tensor {name} is missing")
        if info.dtype not in _SUPPORTED:
            raise ModelFileError(
                self.path,
                f"tensor {name} has type {info.dtype}, which is not supported; supported are {', '.join(_SUPPORTED)}",
            )
        rows = prod(info.shape[:-1])
        row_bytes = info.nbytes // rows if rows else 0
        data = np.frombuffer(self._raw, np.uint8, info.nbytes, info.offset).reshape(rows, row_bytes)
        return Tensor(name, TensorType[info.dtype], info.shape, data)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A read-only view in the tensor's own shape; bf16 and fp8 as their bits. Raises ModelFileError."""
        info = self.infos[name]
        if info.dtype not in _ARRAYS:
            raise ModelFileError(self.path, f"tensor {name} has type {info.dtype}; no quantised model here has such")
        data: npt.NDArray[Any] = np.frombuffer(self._raw, np.uint8, info.nbytes, info.offset)
        return data.view(_ARRAYS[info.dtype]).reshape(info.shape)

    def release(self, name: str) -> None:
        """Tell the kernel that this tensor's pages are not needed soon; views stay valid."""
        info = self.infos[name]
        drop_pages(self._raw, info.offset, info.nbytes)


class SafetensorsFolder:
    """A model's folder: config.json and the weights in one file, or in shards that an index lists."""

    def __init__(self, path: Path, config: dict[str, Any], files: Mapping[str, SafetensorsFile]) -> None:
        self.path = path
        self.config = config
        self._files = files

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> SafetensorsFolder:
        """Map and check all shards. Raises ModelFileError, also for a shard that is named but absent."""
        path = Path(folder)
        config = read_json(path / "config.json", MAX_INDEX_BYTES)
        if (path / INDEX_NAME).exists():
            return cls(path, config, _open_shards(path))
        weights = SafetensorsFile.open(_only_file(path))
        return cls(path, config, dict.fromkeys(weights.infos, weights))

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> Tensor:
        """As SafetensorsFile.tensor."""
        return self._file(name).tensor(name)

    def info(self, name: str) -> TensorInfo:
        """Type, shape and place. Raises ModelFileError if the tensor is missing."""
        return self._file(name).infos[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """As SafetensorsFile.array."""
        return self._file(name).array(name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise ModelFileError(self.path, f"tensor {name} is missing")
        return self._files[name]

    def release(self, name: str) -> None:
        self._files[name].release(name)


def read_json(path: Path, limit_bytes: int) -> dict[str, Any]:
    """A JSON object from a file of the model. Raises ModelFileError if it is absent, too long, or something else."""
    try:
        size = path.stat().st_size
        if size > limit_bytes:
            raise ModelFileError(path, f"has {size} bytes; the limit is {limit_bytes}")
        value = _parse_object(path, path.read_bytes())
    except OSError as error:
        raise ModelFileError(path, f"can't be read: {error.strerror}") from error
    return value


def _open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    index_path = folder / INDEX_NAME
    weight_map = read_json(index_path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(index_path, "has no weight_map")
    shard_names = dict.fromkeys(weight_map.values()) if all(isinstance(s, str) for s in weight_map.values()) else None
    if shard_names is None:
        raise ModelFileError(index_path, "weight_map must map tensor names to file names")
    if len(shard_names) > MAX_SHARDS:
        raise ModelFileError(index_path, f"lists {len(shard_names)} shards; the limit is {MAX_SHARDS}")
    shards: dict[str, SafetensorsFile] = {}
    for shard in shard_names:
        if shard != Path(shard).name or "\\" in shard or "\0" in shard:
            raise ModelFileError(index_path, f"names the shard {shard!r}; shards must lie in the model's own folder")
        if not (folder / shard).is_file():
            raise ModelFileError(index_path, f"names the shard {shard}, which is not in {folder}")
        shards[shard] = SafetensorsFile.open(folder / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard].infos:
            raise ModelFileError(index_path, f"says tensor {name} is in {shard}, but it is not")
    return {name: shards[shard] for name, shard in weight_map.items()}


def _only_file(folder: Path) -> Path:
    candidates = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE_NAME in candidates:
        return folder / SINGLE_NAME
    if len(candidates) == 1:
        return candidates[0]
    found = ", ".join(path.name for path in candidates) or "none"
    raise ModelFileError(folder, f"needs {SINGLE_NAME} or {INDEX_NAME}; safetensors files there: {found}")


def _read_infos(path: Path, raw: mmap.mmap) -> dict[str, TensorInfo]:
    size = len(raw)
    if size < 8:
        raise ModelFileError(path, f"has {size} bytes; a safetensors file has at least 8")
    header_bytes = int.from_bytes(raw[:8], "little")
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise ModelFileError(
            path,
            f"claims a header of {header_bytes} bytes; the file has {size} bytes and the limit is {MAX_HEADER_BYTES}",
        )
    header = _parse_object(path, raw[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    data_start = 8 + header_bytes
    infos = [_read_info(path, name, entry, data_start, size) for name, entry in header.items()]
    infos.sort(key=lambda info: (info.offset, info.nbytes))
    end = data_start
    for info in infos:
        if info.offset != end:
            raise ModelFileError(
                path, f"tensor {info.name} begins at byte {info.offset}, expected {end}: spans overlap or leave a hole"
            )
        end = info.offset + info.nbytes
    if end != size:
        raise ModelFileError(path, f"has {size} bytes, but its tensors end at {end}; it is damaged or was cut off")
    return {info.name: info for info in infos}


def _read_info(path: Path, name: str, entry: object, data_start: int, size: int) -> TensorInfo:
    def fail(problem: str) -> NoReturn:
        raise ModelFileError(path, f"tensor {name} {problem}")

    if not isinstance(entry, dict):
        fail("has no description")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        fail(f"has type {dtype!r}, which is not known; known are {', '.join(_BITS)}")
    if not _is_sizes(shape) or len(shape) > MAX_DIMS:
        fail(f"has shape {shape!r}; it must be a list of at most {MAX_DIMS} whole numbers")
    if not _is_sizes(span) or len(span) != 2 or span[1] < span[0]:
        fail(f"has data_offsets {span!r}; they must be two whole numbers, begin and end")
    begin, end = span
    if data_start + end > size:
        fail(f"ends at byte {data_start + end}, but the file has {size} bytes; it is damaged or was cut off")
    nbytes = prod(shape) * _BITS[dtype] // 8
    if end - begin != nbytes:
        fail(f"has {end - begin} bytes; type {dtype} and shape {shape} need {nbytes}")
    if max(shape, default=0) > MAX_SIZE:
        fail(f"has shape {shape!r}; the largest size is {MAX_SIZE}")
    return TensorInfo(name, dtype, tuple(shape), data_start + begin, nbytes)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _parse_object(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelFileError(path, f"has {twice} twice")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"holds JSON that can't be read: {str(error) or type(error).__name__}") from None
    if not isinstance(value, dict):
        raise ModelFileError(path, f"must hold a JSON object, not {type(value).__name__}")
    return value
