"""Facts about a model's tokens, whichever file they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model.

    token_bytes: what each token id stands for; ids the tokenizer does not know stand for nothing (b"").
    control: text of each control token (turn marks and the like) -> its id. They are never made from user text.
    end_ids: every id that ends a turn. add_bos, add_eos: the model was trained with them around a plain text.
    """

    token_bytes: list[bytes]
    control: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    def text(self, token: int | None) -> str:
        """A token's text, for the variables bos_token and eos_token of chat templates; "" for None."""
        return "" if token is None else self.token_bytes[token].decode(errors="replace")
