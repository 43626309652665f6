"""SentencePiece's vocabularies in GGUF: pieces with scores, U+2581 for spaces, bytes for what is no piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.text.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, USER_DEFINED, Defaults, make_vocabulary, token_types
from octavo.text.scored_encoder import ScoredEncoder
from octavo.text.vocabulary import Vocabulary

_SPACE = "\u2581".encode()
_DEFAULTS = Defaults(bos_id=1, eos_id=2, add_bos=True)


def load_scored_merges(file: GgufFile) -> tuple[ScoredEncoder, Vocabulary]:
    """Byte-pair encoding by scores (`tokenizer.ggml.model` llama). Raises ModelFileError."""
    pieces, scores, types = read_pieces(file)
    prefix = file.metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    try:
        encoder = ScoredEncoder(pieces, scores, types, prefix)
    except ValueError as error:
        raise ModelFileError(file.path, f"has a tokenizer that can't be built: {error}") from None
    return encoder, make_vocabulary(file, spoken(pieces, types), types, _DEFAULTS)


def read_pieces(file: GgufFile) -> tuple[list[bytes], npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Text, score and type of each token. Raises ModelFileError."""
    pieces = file.metadata.byte_strings("tokenizer.ggml.tokens")
    scores = file.metadata.numbers("tokenizer.ggml.scores").astype(np.float32)
    if len(scores) != len(pieces):
        raise ModelFileError(file.path, f"has {len(pieces)} tokens but {len(scores)} scores")
    return pieces, scores, token_types(file, len(pieces))


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
