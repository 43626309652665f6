"""SentencePiece's vocabularies in tokenizer.json: the ids of the same vocabulary in GGUF, and what tokens stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.text.sentencepiece_models import MODELS, UNIGRAM, charsmap, normalised_unigram
from tests.text.token_samples import FIXED, random_texts
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from octavo.formats.gguf_metadata import Value
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.plain_encoder import PlainEncoder
from octavo.text.tokenizer import Tokenizer

_CONTROL, _WORD, _BYTE = 3, 4, 6

#: The library takes texts of byte and control tokens for the tokens (Tokenizer takes control tokens apart again).
TEXTS = [text for text in (*FIXED, *random_texts(300, 2)) if not any(mark in text for mark in ("<0x", "<s>", "_turn>"))]


def merges(pieces: list[tuple[str, float, int]]) -> list[tuple[str, str]]:
    """The list of merges that scores stand for, if no two are equal."""
    known = {text for text, _, type_ in pieces if type_ != _CONTROL}
    pairs = []
    for text, score, type_ in pieces:
        splits = [(text[:i], text[i:]) for i in range(1, len(text))] if type_ == 1 else []
        pairs += [(-score, left, right) for left, right in splits if left in known and right in known]
    return [(left, right) for _, left, right in sorted(pairs)]


def write_json(folder: Path, metadata: dict[str, Value]) -> None:
    texts, scores, types = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    pieces = list(zip(list(texts), np.asarray(scores).tolist(), np.asarray(types).tolist(), strict=True))  # type: ignore[call-overload]
    if metadata["tokenizer.ggml.model"] == "t5":
        model: Any = models.Unigram([(text, score) for text, score, _ in pieces], 0, True)
    else:
        ids = {text: index for index, (text, _, _) in enumerate(pieces)}
        model = models.BPE(ids, merges(pieces), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    library = Library(model)
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens([AddedToken(text, special=True) for text, _, type_ in pieces if type_ in (2, _CONTROL)])
    library.add_tokens([AddedToken(text, normalized=False) for text, _, type_ in pieces if type_ == _WORD])
    library.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("name", ["merges", "unigram"])
def test_ids_equal_those_from_gguf(name: str, tmp_path: Path) -> None:
    metadata = MODELS["merges, no space before a text"] if name == "merges" else dict(UNIGRAM)
    metadata = {**metadata, "tokenizer.ggml.add_space_prefix": False}
    write_gguf(tmp_path / "model.gguf", metadata, [])
    write_json(tmp_path, metadata)
    gguf = Tokenizer.load(ModelFiles("gguf", tmp_path / "model.gguf", "x"))
    hf = Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))
    assert hf.vocabulary.token_bytes == gguf.vocabulary.token_bytes
    assert hf.vocabulary.control == gguf.vocabulary.control
    assert [text for text in TEXTS if hf.encode(text) != gguf.encode(text)] == []
    assert [text for text in TEXTS if hf.encode_trusted(text) != gguf.encode_trusted(text)] == []


@pytest.fixture
def normalising(tmp_path: Path) -> tuple[Library, Tokenizer]:
    """The library's own tokenizer, and ours of its file, that normalises as T5's does."""
    write_json(tmp_path, {**UNIGRAM})
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    library.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Strip(), one_space])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    return library, Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))


def test_normalised_texts_have_the_ids_of_the_library(normalising: tuple[Library, Tokenizer]) -> None:
    library, ours = normalising
    known = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert [text for text, ids in zip(TEXTS, known, strict=True) if ours.encode(text) != ids] == []


def test_normalised_texts_have_the_ids_of_sentencepiece(normalising: tuple[Library, Tokenizer], tmp_path: Path) -> None:
    """But for marks behind letters: the library normalises both together, SentencePiece the longest text it knows."""
    write_gguf(tmp_path / "model.gguf", normalised_unigram(), [])
    gguf = Tokenizer.load(ModelFiles("gguf", tmp_path / "model.gguf", "x"))
    texts = ["Ｆｕｌｌ ｗｉｄｔｈ", "① ﬁne\u3000\u00a0½", "㌀ ℌ ㏒", "  several   spaces ", "Straße ²"]
    assert [text for text in texts if normalising[1].encode(text) != gguf.encode(text)] == []


def test_normalised_text_becomes_no_control_token(normalising: tuple[Library, Tokenizer]) -> None:
    """Full-width signs turn into those of a control token's text."""
    tokenizer = normalising[1]
    for encode in (tokenizer.encode, tokenizer.encode_trusted):
        assert not any(map(tokenizer.is_control, encode("＜end_of_turn＞")))


@pytest.mark.parametrize("kind", ["unigram", "merges"])
def test_what_a_vocabulary_without_bytes_can_not_say_is_left_out(kind: str, tmp_path: Path) -> None:
    """And never becomes the letters of "<unk>", which stay letters where users write them."""
    words = ["<unk>", "<s>", "</s>", "▁", "a", "b", "<", ">", "u", "n", "k", "s"]
    model: Any = models.BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>")
    if kind == "unigram":
        model = models.Unigram([(word, -1.0 * index) for index, word in enumerate(words)], 0, False)
    library = Library(model)
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Replace("▁", " ")
    library.add_special_tokens(words[:3])
    library.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))

    def said(text: str) -> list[str]:
        return [words[token] for token in loaded.encode(text)]

    assert said("aé日b") == ["a", "b"]
    assert said("é") == []
    assert said("aé<unk> b") == ["a", "<", "u", "n", "k", ">", "▁", "b"]
    assert loaded.decode(loaded.encode("<s>a")) == "<s>a"
    assert loaded.encode_trusted("é<s>a") == [1, 4]


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a<unk>b", [1, 2, 0, 3]),
        ("é<unk>aé日", [1, 0, 2]),  # the library takes the first two together, as unknown
        ("<unk><unk>éa <unk>b", [1, 0, 0, 2, 1, 0, 3]),
        ("éa</s>b", [1, 2, 4, 3]),
    ],
)
def test_a_text_that_spells_the_token_for_the_unknown(
    text: str, ids: list[int], continues: bool, tmp_path: Path
) -> None:
    """Metaspace puts a space before each stretch: the text beside that token stays one with it."""
    words = ["<unk>", "▁", "a", "b", "</s>", "<", "u", "n", "k", ">", "/", "s"]
    library = Library(models.Unigram([(word, -1.0 * index) for index, word in enumerate(words)], 0, False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<unk>", "</s>"])
    library.encode_special_tokens = True
    library.save(str(tmp_path / "tokenizer.json"))
    if text == "a<unk>b":
        assert library.encode(text).ids == ids
    assert PlainEncoder(library, len(words), True, (0, "<unk>")).encode(text, continues) == ids
    loaded = Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))
    assert not any(map(loaded.is_control, loaded.encode(text)))
    assert loaded.decode(loaded.encode(text)).replace(" ", "") == text.translate(dict.fromkeys(map(ord, "é日 ")))


def test_a_word_of_the_user_may_hold_spaces(tmp_path: Path) -> None:
    """As Gemma's tokenizer.json has them: U+2581 in tokens that were added, and that are not special."""
    write_json(tmp_path, {**UNIGRAM})
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"].append({"id": 1200, "content": "▁▁▁", **added})
    path.write_text(json.dumps(content))
    loaded = Tokenizer.load(ModelFiles("safetensors", tmp_path, "x"))
    assert loaded.vocabulary.token_bytes[1200] == b"   "
    assert loaded.vocabulary.token_bytes[3] == b"<start_of_turn>"
