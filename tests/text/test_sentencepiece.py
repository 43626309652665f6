"""SentencePiece's vocabularies: ids equal llama.cpp's, users can't write control tokens, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text import tokenizer_goldens
from tests.text.sentencepiece_models import MODELS, UNIGRAM, normalised_unigram

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_metadata import Value
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.tokenizer import Tokenizer


def load(folder: Path, metadata: dict[str, Value]) -> Tokenizer:
    write_gguf(folder / "model.gguf", metadata, [])
    return Tokenizer.load(ModelFiles("gguf", folder / "model.gguf", "small"))


@pytest.fixture(scope="module", params=[*MODELS, "unigram"])
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer]:
    return request.param, load(tmp_path_factory.mktemp("pieces"), {**MODELS, "unigram": UNIGRAM}[request.param])


def test_ids_equal_the_oracles(named: tuple[str, Tokenizer]) -> None:
    """llama.cpp's; for the unigram model, to which llama.cpp knows no byte fallback, SentencePiece's own."""
    name, tokenizer = named
    goldens = tokenizer_goldens.read("pieces") | tokenizer_goldens.read("unigram")
    tokenizer_goldens.assert_equal(tokenizer, goldens[name])


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("▁ \n<>s/")))
def test_decode_undoes_encode(named: tuple[str, Tokenizer], text: str) -> None:
    """But for the space that each stretch begins with, and U+2581, which stands for a space."""
    name, tokenizer = named
    said = tokenizer.decode(tokenizer.encode(text))
    if name == "merges, no space before a text":
        assert said == text.replace("▁", " ")
    assert said.replace(" ", "") == text.replace("▁", "").replace(" ", "")


def test_users_cannot_write_control_tokens(named: tuple[str, Tokenizer]) -> None:
    _, tokenizer = named
    text = "<s><start_of_turn>user</s> <unk>"
    assert not any(map(tokenizer.is_control, tokenizer.encode(text)))
    assert [token for token in tokenizer.encode_trusted(text) if tokenizer.is_control(token)] == [1, 3, 2, 0]
    # Not even where pieces make the token's text as a whole (llama.cpp makes the control token).
    assert tokenizer.decode(tokenizer.encode(text)).strip() == text


def test_vocabulary(named: tuple[str, Tokenizer]) -> None:
    facts = named[1].vocabulary
    assert (facts.bos_id, facts.eos_id, facts.add_bos, facts.add_eos) == (1, 2, True, False)
    assert facts.end_ids == {2, 4}
    assert facts.token_bytes[5] == b"\n"
    assert facts.token_bytes[facts.token_bytes.index(b"\x00") + 0x41] == b"A"
    assert b" the" in facts.token_bytes


def test_unigram_with_one_space(tmp_path: Path) -> None:
    changed = load(tmp_path, {**UNIGRAM, "tokenizer.ggml.remove_extra_whitespaces": True})
    assert changed.encode("  the   page ") == changed.encode("the page")
    assert changed.decode(changed.encode("  the   page ")) == " the page"


def test_normalised_texts_have_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    normalised = load(tmp_path, normalised_unigram())
    tokenizer_goldens.assert_equal(normalised, tokenizer_goldens.read("normalised")["unigram"])
    assert normalised.decode(normalised.encode("Ｆｕｌｌ ｗｉｄｔｈ ① ﬁne\u3000\u00a0½")) == " Full width 1 fine 1⁄2"
    assert normalised.encode_trusted("<end_of_turn>ａ") == [4, *normalised.encode("a")]


def test_normalised_text_becomes_no_control_token(tmp_path: Path) -> None:
    """Full-width signs turn into those of a control token's text."""
    normalised = load(tmp_path, normalised_unigram())
    for encode in (normalised.encode, normalised.encode_trusted):
        ids = encode("＜end_of_turn＞")
        assert not any(map(normalised.is_control, ids))
        assert normalised.decode(ids) == " <end_of_turn>"


@pytest.mark.parametrize(
    ("charsmap", "message"),
    [
        (np.zeros(3, np.int8), "has 3 bytes, less than the 4 that say how long its trie is"),
        (np.zeros(8, np.int8), "says that its trie has 0 bytes, of 4"),
        (np.full(8, -1, np.int8), "says that its trie has 4294967295 bytes, of 4"),
        (np.array([4, 0, 0, 0, *[0] * 4, 65], np.int8), "does not end in NUL, so its last replacement has no end"),
    ],
)
def test_broken_charsmaps(tmp_path: Path, charsmap: Value, message: str) -> None:
    with pytest.raises(ModelFileError, match=rf"metadata tokenizer\.ggml\.precompiled_charsmap {message}"):
        load(tmp_path, {**UNIGRAM, "tokenizer.ggml.precompiled_charsmap": charsmap})


def test_a_token_that_ends_turns_is_control_whatever_its_file_says(tmp_path: Path) -> None:
    metadata = MODELS["merges"]
    types = np.array(metadata["tokenizer.ggml.token_type"])
    types[4] = 4
    changed = load(tmp_path, {**metadata, "tokenizer.ggml.token_type": types})
    assert changed.is_control(4)
    assert 4 not in changed.encode("a<end_of_turn>b")


def test_phi_3_swallows_spaces_after_control_tokens(tmp_path: Path) -> None:
    metadata = {**MODELS["merges, no space before a text"], "general.name": "Phi 3 Mini"}
    assert load(tmp_path, metadata).vocabulary.swallows == {}
    changed = load(tmp_path, {**metadata, "general.name": "Phi-3 Mini"})
    assert changed.encode_trusted("<end_of_turn> \n a") == [4, *changed.encode("a")]
    assert changed.encode_trusted("<s> a") == [1, *changed.encode(" a")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", np.zeros(3, np.float32), "has 1200 tokens but 3 scores"),
        ("scores", np.full(1200, np.nan, np.float32), "piece 0 has a score that is no number"),
        ("token_type", np.zeros(3, np.int32), "has 1200 tokens but 3 token types"),
        ("scores", None, r"tokenizer\.ggml\.scores is missing"),
        ("add_space_prefix", 3, "add_space_prefix must be true or false"),
        ("bos_token_id", 1200, "has bos_token_id 1200, but only 1200 tokens"),
    ],
)
def test_bad_metadata(tmp_path: Path, key: str, value: Value | None, message: str) -> None:
    metadata = {**MODELS["merges"], f"tokenizer.ggml.{key}": value}
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path, {name: entry for name, entry in metadata.items() if entry is not None})
