"""How much longer a file's normalisation can make a text: bounded when it is loaded, so that no request has to be.

Real ones come to 11 times (U+FDFA, 3 bytes, is 33 in its compatibility form), and to 33 where spaces become U+2581
besides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError

MOST_OF_CHARSMAP, MOST = 16, 64
#: Real ones have some 300 KB.
_MOST_CHARSMAP_BYTES = 4 << 20
_NODES_AT_A_TIME = 1 << 12


def check_charsmap(path: Path, field: str, stored: bytes) -> float:
    """How many times as long as a text its replacement may be, at least 1. What is no map counts as 1.

    stored: as csrc/charsmap.h has it. Raises ModelFileError above MOST_OF_CHARSMAP.
    """
    if len(stored) > _MOST_CHARSMAP_BYTES:
        raise ModelFileError(path, f"{field} has {len(stored)} bytes; the limit is {_MOST_CHARSMAP_BYTES}")
    most = 1.0
    for key_bytes, longest in _longest_replacements(stored):
        if longest > MOST_OF_CHARSMAP * key_bytes:
            raise ModelFileError(
                path,
                f"{field} replaces {key_bytes} bytes by {longest}; a replacement may be {MOST_OF_CHARSMAP} times as "
                "long as what it replaces",
            )
        most = max(most, longest / key_bytes)
    return most


def _longest_replacements(stored: bytes) -> Iterator[tuple[int, int]]:
    """Bytes of a key, and of the longest replacement of any such key (of each node of the trie only for the shortest
    keys that lead there). Keys that no replacement is longer than are left out."""
    trie_bytes = int.from_bytes(stored[:4], "little")
    if trie_bytes == 0 or trie_bytes % 4 or trie_bytes > len(stored) - 4:
        return
    units = np.frombuffer(stored, "<u4", trie_bytes // 4, 4)
    texts = np.frombuffer(stored, np.uint8, offset=4 + trie_bytes)
    ends = np.flatnonzero(texts == 0)
    if not len(ends):
        return
    largest = int(np.diff(ends, prepend=-1).max())
    offsets = ((units >> 10) << ((units & 0x200) >> 6)).astype(np.int64)
    seen = np.zeros(len(units), np.bool_)
    nodes = offsets[:1]
    for key_bytes in range(1, largest):
        found = [_children(units, seen, part) for part in _parts(nodes)]
        children = np.concatenate(found) if found else nodes[:0]
        if not len(children):
            return
        nodes = children ^ offsets[children]
        leaves = nodes[((units[children] >> 8) & 1 == 1) & (nodes < len(units))]
        begins = (units[leaves] & 0x7FFFFFFF).astype(np.int64)
        begins = begins[begins <= ends[-1]]
        if len(begins):
            yield key_bytes, int((ends[np.searchsorted(ends, begins)] - begins).max())


def _children(
    units: npt.NDArray[np.uint32], seen: npt.NDArray[np.bool_], nodes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Where one more byte leads that has not been seen before; it has been from now on."""
    labels = np.arange(256)
    places = nodes[:, None] ^ labels
    inside = np.minimum(places, len(units) - 1)
    known = (places < len(units)) & ((units[inside] & 0x800000FF) == labels) & ~seen[inside]
    found: npt.NDArray[np.int64] = np.unique(places[known])
    seen[found] = True
    return found


def _parts(nodes: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for begin in range(0, len(nodes), _NODES_AT_A_TIME):
        yield nodes[begin : begin + _NODES_AT_A_TIME]


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
