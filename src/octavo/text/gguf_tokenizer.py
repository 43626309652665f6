"""A tokenizer from GGUF metadata, by the kind that `tokenizer.ggml.model` names."""

from __future__ import annotations

from collections.abc import Callable

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.text.encoder import Encoder
from octavo.text.gguf_byte_level import load_byte_level
from octavo.text.gguf_sentencepiece import load_scored_merges, load_unigram
from octavo.text.vocabulary import Vocabulary

_KINDS: dict[str, Callable[[GgufFile], tuple[Encoder, Vocabulary]]] = {
    "gpt2": load_byte_level,
    "llama": load_scored_merges,
    "t5": load_unigram,
}


def load_gguf(file: GgufFile) -> tuple[Encoder, Vocabulary]:
    """The encoder of plain text and the vocabulary. Raises ModelFileError."""
    model = file.metadata.string("tokenizer.ggml.model")
    load = _KINDS.get(model)
    if load is None:
        raise ModelFileError(
            file.path,
            f"has a tokenizer of kind {model!r}; supported are gpt2 (byte-level BPE), llama (SentencePiece BPE) and t5 "
            "(SentencePiece unigram)",
        )
    return load(file)
