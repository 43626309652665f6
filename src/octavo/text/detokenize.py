"""Tokens to text as they come, without ever cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Detokenizer:
    """An incremental UTF-8 decoder over token bytes.

    The texts that `push` and `end` return, joined, equal the bytes of all tokens decoded at once, with U+FFFD for what
    is no UTF-8. Bytes of an unfinished character are held until it is finished, or can't be any more: at most 3 bytes.
    """

    __slots__ = ("_held", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._held = b""

    def push(self, token: int) -> str:
        """One more token; the text that is complete now. Ids outside the vocabulary stand for nothing."""
        if not 0 <= token < len(self._token_bytes):
            return ""
        data = self._held + self._token_bytes[token]
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def end(self) -> str:
        """What is left: U+FFFD if the last character is unfinished."""
        data, self._held = self._held, b""
        return data.decode(errors="replace")
