"""Checked reading of untrusted model metadata (GGUF keys or config.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping


class MetadataError(ValueError):
    """A metadata field that is missing, of the wrong type, out of bounds or not supported; the message names it."""


class Fields:
    """A mapping with typed, bounded getters; `where` ("config.json", "GGUF metadata") begins every message."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def error(self, name: str, problem: str) -> MetadataError:
        return MetadataError(f"{self.where}: {name} {problem}")

    def has(self, name: str) -> bool:
        """Present and not null."""
        return self.values.get(name) is not None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in [low, high]; `default` if absent, an error without one."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, f"is missing; it must be an integer from {low} to {high}")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"is {_shown(value)}; it must be an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]; `default` if absent, an error without one."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, f"is missing; it must be a number from {low:g} to {high:g}")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(name, f"is {_shown(value)}; it must be a number from {low:g} to {high:g}")
        if not math.isfinite(value):
            raise self.error(name, f"is {value}; it must be finite")
        return float(value)

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        """A list of `count` numbers in [low, high]."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(name, f"is {_shown(value)}; it must be a list of {count} numbers")
        return [Fields({name: item}, self.where).number(name, low, high) for item in value]

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty if absent."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"is {_shown(value)}; it must be a list of strings")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; `default` if absent."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"is {_shown(value)}; it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; `default` if absent, an error without one."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(name, f"is {_shown(value)}; it must be a string")
        return value

    def section(self, name: str) -> Fields:
        """A nested mapping; empty if absent."""
        value = self.values.get(name)
        if value is None:
            return Fields({}, f"{self.where}: {name}")
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {_shown(value)}; it must be an object")
        return Fields(value, f"{self.where}: {name}")


def _shown(value: object) -> str:
    """The value for a message, cut to a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
