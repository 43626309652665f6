"""A tokenizer from GGUF metadata: byte-level byte-pair encoding (`tokenizer.ggml.model` gpt2)."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.models.defaults import end_ids_from_gguf
from octavo.text.byte_level import ALPHABET, bytes_of_tokens
from octavo.text.plain_encoder import PlainEncoder
from octavo.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.vocabulary import Vocabulary

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def load_gguf(file: GgufFile) -> tuple[PlainEncoder, Vocabulary]:
    """The encoder of plain text and the vocabulary. Raises ModelFileError."""
    metadata = file.metadata
    model = metadata.string("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(file.path, f"has a tokenizer of kind {model!r}; supported is gpt2 (byte-level BPE)")
    pre = _pre_tokenizer(file)
    texts = metadata.strings("tokenizer.ggml.tokens")
    types = _token_types(file, len(texts))
    encoder = _encoder(file, texts, pre)
    own_text = {
        index: texts[index] for index, type_ in enumerate(types) if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }
    encoder.add_tokens(
        [
            AddedToken(text, normalized=False)
            for index, text in own_text.items()
            if types[index] == _USER_DEFINED and text
        ]
    )
    token_bytes = bytes_of_tokens(texts)
    for index, text in own_text.items():
        token_bytes[index] = text.encode()
    vocabulary = Vocabulary(
        token_bytes=token_bytes,
        control={text: index for index, text in own_text.items() if types[index] != _USER_DEFINED and text},
        bos_id=_special_id(file, "bos_token_id", len(texts)),
        eos_id=_special_id(file, "eos_token_id", len(texts)),
        end_ids=frozenset(end_ids_from_gguf(metadata)),
        add_bos=metadata.boolean("tokenizer.ggml.add_bos_token", pre.add_bos),
        add_eos=metadata.boolean("tokenizer.ggml.add_eos_token", False),
    )
    return PlainEncoder(encoder, len(texts)), vocabulary.checked(file.path)


def _pre_tokenizer(file: GgufFile) -> PreTokenizer:
    name = file.metadata.string("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise ModelFileError(
            file.path, f"has the pre-tokenizer {name!r}, which is not known; known are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _token_types(file: GgufFile, count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in file.metadata:
        return [1] * count
    types: list[int] = file.metadata.numbers("tokenizer.ggml.token_type").tolist()
    if len(types) != count:
        raise ModelFileError(file.path, f"has {count} tokens but {len(types)} token types")
    return types


def _special_id(file: GgufFile, key: str, count: int) -> int | None:
    token = file.metadata.integer(f"tokenizer.ggml.{key}", -1)
    if token >= count:
        raise ModelFileError(file.path, f"has {key} {token}, but only {count} tokens")
    return None if token < 0 else token


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
