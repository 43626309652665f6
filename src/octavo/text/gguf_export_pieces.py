"""SentencePiece's vocabularies of tokenizer.json as GGUF has them: pieces with scores.

tokenizer.json says as a list of normalizers and pre-tokenizers what GGUF has a few fields for; what they can't say is
refused. It also lists merges where GGUF has scores: pieces get scores in the order in which they are first merged,
which says the same if every way to cut a piece in two is in the list. That is so for what SentencePiece has trained
(transformers lists them all), and not for what the `tokenizers` library has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_write import MetadataValue
from octavo.text.gguf_export_tokens import texts_and_types
from octavo.text.gguf_vocabulary import BYTE, NORMAL, UNKNOWN, USER_DEFINED
from octavo.text.normalizer_limits import decoded, parts_of
from octavo.text.vocabulary import BYTE_TOKEN

_SPACE = "\u2581"
_SERVE = "serve the folder as it is"
#: Of ids that the tokenizer does not know: no text is worth that.
_NEVER = -1e6


@dataclass(slots=True)
class _Spaces:
    """prefix: a text begins with a space more. one_space: of several spaces one is left, and none at the ends."""

    prefix: bool = False
    one_space: bool = False
    charsmap: bytes = b""


def merges_metadata(path: Path, description: Mapping[str, Any], size: int) -> dict[str, MetadataValue]:
    """Keys for byte-pair encoding with byte fallback: `tokenizer.ggml.model` llama. Raises ModelFileError."""
    model = description["model"]
    if model.get("ignore_merges") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ModelFileError(path, f"merges in a way that GGUF's scores can't say; {_SERVE}")
    spaces = _spaces(path, description)
    if spaces.charsmap or spaces.one_space:
        raise ModelFileError(path, f"normalises texts before it merges, which GGUF can't say; {_SERVE}")
    texts, types = _pieces(description, model["vocab"], model["vocab"].get(model.get("unk_token")), size)
    scores = _scores(path, _pairs(model["merges"]), texts, types)
    return {
        **_metadata("llama", texts, types, scores, description, model["vocab"].get(model.get("unk_token"))),
        "tokenizer.ggml.add_space_prefix": spaces.prefix,
    }


def unigram_metadata(path: Path, description: Mapping[str, Any], size: int) -> dict[str, MetadataValue]:
    """Keys for the unigram model: `tokenizer.ggml.model` t5. Raises ModelFileError."""
    model = description["model"]
    spaces = _spaces(path, description)
    vocab = {text: index for index, (text, _) in enumerate(model["vocab"])}
    texts, types = _pieces(description, vocab, model.get("unk_id"), size)
    scores = np.full(size, _NEVER, np.float32)
    known = [score for _, score in model["vocab"]][:size]
    scores[: len(known)] = known
    metadata: dict[str, MetadataValue] = {
        **_metadata("t5", texts, types, scores, description, model.get("unk_id")),
        "tokenizer.ggml.add_space_prefix": spaces.prefix,
        "tokenizer.ggml.remove_extra_whitespaces": spaces.one_space,
    }
    if spaces.charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(spaces.charsmap, np.int8)
    return metadata


def _metadata(
    kind: str,
    texts: list[str],
    types: list[int],
    scores: Any,
    description: Mapping[str, Any],
    unknown: int | None,
) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    if unknown is not None:
        metadata["tokenizer.ggml.unknown_token_id"] = unknown
    return metadata


def _pieces(
    description: Mapping[str, Any], vocab: Mapping[str, int], unknown: int | None, size: int
) -> tuple[list[str], list[int]]:
    """Text and type of every id that the model has, as vocabularies of pieces have them."""
    texts, types = texts_and_types(description, vocab, size)
    for index, text in enumerate(texts):
        if types[index] == NORMAL and BYTE_TOKEN.fullmatch(text):
            types[index] = BYTE
    for entry in description.get("added_tokens") or []:
        if entry["id"] < size:
            texts[entry["id"]] = _as_written(entry)
    if unknown is not None and unknown < size:
        types[unknown] = UNKNOWN
    return texts, types


def _as_written(entry: Mapping[str, Any]) -> str:
    """What is looked for in a text: GGUF's words of the user are found before spaces become U+2581."""
    text: str = entry["content"]
    return text.replace(_SPACE, " ") if entry.get("normalized") and not entry.get("special") else text


def _pairs(merges: Sequence[Any]) -> list[tuple[str, str]]:
    """Old files have both sides in one text, with a space between."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    return [(left, right) for left, right in pairs]


def _scores(path: Path, merges: list[tuple[str, str]], texts: Sequence[str], types: Sequence[int]) -> Any:
    """float32 [tokens]: higher for what merges earlier. Raises ModelFileError if that doesn't say the same."""
    order: dict[str, int] = {}
    for left, right in merges:
        order.setdefault(left + right, len(order))
    pairs = set(merges)
    made = order.keys()
    scores = np.full(len(texts), -float(len(order)), np.float32)
    for index, (text, type_) in enumerate(zip(texts, types, strict=True)):
        if text in order:
            scores[index] = -order[text]
        # A word of the user is found before anything merges, but for U+2581 that was a space.
        if type_ != NORMAL and not (type_ == USER_DEFINED and _SPACE in text):
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            both = (len(left) == 1 or left in made) and (len(right) == 1 or right in made)
            if both and (left, right) not in pairs:
                raise ModelFileError(
                    path,
                    f"does not merge {left!r} and {right!r} to its token {text!r}, as scores, which GGUF has instead "
                    f"of a list of merges, would; {_SERVE}",
                )
    return scores


def _spaces(path: Path, description: Mapping[str, Any]) -> _Spaces:
    """What normalizer and pre-tokenizer do. Raises ModelFileError for what GGUF has no field for."""
    found, escaped = _Spaces(), False
    for node in parts_of(path, description, "normalizer"):
        match node:
            case {"type": "Precompiled", "precompiled_charsmap": str(stored)}:
                found.charsmap = decoded(path, stored)
            case {"type": "Prepend", "prepend": "\u2581"}:
                found.prefix = True
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                escaped = True
            case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "\u2581"} | {"type": "Strip"}:
                found.one_space = True
            case _:
                raise _unsaid(path, "normalizer", node)
    for node in parts_of(path, description, "pre_tokenizer"):
        match node:
            case {"type": "Metaspace", "replacement": "\u2581"}:
                scheme = node.get("prepend_scheme", "always" if node.get("add_prefix_space", True) else "never")
                if scheme == "first" or (scheme == "always" and not found.one_space):
                    raise ModelFileError(
                        path,
                        "puts a space before a text unless it begins with one or follows a control token, which GGUF "
                        f"can't say; {_SERVE}",
                    )
                found.prefix, escaped = found.prefix or scheme == "always", True
            case {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"} if escaped:
                pass  # no space is left to split at
            case _:
                raise _unsaid(path, "pre_tokenizer", node)
    if not escaped:
        raise ModelFileError(path, f"does not turn spaces into {_SPACE}, as GGUF's vocabularies of pieces do; {_SERVE}")
    return found


def _unsaid(path: Path, field: str, node: Mapping[str, Any]) -> ModelFileError:
    return ModelFileError(path, f"has a {field} of type {node.get('type')!r} that GGUF can't say; {_SERVE}")
