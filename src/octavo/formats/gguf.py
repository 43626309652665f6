"""GGUF versions 2 and 3, memory-mapped and bounded.

Nothing in the file is trusted: each count, length, offset and product is compared with the file's size before anything
is allocated or read by it, so a hostile file costs one clear error and no memory. The layout is described in ggml's
docs/gguf.md: header, key-value pairs, tensor infos, padding, tensor data.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from octavo.formats.cursor import Cursor
from octavo.formats.errors import ModelFileError
from octavo.formats.ggml_types import GGML_TYPES, GgmlType, tensor_type
from octavo.formats.gguf_metadata import FIXED_DTYPES, Metadata, NumberSpan, Stored, StringSpan, ValueType
from octavo.formats.gguf_split import MAX_PARTS, part_of, part_paths
from octavo.formats.mapped import drop_pages, map_file
from octavo.formats.tensor import Tensor, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Above what any real model has; they bound the time a hostile file can cost (each item is some microseconds).
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_STRINGS = 1 << 21
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 256
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20

_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies; offset and nbytes are in bytes of the file.

    shape is row-major: the file's dimensions, reversed.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Part:
    """One file, mapped and checked."""

    path: Path
    raw: mmap.mmap
    stored: dict[str, Stored]
    places: dict[str, slice]
    infos: dict[str, TensorInfo]

    @classmethod
    def open(cls, path: Path) -> _Part:
        raw = map_file(path)
        cursor = Cursor(path, raw)
        tensor_count, key_count = _read_header(cursor)
        stored, places = _read_metadata(cursor, key_count)
        return cls(path, raw, stored, places, _read_infos(cursor, tensor_count, _alignment(cursor, stored)))

    def split_number(self, key: str, default: int) -> int:
        value = self.stored.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TENSORS:
            raise ModelFileError(self.path, f"metadata {key} must be an integer from 0 to {MAX_TENSORS}")
        return value


class GgufFile:
    """An open GGUF file: `metadata`, `infos` and views of its tensors. The mapping lives as long as any view of it.

    Of a model split into several files, `path` and `metadata` are the first one's, and the tensors are all.
    """

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.path = parts[0].path
        self.metadata = Metadata(parts[0].path, parts[0].raw, parts[0].stored, parts[0].places)
        self.infos = {name: info for part in parts for name, info in part.infos.items()}
        self._homes = {name: part for part in parts for name in part.infos}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Map and check a file, and its other parts if it is the first of several. Raises ModelFileError."""
        first = _Part.open(Path(path))
        count = first.split_number("split.count", 1)
        return cls([first] if count <= 1 else [first, *_other_parts(first, count)])

    @property
    def names(self) -> list[str]:
        return list(self.infos)

    def __contains__(self, name: str) -> bool:
        return name in self.infos

    def tensor(self, name: str) -> Tensor:
        """A read-only view. Raises ModelFileError if the tensor is missing or of a type Octavo can't compute with."""
        info = self.infos.get(name)
        if info is None:
            raise ModelFileError(self.path, f"tensor {name} is missing")
        part = self._homes[name]
        type_ = tensor_type(info.type)
        if type_ is None:
            supported = ", ".join(TensorType.__members__)
            raise ModelFileError(
                part.path, f"tensor {name} has type {info.type.name}, which is not supported; supported are {supported}"
            )
        rows = prod(info.shape[:-1])
        data = np.frombuffer(part.raw, np.uint8, info.nbytes, info.offset).reshape(rows, -1)
        return Tensor(name, type_, info.shape, data)

    def release(self, name: str) -> None:
        """Tell the kernel that this tensor's pages are not needed soon (it has been packed); views stay valid."""
        info = self.infos[name]
        drop_pages(self._homes[name].raw, info.offset, info.nbytes)


