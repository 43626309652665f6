"""Reading a mapped file from front to back without trusting it."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NoReturn

from octavo.formats.errors import ModelFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A position in the file; every read is checked against the file's end first."""

    def __init__(self, path: Path, raw: mmap.mmap) -> None:
        self.path = path
        self.raw = raw
        self.size = len(raw)
        self.position = 0

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(self.path, problem)

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.position:
            self.fail(
                f"{what} needs {count} bytes at offset {self.position}, but the file ends at {self.size}; "
                "it is damaged or was cut off"
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.raw, self.position)
        self.position += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.raw, self.position)
        self.position += 8
        return int(value)

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            self.fail(f"{what} has {length} bytes; the limit is {limit}")
        self.need(length, what)
        text = self.raw[self.position : self.position + length]
        self.position += length
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {text[:40]!r}")

    def count(self, what: str, least_bytes: int, limit: int) -> int:
        """A number of items that take at least `least_bytes` each."""
        value = self.u64(f"the number of {what}")
        most = min(limit, (self.size - self.position) // least_bytes)
        if value > most:
            self.fail(f"claims {value} {what}; a file of {self.size} bytes can hold at most {most}")
        return value
