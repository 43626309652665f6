"""The words in a request's parameters as token ids: what the engine, which knows no text, looks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import lru_cache

from octavo.engine.params import SamplingParams, Word
from octavo.text.tokenizer import Tokenizer

Ids = tuple[int, ...]

_KNOWN_BREAKERS = 64


class Words:
    """Turns words into token ids. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._breaker = lru_cache(_KNOWN_BREAKERS)(self._find_breaker)

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """The parameters with no text left in `bad_words` and `dry_sequence_breakers`."""
        breakers = self._all(params.dry_sequence_breakers, self._breaker) if params.dry_multiplier else ()
        bad_words = self._all(params.bad_words, self._bad_word)
        if (bad_words, breakers) == (params.bad_words, params.dry_sequence_breakers):
            return params
        return dataclasses.replace(params, bad_words=bad_words, dry_sequence_breakers=breakers)

    @staticmethod
    def _all(words: Iterable[Word], find: Callable[[str], list[Ids]]) -> tuple[Ids, ...]:
        found: dict[Ids, None] = {}
        for word in words:
            found.update(dict.fromkeys(find(word) if isinstance(word, str) else (word,)))
        return tuple(found)

    def _bad_word(self, text: str) -> list[Ids]:
        """The word at the beginning of a text, inside one, and after a space: each is other tokens."""
        encode, word = self._tokenizer.encode_trusted, text.lstrip() or text
        ways = (encode(word), encode(word, continues=True), encode(" " + word, continues=True))
        return [tuple(ids) for ids in ways if ids]

    def _find_breaker(self, text: str) -> list[Ids]:
        """Every token whose text holds the breaker; the breaker's own tokens if there is none."""
        wanted = text.encode(errors="surrogatepass")
        holding = [(token,) for token, data in enumerate(self._tokenizer.vocabulary.token_bytes) if wanted in data]
        if holding:
            return list(holding)
        ids = self._tokenizer.encode_trusted(text, continues=True)
        return [tuple(ids)] if ids else []
