"""Plain text to token ids: a tokenizer of the `tokenizers` library to which control tokens are just text."""

from __future__ import annotations

import secrets

import tokenizers
from tokenizers import AddedToken

from octavo.text.encoder import HalfCharacterError


class PlainEncoder:
    """Encodes stretches of text. May be used by several threads; encoding lets other threads run.

    size: number of ids in the vocabulary; the library's ids from there on stand for nothing and are left out.
    first_differs: the tokenizer treats the beginning of a text in its own way (SentencePiece's leading space). A
    stretch that continues a text is then encoded behind a mark, a word of its own that nobody can guess.
    unknown: id and text of the control token for characters that the vocabulary can't say. They are left out.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        size: int,
        first_differs: bool = False,
        unknown: tuple[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self._unknown_id, self._unknown_text = unknown or (-1, "")
        self._mark = ""
        if first_differs:
            self._mark = f"\0{secrets.token_hex(16)}"
            tokenizer.add_tokens([AddedToken(self._mark, normalized=False)])

    def to_json(self) -> str:
        """The tokenizer as the `tokenizers` library writes it (tokenizer.json), without control tokens."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, continues: bool = False) -> list[int]:
        """Ids of a text, or of a stretch that continues one. Raises ValueError for lone surrogates."""
        if not text:
            return []
        marked = self._mark + text if continues else text
        # Unlike encode, the batch call lets other threads run.
        try:
            ids: list[int] = self._tokenizer.encode_batch_fast([marked], add_special_tokens=False)[0].ids
        except TypeError:  # the library takes whatever is valid UTF-8
            raise HalfCharacterError from None
        if self._unknown_id in ids:
            ids = self._without_unknown(marked)
        if max(ids, default=0) >= self._size:
            return [token for token in ids if token < self._size]
        return ids

    def _without_unknown(self, text: str) -> list[int]:
        """Ids of a text; that token stays where the text spells it out, as often as it does."""
        # The fast call leaves out which stretch each token stands for.
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        ids: list[int] = []
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # Characters that are unknown may be one token together, also with the text beside them.
            times = text.count(self._unknown_text, begin, end) if token == self._unknown_id else 1
            ids += [token] * times
        return ids
