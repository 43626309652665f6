"""Checked reading of JSON files that people write: devices, models, prices. What is wrong is one sentence with file,
line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: No figure of a device, a model or a price list is beyond these, and what is computed from them stays finite.
LEAST, MOST = 1e-24, 1e24
#: Longest context in tokens: a simulated scheduler keeps a row of so many for each sequence.
MAX_CONTEXT = 10_000_000


class FileError(ValueError):
    """A file can't be used; the message names file, line and field."""


class Fields:
    """The object at `path` of a file, and its fields by name."""

    def __init__(self, file: Path, text: str, content: dict[str, Any], prefix: str = "") -> None:
        self._file = file
        self._text = text
        self._content = content
        self._prefix = prefix

    @classmethod
    def read(cls, file: Path) -> Fields:
        """Raises FileError unless the file holds a JSON object."""
        try:
            text = file.read_text(encoding="utf-8")
            content = json.loads(text)
        except OSError as error:
            raise FileError(f"{file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{file} is not UTF-8 text.") from error
        except json.JSONDecodeError as error:
            raise FileError(f"{file}, line {error.lineno}: this is not JSON: {error.msg}.") from error
        except ValueError as error:
            raise FileError(f"{file}: there is an integer of more digits than any figure has.") from error
        except RecursionError as error:
            raise FileError(f"{file}: this JSON is nested too deeply; objects in one object are enough.") from error
        if not isinstance(content, dict):
            raise FileError(f"{file}, line 1: there is no JSON object, but a {type(content).__name__}.")
        return cls(file, text, content)

    def names(self) -> list[str]:
        return list(self._content)

    def number(self, name: str, low: float = LEAST, high: float = MOST, zero: bool = False) -> float:
        """A number from `low` to `high`, or 0 if `zero`."""
        value = self._get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low <= value <= high or (zero and value == 0)):
            limits = f"a number from {low:g} to {high:g}{', or 0' if zero else ''}"
            raise self.error(name, f"is {_shown(value)}; it must be {limits}")
        return float(value)

    def integer(self, name: str, low: int = 1, high: int = 1 << 32) -> int:
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(name, f"is {_shown(value)}; it must be an integer from {low} to {high}")
        return value

    def count(self, name: str, low: int, what: str) -> int:
        """The field's name itself as an integer of at least `low`."""
        if not (name.isascii() and name.isdecimal() and len(name) <= 9 and int(name) >= low):
            raise self.error(
                name if len(name) <= 60 else f"{name[:60]}...",
                f"is no number of {what}; it must be an integer of at least {low}",
            )
        return int(name)

    def numbers(self, name: str, high: float = MOST) -> list[float]:
        """A list, which may be empty, of numbers above 0."""
        value = self._get(name)
        if not isinstance(value, list):
            raise self.error(name, f"is {_shown(value)}; it must be a list of numbers")
        each = Fields(self._file, self._text, {str(i): one for i, one in enumerate(value)}, f"{self._prefix}{name}.")
        return [each.number(str(i), high=high) for i in range(len(value))]

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not value:
            raise self.error(name, f"is {_shown(value)}; it must be text")
        return value

    def switch(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            raise self.error(name, f"is {_shown(value)}; it must be true or false")
        return value

    def inner(self, name: str) -> Fields:
        value = self._get(name)
        if not isinstance(value, dict):
            raise self.error(name, f"is {_shown(value)}; it must be an object")
        return Fields(self._file, self._text, value, f"{self._prefix}{name}.")

    def error(self, name: str, what: str) -> FileError:
        return FileError(f"{self._file}, line {self._line(name)}: {self._prefix}{name} {what}.")

    def _get(self, name: str) -> Any:
        if name not in self._content:
            raise self.error(name, "is missing")
        return self._content[name]

    def _line(self, name: str) -> int:
        """Where the field is (or, missing, its object): the first line that has its key behind those of its objects."""
        at = 0
        for part in (*self._prefix.split("."), name):
            found = self._text.find(f'"{part}"', at) if part else -1
            at = found if found >= 0 else at
        return self._text.count("\n", 0, at) + 1


def _shown(value: Any) -> str:
    """A value in a sentence: its beginning, if it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= 60 else f"{text[:60]}..."


def shipped(folder: str, name: str) -> Path:
    """A file by path, or one of ours by name. Raises FileError that lists ours."""
    if name.endswith(".json") or "/" in name:
        return Path(name)
    known = Path(__file__).parent / folder
    if not (known / f"{name}.json").is_file():
        names = ", ".join(sorted(path.stem for path in known.glob("*.json")))
        raise FileError(f"there is no {folder.removesuffix('s')} {name!r}; there are {names}, or give a .json file.")
    return known / f"{name}.json"
