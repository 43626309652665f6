"""How much longer a precompiled charsmap can make a text, and whether it is one: known before any text meets it.

Its readers differ where a map is not well formed (the `tokenizers` library reads a replacement without an end up to
the end of the file, for each character that has it), so such a map is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError

MOST_OF_CHARSMAP = 16
#: Real ones have some 300 KB.
_MOST_CHARSMAP_BYTES = 4 << 20
#: As in csrc/charsmap.cpp; the longest of Unicode's compatibility forms have 33 bytes.
_LONGEST_KEY = _LONGEST_REPLACEMENT = 256

_Units = npt.NDArray[np.uint32]
_Places = npt.NDArray[np.int64]


def check_charsmap(path: Path, field: str, stored: bytes) -> float:
    """How many times as long as a text its replacement may be, at least 1.

    stored: as csrc/charsmap.h has it. Raises ModelFileError for a map that is not well formed (a trie of no bytes, of
    no multiple of 4, or of more than there are; replacements that don't end in NUL), for keys or replacements of more
    than 256 bytes, and above MOST_OF_CHARSMAP.
    """
    if len(stored) > _MOST_CHARSMAP_BYTES:
        raise ModelFileError(path, f"{field} has {len(stored)} bytes; the limit is {_MOST_CHARSMAP_BYTES}")
    units, ends = _read(path, field, stored)
    most = 1.0
    for key_bytes, begins in _replacements(units):
        if key_bytes > _LONGEST_KEY:
            raise ModelFileError(path, f"{field} has keys of more than {_LONGEST_KEY} bytes, which is the limit")
        begins = begins[begins <= ends[-1]]
        longest = int((ends[np.searchsorted(ends, begins)] - begins).max(initial=0))
        if longest > MOST_OF_CHARSMAP * key_bytes:
            raise ModelFileError(
                path,
                f"{field} replaces {key_bytes} bytes by {longest}; a replacement may be {MOST_OF_CHARSMAP} times as "
                "long as what it replaces",
            )
        most = max(most, longest / key_bytes)
    return most


def _read(path: Path, field: str, stored: bytes) -> tuple[_Units, _Places]:
    """The trie's units, and where replacements end (ascending, at least one)."""
    if len(stored) < 4:
        raise ModelFileError(path, f"{field} has {len(stored)} bytes, less than the 4 that say how long its trie is")
    trie_bytes = int.from_bytes(stored[:4], "little")
    if trie_bytes == 0 or trie_bytes % 4 or trie_bytes > len(stored) - 4:
        raise ModelFileError(
            path,
            f"{field} says that its trie has {trie_bytes} bytes, of {len(stored) - 4}; it must have some, and a "
            "multiple of 4",
        )
    if len(stored) == 4 + trie_bytes or stored[-1] != 0:
        raise ModelFileError(path, f"{field} does not end in NUL, so its last replacement has no end")
    ends = np.flatnonzero(np.frombuffer(stored, np.uint8, offset=4 + trie_bytes) == 0)
    longest = int(np.diff(ends, prepend=-1).max()) - 1
    if longest > _LONGEST_REPLACEMENT:
        raise ModelFileError(path, f"{field} has a replacement of {longest} bytes; the limit is {_LONGEST_REPLACEMENT}")
    return np.frombuffer(stored, "<u4", trie_bytes // 4, 4), ends


def _replacements(units: _Units) -> Iterator[tuple[int, _Places]]:
    """For each number of bytes that keys, or their beginnings, have: where such keys' replacements begin (of each node
    of the trie only for the shortest keys that lead there)."""
    places, first = _children(units)
    offsets = ((units >> 10) << ((units & 0x200) >> 6)).astype(np.int64)
    seen = np.zeros(len(first) - 1, np.bool_)
    nodes = offsets[:1]
    for key_bytes in range(1, len(units) + 1):
        nodes = np.unique(nodes[nodes < len(seen)])
        nodes = nodes[~seen[nodes]]
        seen[nodes] = True
        counts = first[nodes + 1] - first[nodes]
        total = int(counts.sum())
        if not total:
            return
        # Ranges first[node] .. first[node + 1], one after another.
        children = places[np.repeat(first[nodes] - counts.cumsum() + counts, counts) + np.arange(total)]
        nodes = children ^ offsets[children]
        leaves = nodes[((units[children] >> 8) & 1 == 1) & (nodes < len(units))]
        yield key_bytes, (units[leaves] & 0x7FFFFFFF).astype(np.int64)


def _children(units: _Units) -> tuple[_Places, _Places]:
    """Units that a byte leads to, by the node that it leads from; and where each node's begin among them.

    A unit at `place` with the label `byte` is a child of the node at `place ^ byte` alone.
    """
    places = np.flatnonzero(units < 1 << 31)  # others are values
    parents = places ^ (units[places] & 0xFF).astype(np.int64)
    order = np.argsort(parents, kind="stable")
    nodes = (len(units) + 255) // 256 * 256
    return places[order], np.searchsorted(parents[order], np.arange(nodes + 1))