def _other_parts(first: _Part, count: int) -> list[_Part]:
    """The second and further files of a split model. Raises ModelFileError unless the set is whole."""
    if count > MAX_PARTS:
        raise ModelFileError(first.path, f"is one of {count} files; a model may have {MAX_PARTS}")
    named = part_of(first.path)
    if named is None or named[1] != count:
        raise ModelFileError(
            first.path,
            f"is one of {count} files of a model, whose names must end in -00001-of-{count:05}.gguf and so on",
        )
    paths = part_paths(first.path)
    if named[0] != 1 or first.split_number("split.no", 0) != 0:
        raise ModelFileError(first.path, f"is not the first of {count} files of a model; name {paths[0].name}")
    parts = []
    for number, path in enumerate(paths[1:], 1):
        if not path.exists():
            raise ModelFileError(first.path, f"needs {path.name} beside it, which is missing ({number + 1} of {count})")
        part = _Part.open(path)
        if (part.split_number("split.no", 0), part.split_number("split.count", 1)) != (number, count):
            raise ModelFileError(path, f"is not what its name says, file {number + 1} of {count}; was it renamed?")
        parts.append(part)
    _check_whole([first, *parts])
    return parts


def _check_whole(parts: Sequence[_Part]) -> None:
    seen: dict[str, Path] = {}
    for part in parts:
        for name in part.infos:
            if name in seen:
                raise ModelFileError(part.path, f"has tensor {name}, which {seen[name].name} has too")
            seen[name] = part.path
    wanted = parts[0].split_number("split.tensors.count", len(seen))
    if wanted != len(seen):
        raise ModelFileError(parts[0].path, f"names {wanted} tensors in all its files; they hold {len(seen)}")


