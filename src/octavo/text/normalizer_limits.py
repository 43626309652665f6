"""How much longer tokenizer.json can make a text before it is cut into tokens: bounded when the file is loaded, so that
no request has to be.

Real normalizers come to 11 times (U+FDFA, 3 bytes, is 33 in its compatibility form), and to some 40 where spaces become
U+2581 besides.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.formats.errors import ModelFileError
from octavo.text.charsmap_limits import check_charsmap

MOST, MOST_OF_PRE_TOKENIZER = 64, 8
_DEEPEST = 64
#: How the list of a Sequence is called.
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}

#: The most UTF-8 bytes that a byte of a text becomes, over all characters: none looks at more than one to grow.
#: U+1D1C0 (NFC, NFD, Bert's accents), U+FDFA (NFKC, NFKD), U+023E (Lowercase).
NORMALIZERS = {
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "Lowercase": 1.5,
    "BertNormalizer": 3.0,
    "ByteLevel": 2.0,
    "Nmt": 1.0,
    "Strip": 1.0,
    "StripAccents": 1.0,
}
#: Pre-tokenizers that cut only.
CUTTERS = frozenset(
    {
        *("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Punctuation", "Split", "UnicodeScripts"),
        *("Whitespace", "WhitespaceSplit"),
    }
)


def check_growth(path: Path, description: Mapping[str, Any]) -> None:
    """Raise ModelFileError if tokenizer.json's normalizer can make a text more than MOST times as long, or its
    pre-tokenizer more than MOST_OF_PRE_TOKENIZER times, and for types of either that nothing is known of."""
    times, more = 1.0, 0.0  # n bytes, of which there is one or more, become at most times * n + more
    for node in parts_of(path, description, "normalizer"):
        node_times, node_more = _of_normalizer(path, node)
        times, more = node_times * times, node_times * more + node_more
        _check(path, "normalizer", times + more, MOST)
    times = 1.0
    for node in parts_of(path, description, "pre_tokenizer"):
        times *= _of_pre_tokenizer(path, node)
        _check(path, "pre_tokenizer", times, MOST_OF_PRE_TOKENIZER)


def _check(path: Path, field: str, times: float, limit: int) -> None:
    if times > limit:
        raise ModelFileError(path, f"has a {field} that makes texts {times:g} times as long; the limit is {limit}")


def parts_of(path: Path, description: Mapping[str, Any], field: str) -> Iterator[Mapping[str, Any]]:
    """The normalizer, pre_tokenizer or decoder of a tokenizer.json, or those of a sequence; none for null. Each has a
    text as its type. Raises ModelFileError (also for the library's older notation, which leaves types out)."""
    node = description.get(field)
    return iter(()) if node is None else _parts(path, field, node, 0)


def _parts(path: Path, field: str, node: object, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(node, Mapping) or not isinstance(node.get("type"), str):
        raise ModelFileError(path, f"{field} must be an object with a type, and so must all in a Sequence")
    if node["type"] != "Sequence":
        yield node
        return
    parts = node.get(_LISTS[field])
    if not isinstance(parts, list):
        raise ModelFileError(path, f"{field}: {_LISTS[field]} of a Sequence must be a list")
    if depth == _DEEPEST:
        raise ModelFileError(path, f"{field} has sequences within sequences; the limit is {_DEEPEST}")
    for part in parts:
        yield from _parts(path, field, part, depth + 1)


def _of_normalizer(path: Path, node: Mapping[str, Any]) -> tuple[float, float]:
    """Of n bytes it makes at most the first number times n, and the second more."""
    match node:
        case {"type": "Precompiled", "precompiled_charsmap": str(stored)}:
            return check_charsmap(path, "normalizer: precompiled_charsmap", decoded(path, stored)), 0.0
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, _bytes(content) / _bytes(pattern)), 0.0
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": str(content)}:  # SentencePiece's
            return max(1.0, _bytes(content) / 2), 0.0
        case {"type": "Replace", "content": str(content)}:  # may match nothing: between any two bytes, and at the ends
            return 1.0 + _bytes(content), float(_bytes(content))
        case {"type": "Prepend", "prepend": str(content)}:
            return 1.0, float(_bytes(content))
    if (kind := node["type"]) in NORMALIZERS:
        return NORMALIZERS[kind], 0.0
    raise _unknown(path, "normalizer", kind)


def _of_pre_tokenizer(path: Path, node: Mapping[str, Any]) -> float:
    """How many times as long it makes a text of one byte or more (what comes before may have cut it anywhere)."""
    match node:
        case {"type": "ByteLevel"}:
            return 2.0 if node.get("add_prefix_space") is False else 4.0  # a space has two bytes then
        case {"type": "Metaspace", "replacement": str(space)}:
            return 1.0 + _bytes(space)  # a letter behind a space
    if (kind := node["type"]) in CUTTERS:
        return 1.0
    raise _unknown(path, "pre_tokenizer", kind)


def _unknown(path: Path, field: str, kind: str) -> ModelFileError:
    return ModelFileError(path, f"has a {field} of type {kind!r} that is not known here, or lacks what that type needs")


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def decoded(path: Path, stored: str) -> bytes:
    """A precompiled_charsmap of tokenizer.json."""
    try:
        return base64.b64decode(stored, validate=True)
    except ValueError as error:
        raise ModelFileError(path, f"has a precompiled_charsmap that is no base64: {error}") from None
