"""A tokenizer from a model folder's tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from octavo.formats.errors import ModelFileError
from octavo.formats.safetensors import read_json
from octavo.models.defaults import end_ids_from_folder
from octavo.text.byte_level import bytes_of_tokens
from octavo.text.vocabulary import Vocabulary

_MAX_JSON_BYTES = 64 << 20
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def load_hf(folder: Path) -> tuple[tokenizers.Tokenizer, Vocabulary]:
    """The encoder of plain text (control tokens are just text to it) and the vocabulary. Raises ModelFileError."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelFileError(path, "is missing; a folder needs it (tokenizer.model and vocab.json are not read)")
    description = read_json(path, _MAX_JSON_BYTES)
    encoder = _encoder(path)
    config = _optional(folder / "tokenizer_config.json")
    ids = encoder.get_vocab(with_added_tokens=True)
    added = _added_tokens(path, description)
    token_bytes = _token_bytes(ids, added, _node_types(description.get("decoder")))
    control = {text: ids[text] for text, entry in added.items() if entry.get("special") and text in ids}
    bos_id = ids.get(_token_text(config.get("bos_token")))
    eos_id = ids.get(_token_text(config.get("eos_token")))
    template_ids = encoder.encode("a", add_special_tokens=True).ids
    vocabulary = Vocabulary(
        token_bytes=token_bytes,
        control=control,
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=frozenset(end_ids_from_folder(folder, _optional(folder / "config.json")))
        | ({eos_id} if eos_id is not None else set()),
        add_bos=bool(config.get("add_bos_token", bos_id is not None and template_ids[:1] == [bos_id])),
        add_eos=bool(config.get("add_eos_token", eos_id is not None and template_ids[-1:] == [eos_id])),
    )
    return encoder, vocabulary


def _encoder(path: Path) -> tokenizers.Tokenizer:
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        raise ModelFileError(path, f"can't be read: {error}") from None
    encoder.no_truncation()
    encoder.no_padding()
    encoder.encode_special_tokens = True
    return encoder


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


def _node_types(node: object) -> set[str]:
    """The types of a decoder and of those it is made of."""
    if not isinstance(node, dict):
        return set()
    return {str(node.get("type"))}.union(*(_node_types(part) for part in node.get("decoders") or []))


def _token_bytes(ids: Mapping[str, int], added: Mapping[str, object], decoder_types: set[str]) -> list[bytes]:
    """What each id stands for, after the decoder: byte-level, SentencePiece with byte fallback, or plain text."""
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, index in ids.items():
        texts[index] = text
    token_bytes = bytes_of_tokens(texts) if "ByteLevel" in decoder_types else _sentencepiece_bytes(texts)
    for text in added:
        if text in ids:
            token_bytes[ids[text]] = text.encode()
    return token_bytes


def _sentencepiece_bytes(texts: Sequence[str]) -> list[bytes]:
    result = []
    for text in texts:
        byte = _BYTE_TOKEN.fullmatch(text)
        result.append(bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode(errors="replace"))
    return result
