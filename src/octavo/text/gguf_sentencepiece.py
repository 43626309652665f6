"""SentencePiece's vocabularies in GGUF: pieces with scores, U+2581 for spaces, bytes for what is no piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from octavo._native import ScoredMerges, Unigram
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.models.defaults import end_ids_from_gguf
from octavo.text.charsmap_limits import check_charsmap
from octavo.text.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Defaults, make_vocabulary, token_types
from octavo.text.piece_encoder import PieceEncoder
from octavo.text.vocabulary import Vocabulary

_Build = Callable[[list[bytes], npt.NDArray[np.float32], npt.NDArray[np.int32]], ScoredMerges | Unigram]

_SPACE = "\u2581".encode()
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"


def load_scored_merges(file: GgufFile) -> tuple[PieceEncoder, Vocabulary]:
    """Byte-pair encoding by scores (`tokenizer.ggml.model` llama). Raises ModelFileError."""
    prefix = file.metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    return _load(
        file,
        lambda pieces, scores, types: ScoredMerges(pieces, scores, types, prefix),
        Defaults(bos_id=1, eos_id=2, add_bos=True),
    )


def load_unigram(file: GgufFile) -> tuple[PieceEncoder, Vocabulary]:
    """The unigram model (`tokenizer.ggml.model` t5). Raises ModelFileError."""
    metadata = file.metadata
    charsmap = metadata.numbers(_CHARSMAP).tobytes() if _CHARSMAP in metadata else b""
    if charsmap:
        check_charsmap(file.path, f"metadata {_CHARSMAP}", charsmap)
    prefix = metadata.boolean("tokenizer.ggml.add_space_prefix", False)
    one_space = metadata.boolean("tokenizer.ggml.remove_extra_whitespaces", False)
    return _load(
        file,
        lambda pieces, scores, types: Unigram(pieces, scores, types, prefix, one_space, charsmap),
        Defaults(eos_id=1, add_eos=True),
    )


def _load(file: GgufFile, build: _Build, defaults: Defaults) -> tuple[PieceEncoder, Vocabulary]:
    metadata = file.metadata
    pieces = metadata.byte_strings("tokenizer.ggml.tokens")
    scores = metadata.numbers("tokenizer.ggml.scores").astype(np.float32)
    if len(scores) != len(pieces):
        raise ModelFileError(file.path, f"has {len(pieces)} tokens but {len(scores)} scores")
    end_ids = end_ids_from_gguf(metadata)
    types = token_types(file, pieces, end_ids)
    try:
        encoder = PieceEncoder(build(pieces, scores, types))
    except ValueError as error:
        raise ModelFileError(file.path, f"has a tokenizer that can't be built: {error}") from None
    return encoder, make_vocabulary(file, spoken(pieces, types), types, end_ids, defaults)


def spoken(pieces: Sequence[bytes], types: npt.NDArray[np.int32]) -> list[bytes]:
    """What each piece stands for: spaces instead of U+2581, and of a byte that byte. Others are their own texts."""
    said = [piece.replace(_SPACE, b" ") if _SPACE in piece else piece for piece in pieces]
    for index in _of_type(types, UNKNOWN, CONTROL, USER_DEFINED):
        said[index] = pieces[index]
    for index in _of_type(types, BYTE):
        said[index] = _byte(pieces[index])
    return said


def _of_type(types: npt.NDArray[np.int32], *wanted: int) -> Iterable[int]:
    indices: list[int] = np.flatnonzero(np.isin(types, wanted)).tolist()
    return indices


def _byte(piece: bytes) -> bytes:
    """The byte that "<0x41>" stands for; a piece that only claims to be one is its own text."""
    try:
        return bytes([int(piece[3:5], 16)]) if piece[:3] == b"<0x" and piece[5:] == b">" else piece
    except ValueError:
        return piece
