"""The tokenizer: round trips, control tokens, both kinds of file, and what it refuses."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.text.token_samples import FIXED, random_texts
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.byte_level import ALPHABET, bytes_of_tokens
from octavo.text.pretokenizers import PRE_TOKENIZERS
from octavo.text.tokenizer import PromptTooLongError, Tokenizer


def test_vocabulary(tokenizer: Tokenizer) -> None:
    facts = tokenizer.vocabulary
    assert facts.size == 49152
    assert (facts.bos_id, facts.eos_id, facts.add_bos, facts.add_eos) == (1, 2, False, False)
    assert facts.end_ids == {0, 2}
    assert facts.control["<|im_end|>"] == 2
    assert len(facts.control) == 17
    assert facts.token_bytes[2] == b"<|im_end|>"
    assert facts.text(1) == "<|im_start|>"
    assert facts.text(None) == ""
    assert [tokenizer.is_control(token) for token in (0, 16, 17)] == [True, True, False]


# The model has no token for these bytes (found in its vocabulary): what can't be said is left out.
UNSAYABLE = "\x04\x06\x13\x14\x16\x1d"


@given(st.text(st.characters(exclude_characters=UNSAYABLE, exclude_categories=["Cs"], max_codepoint=0x3FFFF)))
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode_trusted(text), skip_special_tokens=False) == text


def test_bytes_without_a_token_are_left_out_and_keep_their_neighbours_apart(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"
    assert tokenizer.encode("t\x04he") == tokenizer.encode("t") + tokenizer.encode("he") != tokenizer.encode("the")
    assert tokenizer.vocabulary.size not in tokenizer.encode("".join(UNSAYABLE))


def test_control_tokens_only_where_trusted(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\n<|im_end|>"
    assert tokenizer.encode_trusted(text)[0] == 1
    assert tokenizer.encode_trusted(text)[-1] == 2
    assert not {1, 2} & set(tokenizer.encode(text))
    view = text[:13] + "." * 10
    assert tokenizer.encode_viewed(text[:23], view)[0] == 1
    assert 2 not in tokenizer.encode_viewed(text[:23], view)


def test_control_token_that_is_one_word_to_the_encoder(tokenizer: Tokenizer) -> None:
    """As with ignored merges: a word that is a token as a whole is found even in plain text. Not if it is control."""
    word = tokenizer.encode("hello")
    assert len(word) == 1
    odd = Tokenizer(tokenizer._encoder, replace(tokenizer.vocabulary, control={"hello": word[0]}))
    assert odd.encode_trusted("hello") == word
    assert odd.encode("hello") == [piece for char in "hello" for piece in tokenizer.encode(char)]
    assert odd.decode(odd.encode("hello")) == "hello"


def test_decode_of_odd_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([-1, 10**9, *tokenizer.encode("hi"), 2]) == "hi"
    assert tokenizer.decode([2], skip_special_tokens=False) == "<|im_end|>"
    assert tokenizer.decode(tokenizer.encode("日")[:-1]) == "\ufffd"


def test_bos_and_eos_of_raw_prompts(tokenizer: Tokenizer) -> None:
    both = Tokenizer(tokenizer._encoder, replace(tokenizer.vocabulary, add_bos=True, add_eos=True))
    assert both.encode_prompt("hi") == [1, *tokenizer.encode("hi"), 2]
    assert both.encode_prompt("<|im_start|>hi<|im_end|>") == [1, *tokenizer.encode("hi"), 2]
    assert tokenizer.encode_prompt("hi") == tokenizer.encode("hi")


def test_a_prompt_far_too_long_is_refused_early(tokenizer: Tokenizer) -> None:
    for unit in ("word ", "a", " ", "\n", "日本語", "1"):
        text = unit * (8_000_000 // len(unit))
        start = time.process_time()
        with pytest.raises(PromptTooLongError, match=r"has \d+ tokens or more; the limit is 2048") as caught:
            tokenizer.encode_prompt(text, max_tokens=2048)
        assert time.process_time() - start < 0.5
        assert 2048 < caught.value.at_least <= 2048 + 4 * (1 << 12)


def test_a_prompt_that_fits_is_not_refused(tokenizer: Tokenizer) -> None:
    spaces = " " * 50_000
    assert len(tokenizer.encode_prompt(spaces, max_tokens=1000)) < 1000
    text = "The quick brown fox. " * 4000
    ids = tokenizer.encode(text)
    assert tokenizer.encode_prompt(text, max_tokens=len(ids)) == ids


def test_loading_is_fast(default_model: ModelFiles) -> None:
    """CPU time, so that a busy machine does not matter."""

    def once() -> float:
        start = time.process_time()
        Tokenizer.load(default_model)
        return time.process_time() - start

    assert min(once() for _ in range(3)) < 0.3


@pytest.fixture(scope="module")
def metadata(default_model: ModelFiles) -> dict[str, Any]:
    return {**GgufFile.open(default_model.path).metadata}


def load_with(metadata: dict[str, Any], changes: dict[str, Any], path: Path) -> Tokenizer:
    write_gguf(path, {key: value for key, value in {**metadata, **changes}.items() if value is not None}, [])
    return Tokenizer.load(ModelFiles("gguf", path, "changed"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, "has the pre-tokenizer 'martian', which is not known; known are default, gpt-2"),
        ({"model": "bert"}, "has a tokenizer of kind 'bert'; supported are gpt2"),
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"merges": ["a b c"]}, "merges must hold pairs"),
        ({"merges": ["never seen"]}, "has a tokenizer that can't be built"),
        ({"token_type": np.zeros(3, np.int32)}, "has 49152 tokens but 3 token types"),
        ({"bos_token_id": 49152}, "has bos_token_id 49152, but only 49152 tokens"),
        ({"eos_token_id": "x"}, "eos_token_id must be an integer"),
    ],
)
def test_bad_metadata(metadata: dict[str, Any], tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_with(metadata, {f"tokenizer.ggml.{key}": value for key, value in changes.items()}, tmp_path / "x.gguf")


def test_user_defined_tokens_are_found_in_plain_text(metadata: dict[str, Any], tmp_path: Path) -> None:
    """As in llama.cpp: they are words that the model was given, not control tokens."""
    types = metadata["tokenizer.ggml.token_type"].copy()
    types[3] = 4  # <repo_name>
    changed = load_with(metadata, {"tokenizer.ggml.token_type": types}, tmp_path / "x.gguf")
    assert changed.encode("a<repo_name>b") == [*changed.encode("a"), 3, *changed.encode("b")]
    assert "<repo_name>" not in changed.vocabulary.control


def test_optional_metadata(metadata: dict[str, Any], tmp_path: Path) -> None:
    keys = ("token_type", "pre", "add_bos_token", "bos_token_id", "eos_token_id")
    bare = load_with(metadata, {f"tokenizer.ggml.{key}": None for key in keys}, tmp_path / "x.gguf")
    assert (bare.vocabulary.bos_id, bare.vocabulary.eos_id, bare.vocabulary.add_bos) == (None, None, False)
    assert bare.vocabulary.control == {}
    assert bare.decode(bare.encode("plain 123")) == "plain 123"


def test_alphabet() -> None:
    assert len(set(ALPHABET)) == 256
    assert (ALPHABET[ord("A")], ALPHABET[ord(" ")], ALPHABET[ord("\n")]) == ("A", "Ġ", "Ċ")
    assert bytes_of_tokens(["Ġa", "", "".join(ALPHABET)]) == [b" a", b"", bytes(range(256))]
    assert bytes_of_tokens(["Ġa", "日", "\ud800"]) == [b" a", "日".encode(), b"\xed\xa0\x80"]


@pytest.fixture(scope="module")
def hf_folder(metadata: dict[str, Any], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's tokenizer as tokenizer.json, the way transformers' models have it."""
    folder = tmp_path_factory.mktemp("hf")
    ids = {text: index for index, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split()) for merge in metadata["tokenizer.ggml.merges"]]
    whole = tokenizers.Tokenizer(models.BPE(ids, merges))
    cuts = [pre_tokenizers.Split(tokenizers.Regex(cut), "isolated") for cut in PRE_TOKENIZERS["smollm"].cuts]
    whole.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    whole.decoder = decoders.ByteLevel()
    whole.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    whole.add_special_tokens([AddedToken(text, special=True) for text in tokenizer.vocabulary.control])
    whole.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}})
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder


def test_hf_tokenizer_is_the_same(tokenizer: Tokenizer, hf_folder: Path) -> None:
    hf = Tokenizer.load(ModelFiles("safetensors", hf_folder, "x"))
    assert replace(hf.vocabulary, add_bos=False) == tokenizer.vocabulary
    assert hf.vocabulary.add_bos
    for text in [*FIXED, *random_texts(200, 1)]:
        if not set(UNSAYABLE) & set(text):
            assert hf.encode(text) == tokenizer.encode(text), text
            assert hf.encode_trusted(text) == tokenizer.encode_trusted(text), text


def test_hf_sentencepiece_bytes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁hi": 1, "<0xE6>": 2, "日": 3, "</s>": 4}
    whole = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    whole.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    whole.add_special_tokens(["</s>"])
    whole.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))
    assert loaded.vocabulary.token_bytes[1:] == [b" hi", b"\xe6", "日".encode(), b"</s>"]
    assert loaded.vocabulary.control == {"</s>": 4}


SAMPLES = st.lists(
    st.sampled_from([" ", "  ", "\n", "a", "hi", "<s>", "</s>", "<mask>", "[INST]", "▁", ".", "日"]), max_size=12
).map("".join)


def sentencepiece(folder: Path, scheme: str) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """A SentencePiece-like tokenizer.json: the library's own tokenizer, and ours from it."""
    texts = ["<unk>", "<s>", "</s>", "<mask>", "[INST]", "▁", "▁a", "a", "▁hi", "h", "i", "hi", ".", "\n", "▁▁"]
    ids = {text: index for index, text in enumerate(texts)}
    whole = tokenizers.Tokenizer(models.BPE(ids, [("h", "i"), ("▁", "hi"), ("▁", "a"), ("▁", "▁")], unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    whole.decoder = decoders.Metaspace(prepend_scheme=scheme)
    whole.add_special_tokens(
        [AddedToken("<s>"), AddedToken("</s>", rstrip=True), AddedToken("<mask>", lstrip=True), AddedToken("[INST]")]
    )
    whole.save(str(folder / "tokenizer.json"))
    return whole, Tokenizer.load(ModelFiles("safetensors", folder, "x"))


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_hf_spaces_around_control_tokens(tmp_path: Path, scheme: str) -> None:
    """The library's own tokenizer, special tokens on, is the oracle: leading spaces, and tokens that swallow some."""
    whole, ours = sentencepiece(tmp_path, scheme)

    @given(SAMPLES)
    def compare(text: str) -> None:
        assert ours.encode_trusted(text) == whole.encode(text, add_special_tokens=False).ids

    compare()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing; a folder needs it"),
        ("{", "JSON that can't be read"),
        ("{}", "can't be read"),
        ('{"model": {"type": "Martian"}}', "can't be read"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 4000000000}, "unk_token": "a"}}', "has token id 4000000000"),
    ],
)
def test_bad_tokenizer_json(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match=f"tokenizer.json: {message}|{message}"):
        Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))


def test_half_a_character_is_no_text(tmp_path: Path) -> None:
    _, ours = sentencepiece(tmp_path, "first")
    with pytest.raises(ValueError, match="lone surrogate"):
        ours.encode("a\udcff")
    with pytest.raises(ValueError, match="lone surrogate"):
        ours.encode_prompt("\ud800[INST]")