def _read_header(cursor: Cursor) -> tuple[int, int]:
    magic = cursor.raw[: len(MAGIC)]
    if magic != MAGIC:
        cursor.fail(f"is not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}")
    cursor.position = len(MAGIC)
    version = cursor.u32("the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            cursor.fail("is big-endian; only little-endian GGUF files are supported")
        cursor.fail(f"has GGUF version {version}; supported are 2 and 3")
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.count("metadata keys", 13, MAX_KEYS)
    most = min(MAX_TENSORS, (cursor.size - cursor.position) // 33)
    if tensor_count > most:
        cursor.fail(f"claims {tensor_count} tensors; a file of {cursor.size} bytes can hold at most {most}")
    return tensor_count, key_count


def _read_metadata(cursor: Cursor, key_count: int) -> tuple[dict[str, Stored], dict[str, slice]]:
    """Values, and where in the file each lies with the number of its type."""
    stored: dict[str, Stored] = {}
    places: dict[str, slice] = {}
    strings_left = MAX_STRINGS
    for index in range(key_count):
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in stored:
            cursor.fail(f"has metadata {key} twice")
        what, begin = f"metadata {key}", cursor.position
        type_ = _value_type(cursor, what)
        if type_ is ValueType.ARRAY:
            value: Stored = _read_array(cursor, what, strings_left)
            if isinstance(value, StringSpan):
                strings_left -= value.count
        else:
            value = _read_scalar(cursor, what, type_)
        stored[key] = value
        places[key] = slice(begin, cursor.position)
    return stored, places


def _value_type(cursor: Cursor, what: str) -> ValueType:
    value = cursor.u32(what)
    try:
        return ValueType(value)
    except ValueError:
        cursor.fail(f"{what} has value type {value}; known are 0 to {max(ValueType)}")


def _read_scalar(cursor: Cursor, what: str, type_: ValueType) -> Stored:
    if type_ is ValueType.STRING:
        return cursor.string(what)
    dtype = FIXED_DTYPES[type_]
    cursor.need(dtype.itemsize, what)
    value: int | float = np.frombuffer(cursor.raw, dtype, 1, cursor.position)[0].item()
    cursor.position += dtype.itemsize
    if type_ is not ValueType.BOOL:
        return value
    if value not in (0, 1):
        cursor.fail(f"{what} is a boolean with value {value}; it must be 0 or 1")
    return bool(value)


def _read_array(cursor: Cursor, what: str, strings_left: int) -> NumberSpan | StringSpan:
    type_ = _value_type(cursor, what)
    if type_ is ValueType.ARRAY:
        cursor.fail(f"{what} is an array of arrays, which is not supported")
    if type_ is ValueType.STRING:
        return _read_strings(cursor, what, cursor.count(f"strings in {what}", 8, strings_left))
    size = FIXED_DTYPES[type_].itemsize
    count = cursor.count(f"values in {what}", size, cursor.size)
    span = NumberSpan(type_, count, cursor.position)
    cursor.position += count * size
    return span


def _read_strings(cursor: Cursor, what: str, count: int) -> StringSpan:
    """Walk over `count` strings. The one hot loop of the parser: 100,000 strings in a usual file."""
    raw, size, position = cursor.raw, cursor.size, cursor.position
    unpack = _U64.unpack_from
    starts: list[int] = []
    append = starts.append
    for _ in range(count):
        append(position)
        if position + 8 > size:
            position += 8
            break
        position += 8 + unpack(raw, position)[0]
        if position > size:
            break
    append(position)
    if position > size:
        cursor.fail(
            f"string {len(starts) - 2} of {count} in {what} ends at offset {position}, but the file ends at {size}; "
            "it is damaged or was cut off"
        )
    cursor.position = position
    return StringSpan(starts)


def _alignment(cursor: Cursor, stored: dict[str, Stored]) -> int:
    value = stored.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int):
        cursor.fail("metadata general.alignment must be an integer")
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(f"metadata general.alignment is {value}; it must be a power of two from 8 to {MAX_ALIGNMENT}")
    return value


def _read_infos(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for index in range(count):
        info = _read_info(cursor, index, alignment)
        if info.name in relative:
            cursor.fail(f"has tensor {info.name} twice")
        relative[info.name] = info
    data_start = -(-cursor.position // alignment) * alignment
    infos: dict[str, TensorInfo] = {}
    end, previous = data_start, ""
    for info in sorted(relative.values(), key=lambda info: info.offset):
        start = data_start + info.offset
        if start + info.nbytes > cursor.size:
            cursor.fail(
                f"tensor {info.name} ({info.type.name}, shape {info.shape}) needs bytes {start} to "
                f"{start + info.nbytes}, but the file ends at {cursor.size}; it is damaged or was cut off"
            )
        if start < end:
            cursor.fail(f"tensor {info.name} begins at offset {start}, inside tensor {previous}, which ends at {end}")
        end, previous = start + info.nbytes, info.name
        infos[info.name] = TensorInfo(info.name, info.type, info.shape, start, info.nbytes)
    return infos


def _read_info(cursor: Cursor, index: int, alignment: int) -> TensorInfo:
    """One tensor info; its offset is still relative to the tensor data."""
    name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {name}"
    dims = cursor.u32(what)
    if not 1 <= dims <= MAX_DIMS:
        cursor.fail(f"{what} has {dims} dimensions; it must have 1 to {MAX_DIMS}")
    shape = tuple(reversed([cursor.u64(what) for _ in range(dims)]))
    type_id = cursor.u32(what)
    type_ = GGML_TYPES.get(type_id)
    if type_ is None:
        cursor.fail(f"{what} has type number {type_id}, which is not known")
    offset = cursor.u64(what)
    if min(shape) < 1:
        cursor.fail(f"{what} has shape {shape}; each dimension must be at least 1")
    if shape[-1] % type_.block_elements:
        cursor.fail(f"{what} has rows of {shape[-1]} elements; {type_.name} needs a multiple of {type_.block_elements}")
    if offset % alignment:
        cursor.fail(f"{what} has offset {offset}, which is not a multiple of the alignment, {alignment}")
    return TensorInfo(name, type_, shape, offset, prod(shape) // type_.block_elements * type_.block_bytes)
