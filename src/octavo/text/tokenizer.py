"""Text to tokens and back.

Control tokens (turn marks and the like) are never found by the encoder itself: it knows plain text only. They are
found here, by their texts, and only in the stretches of a text that a caller vouches for. So whatever users write, and
however it touches a template's own text, it can't become a control token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import tokenizers

from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.text.gguf_tokenizer import load_gguf
from octavo.text.hf_tokenizer import load_hf
from octavo.text.vocabulary import Vocabulary


class Tokenizer:
    """One model's tokenizer. Methods may be called from several threads; encoding releases the GIL."""

    def __init__(self, encoder: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._encoder = encoder
        self._control_ids = frozenset(vocabulary.control.values())
        longest_first = sorted(vocabulary.control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def load(cls, files: ModelFiles) -> Tokenizer:
        """From GGUF metadata or tokenizer.json. Raises ModelFileError."""
        if files.kind == "gguf":
            return cls(*load_gguf(GgufFile.open(files.path)))
        return cls(*load_hf(files.path))

    def is_control(self, token: int) -> bool:
        return token in self._control_ids

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: control tokens' texts become ordinary pieces."""
        return self._encode_plain(text)

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of a text in which control tokens' texts stand for the tokens: a template, or a raw prompt."""
        return self.encode_viewed(text, text)

    def encode_prompt(self, text: str, trusted: bool = True) -> list[int]:
        """Ids of a whole prompt: as `encode_trusted` or `encode`, with bos and eos where the model expects them."""
        ids = self.encode_trusted(text) if trusted else self.encode(text)
        facts = self.vocabulary
        if facts.add_bos and facts.bos_id is not None and ids[:1] != [facts.bos_id]:
            ids.insert(0, facts.bos_id)
        if facts.add_eos and facts.eos_id is not None and ids[-1:] != [facts.eos_id]:
            ids.append(facts.eos_id)
        return ids

    def encode_viewed(self, text: str, view: str) -> list[int]:
        """Ids of a text in which control tokens are looked for in `view` instead of in the text itself.

        view: as long as the text, and equal to it wherever the text can be trusted. All between two control tokens is
        encoded in one go, so the ids are those of encoding the text as a whole.
        """
        ids: list[int] = []
        done = 0
        for match in self._control.finditer(view) if self._control else ():
            ids += self._encode_plain(text[done : match.start()])
            ids.append(self.vocabulary.control[match[0]])
            done = match.end()
        return ids + self._encode_plain(text[done:])

    def control_ids_in(self, view: str) -> list[int]:
        """The control tokens that `encode_viewed` makes, in order."""
        return [self.vocabulary.control[match[0]] for match in self._control.finditer(view)] if self._control else []

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD. Unknown ids stand for nothing."""
        table, control = self.vocabulary.token_bytes, self._control_ids
        size = len(table)
        kept = (token for token in ids if not (skip_special_tokens and token in control))
        return b"".join(table[token] for token in kept if 0 <= token < size).decode(errors="replace")

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        # Unlike encode, the batch call lets other threads run.
        ids: list[int] = self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        size = self.vocabulary.size
        if size in ids:
            ids = [token for token in ids if token != size]
        if not self._control_ids.isdisjoint(ids):
            ids = [piece for token in ids for piece in self._without_control(token)]
        return ids

    def _without_control(self, token: int) -> list[int]:
        """A control token that plain text happened to become (its text is one word to the encoder), in pieces."""
        if token not in self._control_ids:
            return [token]
        text = self.vocabulary.token_bytes[token].decode(errors="replace")
        pieces = [self._encoder.encode(char, add_special_tokens=False).ids for char in text]
        return [piece for ids in pieces for piece in ids if piece not in self._control_ids]
