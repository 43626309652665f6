"""The text of one growing sequence: tokens in, text that is safe to send out."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.text.detokenize import Detokenizer
from octavo.text.stop import StopStrings
from octavo.text.tokenizer import Tokenizer


class TextOutput:
    """Detokenising, special tokens and stop strings together. Streamed or not, the texts joined are the same.

    include_stop: the stop string, and a token that ends the turn, are part of the text.
    skip_special: control tokens have no text.

    Attributes: stopped, whether a stop string was found (the sequence is over then); counts_last, whether the last
    token belongs to the answer (a token that only ends the turn does not).
    """

    __slots__ = ("_detokenizer", "_include_stop", "_skip_special", "_stop", "_tokenizer", "counts_last", "stopped")

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.vocabulary.token_bytes)
        self._stop = StopStrings(stop, include_stop) if stop else None
        self._include_stop = include_stop
        self._skip_special = skip_special
        self.stopped = False
        self.counts_last = True

    def push(self, token: int, ends: bool = False) -> str:
        """One more token; `ends`: it is the one that ended the turn. Returns the text to send now."""
        self.counts_last = not ends or self._include_stop
        if not self.counts_last or (self._skip_special and self._tokenizer.is_control(token)):
            return ""
        return self._checked(self._detokenizer.push(token))

    def end(self) -> str:
        """The sequence has ended; returns what was held back."""
        text = self._checked(self._detokenizer.end())
        return text if self._stop is None else text + self._stop.end()

    def _checked(self, text: str) -> str:
        if self._stop is None:
            return text
        text = self._stop.push(text)
        self.stopped = self._stop.found is not None
        return text
