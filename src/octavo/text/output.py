"""The text of one growing sequence: tokens in, text that is safe to send out."""

from __future__ import annotations

from octavo.engine.params import SamplingParams
from octavo.text.detokenize import Detokenizer
from octavo.text.stop import StopStrings
from octavo.text.tokenizer import Tokenizer


class TextOutput:
    """Detokenising, special tokens and stop strings together. Streamed or not, the texts joined are the same.

    Of the parameters: with include_stop_str_in_output the stop string, and a token that ends the turn, are part of the
    text; with skip_special_tokens control tokens have no text; no stop string begins in that of min_tokens tokens.

    Attributes: stopped, whether a stop string was found (the sequence is over then); counts_last, whether the last
    token belongs to the answer (a token that only ends the turn does not).
    """

    __slots__ = (
        *("_detokenizer", "_include_stop", "_skip_special", "_stop", "_tokenizer", "_unsearched"),
        *("counts_last", "stopped"),
    )

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.vocabulary.token_bytes)
        self._include_stop = params.include_stop_str_in_output
        self._stop = StopStrings(params.stop, self._include_stop) if params.stop else None
        self._unsearched = params.min_tokens
        self._skip_special = params.skip_special_tokens
        self.stopped = False
        self.counts_last = True

    def push(self, token: int, ends: bool = False) -> str:
        """One more token; `ends`: it is the one that ended the turn. Returns the text to send now."""
        early = self._unsearched > 0
        self._unsearched -= early
        self.counts_last = not ends or self._include_stop
        if not self.counts_last or (self._skip_special and self._tokenizer.is_control(token)):
            return ""
        text = self._detokenizer.push(token)
        return text if early else self._checked(text)

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
