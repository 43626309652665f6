"""Text to tokens and back.

Control tokens (turn marks and the like) are never found by the encoder itself: it knows plain text only. They are
found here, by their texts, and only in the stretches of a text that a caller vouches for. So whatever users write, and
however it touches a template's own text, it can't become a control token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.text.encoder import Encoder
from octavo.text.gguf_tokenizer import load_gguf
from octavo.text.hf_tokenizer import load_hf
from octavo.text.vocabulary import Vocabulary

# Texts with fewer characters for each token that is allowed are encoded without a look ahead.
_USUAL_CHARS_PER_TOKEN = 8
_PIECE_CHARS = 1 << 12
# A cut in the middle of a word may add a few tokens.
_CUT_TOKENS = 16


class PromptTooLongError(ValueError):
    """A text that has more tokens than its caller can use.

    Attributes: at_least, how many tokens it has or more; max_tokens, the limit.
    """

    def __init__(self, at_least: int, max_tokens: int) -> None:
        super().__init__(f"the prompt has {at_least} tokens or more; the limit is {max_tokens}")
        self.at_least = at_least
        self.max_tokens = max_tokens


class Tokenizer:
    """One model's tokenizer. Methods may be called from several threads; encoding releases the GIL."""

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary) -> None:
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
        try:
            return cls(*load_hf(files.path))
        except ModelFileError as error:
            raise _unsupported(files) or error from None

    def is_control(self, token: int) -> bool:
        return token in self._control_ids

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: control tokens' texts become ordinary pieces."""
        return self._encode_plain(text)

    def encode_trusted(self, text: str, max_tokens: int | None = None, continues: bool = False) -> list[int]:
        """Ids of a text in which control tokens' texts stand for the tokens: a template, or a raw prompt.

        continues: it goes on after other text.
        """
        return self.encode_viewed(text, text, max_tokens, continues)

    def encode_prompt(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Ids of a whole raw prompt: as `encode_trusted`, with bos and eos where the model expects them."""
        ids = self.encode_trusted(text, max_tokens)
        facts = self.vocabulary
        if facts.add_bos and facts.bos_id is not None and ids[:1] != [facts.bos_id]:
            ids.insert(0, facts.bos_id)
        if facts.add_eos and facts.eos_id is not None and ids[-1:] != [facts.eos_id]:
            ids.append(facts.eos_id)
        return ids

    def encode_viewed(self, text: str, view: str, max_tokens: int | None = None, continues: bool = False) -> list[int]:
        """Ids of a text in which control tokens are looked for in `view` instead of in the text itself.

        view: as long as the text, and equal to it wherever the text can be trusted. All between two control tokens is
        encoded in one go, so the ids are those of encoding the text as a whole.
        max_tokens: raise PromptTooLongError for a text that surely has more, after work in proportion to this limit and
        not to the text. (A text a little above it is still encoded.)
        """
        if max_tokens is not None:
            self._check_length(text, max_tokens)
        ids: list[int] = []
        done = 0
        for match in self._control.finditer(view) if self._control else ():
            token = self.vocabulary.control[match[0]]
            before, after = self.vocabulary.swallows.get(token, (False, False))
            stretch = text[done : match.start()]
            ids += self._encode_plain(stretch.rstrip() if before else stretch, continues or bool(ids))
            ids.append(token)
            done = match.end()
            if after:
                done = len(text) - len(text[done:].lstrip())
        return ids + self._encode_plain(text[done:], continues or bool(ids))

    def control_ids_in(self, view: str) -> list[int]:
        """The control tokens that `encode_viewed` makes, in order."""
        return [self.vocabulary.control[match[0]] for match in self._control.finditer(view)] if self._control else []

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD. Unknown ids stand for nothing."""
        table, control = self.vocabulary.token_bytes, self._control_ids
        size = len(table)
        kept = (token for token in ids if not (skip_special_tokens and token in control))
        return b"".join(table[token] for token in kept if 0 <= token < size).decode(errors="replace")

    def _check_length(self, text: str, max_tokens: int) -> None:
        if len(text) <= _USUAL_CHARS_PER_TOKEN * max_tokens:
            return
        at_least = 0
        for begin in range(0, len(text), _PIECE_CHARS):
            at_least += max(0, len(self._encode_plain(text[begin : begin + _PIECE_CHARS])) - _CUT_TOKENS)
            if at_least > max_tokens:
                raise PromptTooLongError(at_least, max_tokens)

    def _encode_plain(self, text: str, continues: bool = False) -> list[int]:
        ids = self._encoder.encode(text, continues)
        if not self._control_ids.isdisjoint(ids):
            ids = [piece for token in ids for piece in self._without_control(token)]
        return ids

    def _without_control(self, token: int) -> list[int]:
        """A control token that plain text happened to become (its text is one word to the encoder), in pieces."""
        if token not in self._control_ids:
            return [token]
        text = self.vocabulary.token_bytes[token].decode(errors="replace")
        pieces = [piece for char in text for piece in self._encoder.encode(char, continues=True)]
        return [piece for piece in pieces if piece not in self._control_ids]


def _unsupported(files: ModelFiles) -> ModelFileError | None:
    """Of a model that is not supported at all, that is the news, and not its tokenizer."""
    # Only here, where the start ends anyway: the front process needs no model otherwise.
    from octavo.models.fields import MetadataError
    from octavo.models.load import check_architecture

    try:
        check_architecture(files)
    except MetadataError as error:
        return ModelFileError(files.path, str(error))
    except ModelFileError:
        return None
    return None
