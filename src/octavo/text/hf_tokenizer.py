"""A tokenizer from a model folder's tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from octavo.formats.errors import ModelFileError
from octavo.formats.safetensors import read_json
from octavo.models.defaults import end_ids_from_folder
from octavo.text.byte_level import bytes_of_tokens
from octavo.text.normalizer_limits import check_growth, parts_of
from octavo.text.plain_encoder import PlainEncoder
from octavo.text.vocabulary import BYTE_TOKEN, MAX_TOKENS, Vocabulary

_MAX_JSON_BYTES = 64 << 20


def load_hf(folder: Path) -> tuple[PlainEncoder, Vocabulary]:
    """The encoder of plain text and the vocabulary. Raises ModelFileError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(path, "is missing; a folder needs it (tokenizer.model and vocab.json are not read)")
    description = read_json(path, _MAX_JSON_BYTES)
    check_growth(path, description)
    tokenizer, sample_ids = _tokenizer(path)
    config = _optional(folder / "tokenizer_config.json")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if max(ids.values(), default=0) >= MAX_TOKENS:
        raise ModelFileError(path, f"has token id {max(ids.values())}; the limit is {MAX_TOKENS - 1}")
    added = _added_tokens(path, description)
    special = {text: entry for text, entry in added.items() if entry.get("special") and text in ids and text}
    bos_id = ids.get(_token_text(config.get("bos_token")))
    eos_id = ids.get(_token_text(config.get("eos_token")))
    end_ids = set(end_ids_from_folder(folder, _optional(folder / "config.json")))
    vocabulary = Vocabulary(
        token_bytes=_token_bytes(ids, added, _types(path, description, "decoder")),
        control={text: ids[text] for text in special},
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=frozenset(end_ids if eos_id is None else end_ids | {eos_id}),
        add_bos=bool(config.get("add_bos_token", bos_id is not None and sample_ids[:1] == [bos_id])),
        add_eos=bool(config.get("add_eos_token", eos_id is not None and sample_ids[-1:] == [eos_id])),
        swallows={
            ids[text]: (bool(entry.get("lstrip")), bool(entry.get("rstrip")))
            for text, entry in special.items()
            if entry.get("lstrip") or entry.get("rstrip")
        },
    )
    first_differs = "Metaspace" in _types(path, description, "pre_tokenizer")
    unknown = _unknown(description.get("model"), {text: ids[text] for text in special})
    return PlainEncoder(tokenizer, vocabulary.size, first_differs, unknown), vocabulary.checked(path)


def _unknown(model: object, control: Mapping[str, int]) -> tuple[int, str] | None:
    """Id and text of the token for what the vocabulary can't say, if that is a control token."""
    if not isinstance(model, dict):
        return None
    text = model.get("unk_token")
    if model.get("type") == "Unigram" and isinstance(index := model.get("unk_id"), int):
        text = model["vocab"][index][0]
    return (control[text], text) if isinstance(text, str) and text in control else None


def _tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, list[int]]:
    """The library's tokenizer, with special tokens as plain text, and a sample encoded with what it adds to a text."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return tokenizer, tokenizer.encode("a", add_special_tokens=True).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        raise ModelFileError(path, f"can't be read: {error}") from None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path, _MAX_JSON_BYTES) if path.exists() else {}


def _token_text(value: object) -> str:
    """bos_token and eos_token are a text, or an object with it, or null."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _added_tokens(path: Path, description: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    entries = description.get("added_tokens") or []
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in entries
    ):
        raise ModelFileError(path, "added_tokens must be a list of objects with content")
    return {entry["content"]: entry for entry in entries}


def _types(path: Path, description: Mapping[str, Any], field: str) -> set[str]:
    """The types of its decoder or pre-tokenizer, or of those it is made of."""
    return {node["type"] for node in parts_of(path, description, field)}


def _token_bytes(
    ids: Mapping[str, int], added: Mapping[str, Mapping[str, Any]], decoder_types: set[str]
) -> list[bytes]:
    """What each id stands for, after the decoder: byte-level, SentencePiece with byte fallback, or plain text.

    Special tokens are their own texts. Other added ones are so in a byte-level vocabulary only: SentencePiece's may
    hold U+2581 for spaces as all its pieces do.
    """
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, index in ids.items():
        texts[index] = text
    byte_level = "ByteLevel" in decoder_types
    token_bytes = bytes_of_tokens(texts) if byte_level else _sentencepiece_bytes(texts)
    for text, entry in added.items():
        if text in ids and (byte_level or entry.get("special")):
            token_bytes[ids[text]] = text.encode()
    return token_bytes


def _sentencepiece_bytes(texts: Sequence[str]) -> list[bytes]:
    result = []
    for text in texts:
        byte = BYTE_TOKEN.fullmatch(text)
        result.append(bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode(errors="replace"))
    return result
