"""The tokens that a tokenizer.json lists, as GGUF has them: a text and a type for each id of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.text.gguf_vocabulary import CONTROL, NORMAL, UNUSED, USER_DEFINED


def texts_and_types(description: Mapping[str, Any], vocab: Mapping[str, int], size: int) -> tuple[list[str], list[int]]:
    """Of every id below `size`; those that the tokenizer does not know are unused.

    vocab: the model's texts and their ids. Added tokens come after them, and replace what their ids stood for.
    """
    texts, types = [f"[PAD{index}]" for index in range(size)], [UNUSED] * size
    for text, index in vocab.items():
        if index < size:
            texts[index], types[index] = text, NORMAL
    for entry in description.get("added_tokens") or []:
        if entry["id"] < size:
            texts[entry["id"]] = entry["content"]
            types[entry["id"]] = CONTROL if entry.get("special") else USER_DEFINED
    return texts, types
