"""Plain text to token ids where pieces have scores: SentencePiece's two algorithms, both native."""

from __future__ import annotations

from octavo._native import ScoredMerges, Unigram
from octavo.text.encoder import HalfCharacterError


class PieceEncoder:
    """Encodes stretches of text. May be used by several threads; encoding lets others run.

    Each stretch begins with a space, or not, whether it continues a text or not. Bytes of characters that the
    vocabulary can't say are left out.
    """

    def __init__(self, native: ScoredMerges | Unigram) -> None:
        self._native = native

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Ids of a text. Raises ValueError for lone surrogates."""
        try:
            return self._native.encode(text.encode())
        except UnicodeEncodeError:
            raise HalfCharacterError from None
