"""What an oracle says about a tokenizer, kept as a few characters for each text, and the comparison with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.text.token_samples import FIXED, random_texts

if TYPE_CHECKING:  # not every oracle's environment holds octavo
    from octavo.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "goldens"
_DIGITS = 6

Golden = dict[str, str]
Oracle = Callable[[str, bool], Sequence[int]]


def make(oracle: Oracle, count: int) -> Golden:
    """oracle(text, control): ids; control: texts of control tokens stand for the tokens. count: of random texts."""
    return {
        "plain": "".join(_digest(oracle(text, False)) for text in FIXED),
        "control": "".join(_digest(oracle(text, True)) for text in FIXED),
        "random": "".join(_digest(oracle(text, False)) for text in random_texts(count, 0)),
    }


def assert_equal(tokenizer: Tokenizer, golden: Golden) -> None:
    """Ids of every text as the oracle has them; the message shows the texts that differ."""
    texts = random_texts(len(golden["random"]) // _DIGITS, 0)
    assert [text for text, ids in _paired(FIXED, golden["plain"]) if _digest(tokenizer.encode(text)) != ids] == []
    assert [
        text for text, ids in _paired(FIXED, golden["control"]) if _digest(tokenizer.encode_trusted(text)) != ids
    ] == []
    assert [text for text, ids in _paired(texts, golden["random"]) if _digest(tokenizer.encode(text)) != ids] == []


def read(name: str) -> dict[str, Golden]:
    """Goldens of a file: name of a tokenizer -> golden."""
    goldens: dict[str, Golden] = json.loads((FOLDER / f"{name}.json").read_text())
    return goldens


def write(name: str, goldens: dict[str, Golden]) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in goldens.items()]
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _paired(texts: Sequence[str], digests: str) -> list[tuple[str, str]]:
    return list(zip(texts, (digests[i : i + _DIGITS] for i in range(0, len(digests), _DIGITS)), strict=True))


def _digest(ids: Sequence[int]) -> str:
    """Six hex digits that stand for a list of ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:_DIGITS]
