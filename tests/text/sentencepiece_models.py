"""The small vocabularies of goldens/sentencepiece.json as GGUF metadata, with spaces treated in different ways."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np

from octavo.formats.gguf_metadata import Value

_FOLDER = Path(__file__).parent / "goldens"
STORED: dict[str, list[tuple[str, float, int]]] = json.loads((_FOLDER / "sentencepiece.json").read_text())
CHARSMAP = _FOLDER / "nmt_nfkc.charsmap.xz"


def metadata(trained: str, model: str, **changes: Value) -> dict[str, Value]:
    """trained: bpe or unigram; model: as GGUF calls it. changes: of keys after "tokenizer.ggml."."""
    texts, scores, types = zip(*STORED[trained], strict=True)
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


_BPE = metadata("bpe", "llama")
#: Few scores: of two pieces with the same one, the left one is made first.
_TIED = np.ceil(np.asarray(_BPE["tokenizer.ggml.scores"]) / 100).astype(np.float32)

MODELS = {
    "merges": _BPE,
    "merges, no space before a text": metadata("bpe", "llama", add_space_prefix=False),
    "merges, equal scores": metadata("bpe", "llama", scores=_TIED, add_space_prefix=False),
}

#: By SentencePiece itself, not by llama.cpp.
UNIGRAM = metadata("unigram", "t5", add_space_prefix=True, add_bos_token=True, add_eos_token=False)


def charsmap() -> bytes:
    """The map that SentencePiece normalises texts by unless it is told otherwise."""
    return lzma.decompress(CHARSMAP.read_bytes())


def normalised_unigram() -> dict[str, Value]:
    """UNIGRAM behind that map, spaces made one."""
    stored = np.frombuffer(charsmap(), np.int8)
    return metadata(
        "unigram",
        "t5",
        add_space_prefix=True,
        add_bos_token=True,
        add_eos_token=False,
        remove_extra_whitespaces=True,
        precompiled_charsmap=stored,
    )
