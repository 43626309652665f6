"""How much longer a file's normalisation can make a text: bounded when it is loaded, so that no request has to be.

Real ones come to 11 times (U+FDFA, 3 bytes, is 33 in its compatibility form), and to 33 where spaces become U+2581
besides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.formats.errors import ModelFileError
from octavo.text.charsmap_limits import check_charsmap

MOST = 64


def check_normalizer(path: Path, node: object) -> None:
    """Raise ModelFileError if tokenizer.json's normalizer can make a text more than MOST times as long."""
    most = 1.0
    for one in parts_of(node, "normalizers"):
        most *= _ratio(path, one)
        if most > MOST:
            raise ModelFileError(path, f"has a normalizer that makes texts {most:g} times as long; the limit is {MOST}")


def parts_of(node: object, parts: str) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer of tokenizer.json, or those of a sequence. parts: what their list is called."""
    if isinstance(node, Mapping) and node.get("type") == "Sequence":
        for part in node.get(parts) or []:
            yield from parts_of(part, parts)
    elif isinstance(node, Mapping):
        yield node


def _ratio(path: Path, node: Mapping[str, Any]) -> float:
    match node:
        case {"type": "Precompiled", "precompiled_charsmap": str(stored)}:
            return check_charsmap(path, "normalizer: precompiled_charsmap", decoded(path, stored))
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return max(1.0, len(content.encode()) / max(1, len(pattern.encode())))
        case {"type": "Replace", "content": str(content)}:  # a pattern may match nothing, between any two characters
            return 1.0 + len(content.encode())
        case {"type": "Prepend", "prepend": str(content)}:
            return max(1.0, float(len(content.encode())))
    return 1.0


def decoded(path: Path, stored: str) -> bytes:
    """A precompiled_charsmap of tokenizer.json."""
    try:
        return base64.b64decode(stored, validate=True)
    except ValueError as error:
        raise ModelFileError(path, f"has a precompiled_charsmap that is no base64: {error}") from None
