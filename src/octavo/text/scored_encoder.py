"""Plain text to token ids where pieces have scores instead of merges: SentencePiece's byte-pair encoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo._native import ScoredMerges
from octavo.text.encoder import HalfCharacterError


class ScoredEncoder:
    """Encodes stretches of text (csrc/scored_merges.h). May be used by several threads; encoding lets others run.

    pieces: UTF-8 of each, U+2581 for spaces; scores: the higher, the sooner a piece is made; kinds: GGUF's token types.
    space_prefix: each stretch of text begins with a space, whether it continues another one or not. Raises ValueError
    for a score that is no number.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        scores: npt.NDArray[np.float32],
        kinds: npt.NDArray[np.int32],
        space_prefix: bool,
    ) -> None:
        self._merges = ScoredMerges(list(pieces), scores, kinds, space_prefix)

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Ids of a text. Bytes of characters that the vocabulary can't say are left out. Raises ValueError."""
        try:
            return self._merges.encode(text.encode())
        except UnicodeEncodeError:
            raise HalfCharacterError from None
