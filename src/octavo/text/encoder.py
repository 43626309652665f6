"""What turns plain text into token ids: one implementation for each kind of vocabulary."""

from __future__ import annotations

from typing import Protocol


class Encoder(Protocol):
    """Encodes stretches of text to which control tokens are just text. May be used by several threads."""

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Ids of a text, or of a stretch that continues one. Raises ValueError for lone surrogates."""
        ...


class HalfCharacterError(ValueError):
    """A text with a lone surrogate, which has no UTF-8."""

    def __init__(self) -> None:
        super().__init__("a text holds half a character (a lone surrogate); was it read as UTF-8?")
