"""The key-value part of a GGUF file, with arrays kept as spans until somebody asks for them."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError

T = TypeVar("T")


class ValueType(IntEnum):
    """Value types of GGUF, with the file's ids."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# numpy type of every fixed-size value; GGUF files are little-endian here (the parser refuses the others).
FIXED_DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("<u1"),
    ValueType.INT8: np.dtype("<i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("<u1"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """An array of numbers at `start` of the file."""

    type: ValueType
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class StringSpan:
    """An array of strings: `starts[i]` is the file offset of string i's 8-byte length, `starts[-1]` the array's end."""

    starts: list[int]

    @property
    def count(self) -> int:
        return len(self.starts) - 1


Stored = int | float | bool | str | NumberSpan | StringSpan
Value = int | float | bool | str | npt.NDArray[Any] | list[str]


class Metadata(Mapping[str, Value]):
    """Keys and values of a GGUF file. Arrays are decoded at each access: keep what you need more than once.

    The typed accessors raise ModelFileError when a key is missing (and there is no default) or has another type.
    """

    def __init__(self, path: Path, raw: mmap.mmap, stored: dict[str, Stored], places: dict[str, slice]) -> None:
        self._path = path
        self._raw = raw
        self._stored = stored
        self._places = places

    def __getitem__(self, key: str) -> Value:
        stored = self._stored[key]
        if isinstance(stored, NumberSpan):
            return self._numbers(stored)
        if isinstance(stored, StringSpan):
            return self.strings(key)
        return stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, key: object) -> bool:
        return key in self._stored  # Mapping's own would decode the value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, "a number", value)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def array_length(self, key: str) -> int:
        """Elements of an array, without decoding it."""
        stored = self._get(key, None)
        if not isinstance(stored, (NumberSpan, StringSpan)):
            raise self._wrong(key, "an array", stored)
        return stored.count

    def numbers(self, key: str) -> npt.NDArray[Any]:
        """An array of numbers, in the file's own type."""
        stored = self._get(key, None)
        if not isinstance(stored, NumberSpan):
            raise self._wrong(key, "an array of numbers", stored)
        return self._numbers(stored)

    def strings(self, key: str) -> list[str]:
        pieces = self.byte_strings(key)
        try:
            return [piece.decode() for piece in pieces]
        except UnicodeDecodeError as error:
            wrong = bytes(error.object)[:40]
            raise ModelFileError(self._path, f"metadata {key} holds {wrong!r}, which is not UTF-8") from None

    def byte_strings(self, key: str) -> list[bytes]:
        """An array of strings as they are stored: UTF-8, but unchecked."""
        stored = self._get(key, None)
        if not isinstance(stored, StringSpan):
            raise self._wrong(key, "an array of strings", stored)
        return self._pieces(stored)

    def encoded(self, key: str) -> bytes:
        """Type and value as the file has them, for writing them again."""
        return self._raw[self._places[key]]

    def positions(self, key: str, text: str) -> list[int]:
        """Where an array of strings holds exactly this one, ascending; without decoding the others."""
        stored = self._get(key, None)
        if not isinstance(stored, StringSpan):
            raise self._wrong(key, "an array of strings", stored)
        encoded = text.encode()
        needle = len(encoded).to_bytes(8, "little") + encoded
        starts, found = stored.starts, []
        first = starts[0]
        blob = self._raw[first : starts[-1]]
        at = blob.find(needle)
        while at >= 0:
            index = bisect_left(starts, first + at)
            if starts[index] == first + at:  # else the bytes only happen to lie inside some string
                found.append(index)
            at = blob.find(needle, at + 1)
        return found

    def _numbers(self, span: NumberSpan) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = np.frombuffer(self._raw, FIXED_DTYPES[span.type], span.count, span.start).copy()
        return values

    def _pieces(self, span: StringSpan) -> list[bytes]:
        raw = self._raw
        return [raw[start + 8 : end] for start, end in pairwise(span.starts)]

    def _get(self, key: str, default: T | None) -> Stored | T:
        value = self._stored.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelFileError(self._path, f"metadata {key} is missing")
        return default

    def _wrong(self, key: str, expected: str, value: object) -> ModelFileError:
        if isinstance(value, NumberSpan):
            actual = f"an array of {value.type.name.lower()}"
        elif isinstance(value, StringSpan):
            actual = "an array of strings"
        else:
            actual = repr(value)[:80]
        return ModelFileError(self._path, f"metadata {key} must be {expected}; the file has {actual}")
