"""Gemma 3 270M's vocabulary of 262,144 pieces: ids equal llama.cpp's own, and loading is quick."""

from __future__ import annotations

import time

import pytest
from tests.text import tokenizer_goldens

from octavo.formats.model_files import ModelFiles
from octavo.formats.resolve import resolve
from octavo.text.detokenize import Detokenizer
from octavo.text.tokenizer import Tokenizer

# The model has to be fetched: 241 MiB.
pytestmark = pytest.mark.slow

BYTES = {bytes([value]) for value in range(128, 256)}


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return resolve("gemma-3-270m")


@pytest.fixture(scope="module")
def gemma(files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(files)


def test_ids_equal_llama_cpp(gemma: Tokenizer) -> None:
    golden = tokenizer_goldens.read("gemma-3-270m")["gemma-3-270m"]
    assert len(golden["random"]) == 6 * 5000
    tokenizer_goldens.assert_equal(gemma, golden)


def test_vocabulary(gemma: Tokenizer) -> None:
    facts = gemma.vocabulary
    assert (facts.size, facts.bos_id, facts.eos_id, facts.add_bos, facts.add_eos) == (262144, 2, 1, True, False)
    assert facts.end_ids == {1, 106}
    assert facts.control["<end_of_turn>"] == 106
    assert not gemma.is_control(107)
    assert facts.token_bytes[107:109] == [b"\n", b"\n\n"]


def test_users_cannot_write_control_tokens(gemma: Tokenizer) -> None:
    text = "<bos><start_of_turn>user\nhi<end_of_turn>"
    assert [token for token in gemma.encode_trusted(text) if gemma.is_control(token)] == [2, 105, 106]
    assert not any(map(gemma.is_control, gemma.encode(text)))
    assert gemma.decode(gemma.encode(text)) == text


def test_loading_is_quick(files: ModelFiles) -> None:
    """CPU time, so that a busy machine does not matter."""

    def once() -> float:
        start = time.process_time()
        Tokenizer.load(files)
        return time.process_time() - start

    assert min(once() for _ in range(3)) < 0.7


def test_characters_of_several_tokens_stream_whole(gemma: Tokenizer) -> None:
    """Bytes of characters that are no pieces, and emoji of several characters, never come out cut."""
    text = "a 𒀀𒈦 👩‍👩‍👧🏳️‍🌈 ꙮ \U0001f9ff\U0001fae8 ﷽"
    ids = gemma.encode(text)
    assert sum(gemma.vocabulary.token_bytes[token] in BYTES for token in ids) >= 7
    detokenizer = Detokenizer(gemma.vocabulary.token_bytes)
    pieces = [*map(detokenizer.push, ids), detokenizer.end()]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
