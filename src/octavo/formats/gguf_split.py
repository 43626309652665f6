"""Names of the files of a split model, as llama.cpp's gguf-split gives them: model-00001-of-00003.gguf."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TypeVar

MAX_PARTS = 4096

AnyPath = TypeVar("AnyPath", bound=PurePath)

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")


def part_of(path: PurePath | str) -> tuple[int, int] | None:
    """(number from 1, count) that a file's name claims, or None if it is not named like a part."""
    match = _PART.fullmatch(PurePath(path).stem)
    return None if match is None else (int(match[2]), int(match[3]))


def whole_name(path: PurePath) -> str:
    """A file's name without its extension and without the number of its part."""
    match = _PART.fullmatch(path.stem)
    return path.stem if match is None else match[1]


def part_paths(first: AnyPath) -> list[AnyPath]:
    """All parts' paths, in order; `first` is the path of one, which part_of knows."""
    match = _PART.fullmatch(first.stem)
    assert match is not None, first
    count = int(match[3])
    return [first.with_name(f"{match[1]}-{number:05}-of-{match[3]}{first.suffix}") for number in range(1, count + 1)]
