"""Facts about a model's tokens, whichever file they come from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from octavo.formats.errors import ModelFileError

MAX_TOKENS = 1 << 22
MAX_CONTROL_TOKENS = 1 << 16

#: What vocabularies of SentencePiece call the token of a byte.
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model.

    token_bytes: what each token id stands for; ids the tokenizer does not know stand for nothing (b"").
    control: text of each control token (turn marks and the like) -> its id. They are never made from user text.
    end_ids: every id that ends a turn. add_bos, add_eos: the model was trained with them around a plain text.
    swallows: control tokens that take the white space before them (first flag) or after them (second) with them.
    """

    token_bytes: list[bytes]
    control: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    swallows: dict[int, tuple[bool, bool]] = field(default_factory=dict)

    def checked(self, path: Path) -> Vocabulary:
        """Self; ModelFileError if it is too much to search texts for."""
        if len(self.control) > MAX_CONTROL_TOKENS:
            raise ModelFileError(path, f"has {len(self.control)} control tokens; the limit is {MAX_CONTROL_TOKENS}")
        return self

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    def text(self, token: int | None) -> str:
        """A token's text, for the variables bos_token and eos_token of chat templates; "" for None."""
        return "" if token is None else self.token_bytes[token].decode(errors="replace")
