"""Byte-level byte-pair encoding in GGUF: tokens in GPT-2's alphabet, and a list of merges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.models.defaults import end_ids_from_gguf
from octavo.text.byte_level import ALPHABET, bytes_of_tokens
from octavo.text.gguf_vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Defaults, make_vocabulary, token_types
from octavo.text.plain_encoder import PlainEncoder
from octavo.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.vocabulary import Vocabulary


def load_byte_level(file: GgufFile) -> tuple[PlainEncoder, Vocabulary]:
    """The tokenizer (`tokenizer.ggml.model` gpt2), cut as `tokenizer.ggml.pre` says. Raises ModelFileError."""
    pre = _pre_tokenizer(file)
    texts = file.metadata.strings("tokenizer.ggml.tokens")
    end_ids = end_ids_from_gguf(file.metadata)
    types = token_types(file, texts, end_ids)
    encoder = _encoder(file, texts, pre)
    words = [texts[index] for index in np.flatnonzero(types == USER_DEFINED).tolist()]
    encoder.add_tokens([AddedToken(text, normalized=False) for text in words if text])
    token_bytes = bytes_of_tokens(texts)
    for index in np.flatnonzero(np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED))).tolist():
        token_bytes[index] = texts[index].encode()
    vocabulary = make_vocabulary(file, token_bytes, types, end_ids, Defaults(add_bos=pre.add_bos))
    return PlainEncoder(encoder, len(texts)), vocabulary


def _pre_tokenizer(file: GgufFile) -> PreTokenizer:
    name = file.metadata.string("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise ModelFileError(
            file.path, f"has the pre-tokenizer {name!r}, which is not known; known are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _encoder(file: GgufFile, texts: Sequence[str], pre: PreTokenizer) -> tokenizers.Tokenizer:
    ids = {text: index for index, text in enumerate(texts)}
    try:
        merges = [(left, right) for left, right in map(str.split, file.metadata.strings("tokenizer.ggml.merges"))]
    except ValueError:
        raise ModelFileError(
            file.path, "metadata tokenizer.ggml.merges must hold pairs with one space between"
        ) from None
    # A byte without a token of its own is dropped, but its neighbours must not merge across it: it becomes an id past
    # the vocabulary, which PlainEncoder leaves out.
    hole = None
    if any(char not in ids for char in ALPHABET):
        hole = "\0missing"
        ids[hole] = len(texts)
    try:
        model = models.BPE(ids, merges, unk_token=hole, ignore_merges=pre.whole_words)
        encoder = tokenizers.Tokenizer(model)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is no Exception
        raise ModelFileError(file.path, f"has a tokenizer that can't be built: {error}") from None
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in pre.cuts]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    return encoder
