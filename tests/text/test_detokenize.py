"""CASES ST-01: deltas joined are the full decode, whatever the bytes."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.params import SamplingParams
from octavo.formats.model_files import ModelFiles
from octavo.text.detokenize import Detokenizer
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer

BYTE_TABLE = [bytes([byte]) for byte in range(256)]
SAMPLE = "👨‍👩‍👧 日本語 é नमस्ते"


def deltas(table: list[bytes], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(table)
    return [*(detokenizer.push(token) for token in ids), detokenizer.end()]


def test_one_byte_tokens_never_cut_a_character() -> None:
    pieces = deltas(BYTE_TABLE, list(SAMPLE.encode()))
    assert "".join(pieces) == SAMPLE
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[:4] == ["", "", "", "👨"]


def test_cut_in_the_middle_of_a_character() -> None:
    pieces = deltas(BYTE_TABLE, list("é日".encode()[:-1]))
    assert pieces == ["", "é", "", "", "\ufffd"]


def test_invalid_bytes_do_not_stall() -> None:
    assert deltas(BYTE_TABLE, [0xFF, 0x41, 0xC0, 0x42, 0x80]) == ["\ufffd", "A", "\ufffd", "B", "\ufffd", ""]
    # An unfinished character is given up as soon as another byte shows that it will not be finished.
    assert deltas(BYTE_TABLE, [0xE6, 0x97, 0x41]) == ["", "", "\ufffdA", ""]


@given(st.binary(max_size=40))
def test_joined_deltas_are_the_full_decode(data: bytes) -> None:
    assert "".join(deltas(BYTE_TABLE, list(data))) == data.decode(errors="replace")


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=20), st.data())
def test_any_tokens_any_order(table: list[bytes], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=40))
    pieces = deltas(table, ids)
    raw = b"".join(table[token] for token in ids)
    assert "".join(pieces) == raw.decode(errors="replace")
    if "\ufffd" not in raw.decode(errors="replace"):
        assert not any("\ufffd" in piece for piece in pieces)


def test_ids_outside_the_vocabulary_stand_for_nothing() -> None:
    assert deltas(BYTE_TABLE, [0x41, -1, 256, 0x42]) == ["A", "", "", "B", ""]


def test_real_vocabulary(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(SAMPLE)
    output = TextOutput(tokenizer, SamplingParams())
    pieces = [*(output.push(token) for token in ids), output.end()]
    assert "".join(pieces) == SAMPLE == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert b"".join(tokenizer.vocabulary.token_bytes[token] for token in ids) == SAMPLE.encode()


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_trusted("<|im_start|>user\nhi<|im_end|>")

    def text(skip_special: bool, include_stop: bool) -> str:
        output = TextOutput(
            tokenizer, SamplingParams(include_stop_str_in_output=include_stop, skip_special_tokens=skip_special)
        )
        pieces = [output.push(token, ends=index == len(ids) - 1) for index, token in enumerate(ids)]
        return "".join(pieces) + output.end()

    assert text(skip_special=True, include_stop=False) == "user\nhi"
    assert text(skip_special=False, include_stop=False) == "<|im_start|>user\nhi"
    assert text(skip_special=False, include_stop=True) == "<|im_start|>user\nhi<|im_end|>"


def test_cost_per_token(tokenizer: Tokenizer, default_model: ModelFiles) -> None:
    """Below 10 us with four stop strings: the HTTP process does this for every token of every stream."""
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog, again and again.\n" * 100)

    def once() -> float:
        output = TextOutput(tokenizer, SamplingParams(stop=("\n\n", "User:", "###", "</s>")))
        start = time.process_time()
        for token in ids:
            output.push(token)
        return (time.process_time() - start) / len(ids)

    assert min(once() for _ in range(5)) < 10e-6
