"""SentencePiece's vocabularies of tokenizer.json as GGUF metadata: the ids of the folder, and those of llama.cpp."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.text import tokenizer_goldens
from tests.text.sentencepiece_models import MODELS, UNIGRAM, charsmap
from tests.text.test_hf_sentencepiece import TEXTS, write_json
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.gguf_export import check_same_tokens, tokenizer_metadata
from octavo.text.tokenizer import Tokenizer

SIZE = 1207  # 1,200 pieces, and ids of the model that the tokenizer does not know


def change(folder: Path, normalizer: Any = None, pre_tokenizer: Any = None) -> None:
    """Other parts for the folder's tokenizer.json."""
    library = Library.from_file(str(folder / "tokenizer.json"))
    if normalizer is not None:
        library.normalizer = normalizer
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    library.save(str(folder / "tokenizer.json"))


def folder_with(folder: Path, kind: str) -> ModelFiles:
    """merges, alone or with a space before each stretch; unigram, alone or behind SentencePiece's usual
    normalisation."""
    folder.mkdir(exist_ok=True)
    write_json(folder, dict(MODELS["merges"] if kind.startswith("merges") else UNIGRAM))
    if kind == "merges, prefix":
        change(folder, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    if kind == "unigram, normalised":
        steps = [
            normalizers.Precompiled(charsmap()),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
        change(folder, normalizers.Sequence(steps), pre_tokenizers.Metaspace())
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    said = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return ModelFiles("safetensors", folder, "m")


def exported(folder: Path, kind: str) -> tuple[ModelFiles, Path]:
    files = folder_with(folder / "folder", kind)
    write_gguf(folder / "m.gguf", tokenizer_metadata(files, SIZE), [])
    return files, folder / "m.gguf"


@pytest.fixture(scope="module", params=["merges", "merges, prefix", "unigram", "unigram, normalised"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer, Tokenizer]:
    """Kind, the folder's tokenizer, the written file's."""
    files, target = exported(tmp_path_factory.mktemp("export"), request.param)
    check_same_tokens(files, target)
    return request.param, Tokenizer.load(files), Tokenizer.load(ModelFiles("gguf", target, "m"))


def test_the_same_ids(pair: tuple[str, Tokenizer, Tokenizer]) -> None:
    kind, source, written = pair
    texts = [*TEXTS, *(f"<s>{text}<start_of_turn>user\n{text[::-1]}<end_of_turn>" for text in TEXTS[:100])]
    if kind == "unigram, normalised":  # the library normalises letters with their marks, SentencePiece the longest text
        texts = [text for text in texts if not any(unicodedata.category(char) in ("Mn", "Mc", "Me") for char in text)]
    assert len(texts) > 100
    assert [text for text in texts if source.encode_trusted(text) != written.encode_trusted(text)] == []
    assert [text for text in texts if source.encode_prompt(text) != written.encode_prompt(text)] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("aehinorst TH\n▁é日ß.,1<")))
def test_the_same_ids_of_any_text(pair: tuple[str, Tokenizer, Tokenizer], text: str) -> None:
    _, source, written = pair
    assert source.encode(text) == written.encode(text)


def test_the_same_vocabulary(pair: tuple[str, Tokenizer, Tokenizer]) -> None:
    _, source, written = pair
    ours, theirs = written.vocabulary, source.vocabulary
    assert ours.token_bytes[:1200] == theirs.token_bytes
    assert ours.size == SIZE
    assert (ours.bos_id, ours.eos_id, ours.add_bos, ours.add_eos) == (1, 2, True, False)
    assert ours.control == theirs.control


@pytest.mark.parametrize(
    ("kind", "golden"), [("merges", "merges, no space before a text"), ("merges, prefix", "merges")]
)
def test_the_ids_of_llama_cpp(tmp_path: Path, kind: str, golden: str) -> None:
    """Its ids of the same vocabulary with the scores that SentencePiece gave it: ours, of the order of merges, say as
    much."""
    _, target = exported(tmp_path, kind)
    written = Tokenizer.load(ModelFiles("gguf", target, "m"))
    tokenizer_goldens.assert_equal(written, tokenizer_goldens.read("pieces")[golden])


@pytest.mark.parametrize(("kind", "golden"), [("unigram", "unigram"), ("unigram, normalised", "normalised")])
def test_the_ids_of_sentencepiece(tmp_path: Path, kind: str, golden: str) -> None:
    files, target = exported(tmp_path, kind)
    written = Tokenizer.load(ModelFiles("gguf", target, "m"))
    if golden == "unigram":  # begins texts with a space, as this folder does not
        change(files.path, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
        write_gguf(target, tokenizer_metadata(files, SIZE), [])
        written = Tokenizer.load(ModelFiles("gguf", target, "m"))
    tokenizer_goldens.assert_equal(written, tokenizer_goldens.read(golden)["unigram"])


def test_what_the_file_says(tmp_path: Path) -> None:
    metadata = GgufFile.open(exported(tmp_path, "merges, prefix")[1]).metadata
    assert metadata.string("tokenizer.ggml.model") == "llama"
    assert metadata.boolean("tokenizer.ggml.add_space_prefix", False)
    assert metadata.string("tokenizer.chat_template") == "{{ messages }}"
    types = metadata.numbers("tokenizer.ggml.token_type")
    stored = np.asarray(MODELS["merges"]["tokenizer.ggml.token_type"])
    assert types[:1200].tolist() == stored.tolist()
    assert set(types[1200:].tolist()) == {5}
    normalised = GgufFile.open(exported(tmp_path, "unigram, normalised")[1]).metadata
    assert normalised.string("tokenizer.ggml.model") == "t5"
    assert normalised.boolean("tokenizer.ggml.remove_extra_whitespaces", False)
    assert normalised.numbers("tokenizer.ggml.precompiled_charsmap").tobytes() == charsmap()


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "message"),
    [
        (normalizers.Lowercase(), None, "has a normalizer of type 'Lowercase' that GGUF can't say"),
        (None, pre_tokenizers.Digits(), "has a pre_tokenizer of type 'Digits' that GGUF can't say"),
        (None, pre_tokenizers.Metaspace(prepend_scheme="first"), "puts a space before a text unless it begins with"),
        (None, pre_tokenizers.Metaspace(), "puts a space before a text unless it begins with"),
        (normalizers.Sequence([]), None, "does not turn spaces into ▁"),
        (
            normalizers.Sequence([normalizers.Strip(), normalizers.Replace(" ", "▁")]),
            None,
            "normalises texts before it merges, which GGUF can't say",
        ),
    ],
)
def test_what_gguf_has_no_field_for(tmp_path: Path, normalizer: Any, pre_tokenizer: Any, message: str) -> None:
    files = folder_with(tmp_path, "merges")
    change(tmp_path, normalizer, pre_tokenizer)
    with pytest.raises(ModelFileError, match=rf"tokenizer\.json:? {message}.*; serve the folder as it is"):
        tokenizer_metadata(files, SIZE)


def test_merges_that_scores_can_not_say(tmp_path: Path) -> None:
    """As the library trains them: there is one way to make "abc", and after b and c have merged there is none."""
    files = folder_with(tmp_path, "merges")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "c", "ab", "bc", "abc"]
    ids = {text: index for index, text in enumerate(words)}
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    library = Library(models.BPE(ids, merges, byte_fallback=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.save(str(tmp_path / "tokenizer.json"))
    assert library.encode("abc").tokens == ["a", "bc"]
    with pytest.raises(ModelFileError, match="does not merge 'a' and 'bc' to its token 'abc', as scores"):
        tokenizer_metadata(files, SIZE)


def test_a_map_that_is_no_base64(tmp_path: Path) -> None:
    files = folder_with(tmp_path, "unigram, normalised")
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    description["normalizer"]["normalizers"][0]["precompiled_charsmap"] = "ab§"
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelFileError, match="has a precompiled_charsmap that is no base64"):
        tokenizer_metadata(files, SIZE)


@pytest.mark.parametrize(("name", "written"), [("Phi-3-mini", True), ("mini", False)])
def test_control_tokens_that_take_white_space_with_them(tmp_path: Path, name: str, written: bool) -> None:
    files = folder_with(tmp_path / "folder", "merges")
    path = tmp_path / "folder" / "tokenizer.json"
    description = json.loads(path.read_text())
    for entry in description["added_tokens"]:
        entry["rstrip"] = entry["special"] and entry["content"] not in ("<unk>", "<s>")
    path.write_text(json.dumps(description))
    write_gguf(tmp_path / "m.gguf", {**tokenizer_metadata(files, SIZE), "general.name": name}, [])
    if written:
        check_same_tokens(files, tmp_path / "m.gguf")
        return
    with pytest.raises(ModelFileError, match="take white space beside them with them; GGUF says so of Phi-3 alone"):
        check_same_tokens(files, tmp_path / "m.gguf")


def test_words_of_spaces(tmp_path: Path) -> None:
    """As Gemma has them: looked for in the text after its spaces have become U+2581."""
    files = folder_with(tmp_path / "folder", "merges")
    path = tmp_path / "folder" / "tokenizer.json"
    library = Library.from_file(str(path))
    library.add_tokens([AddedToken("▁the", normalized=True)])
    library.save(str(path))
    write_gguf(tmp_path / "m.gguf", tokenizer_metadata(files, SIZE), [])
    check_same_tokens(files, tmp_path / "m.gguf")
    source, written = Tokenizer.load(files), Tokenizer.load(ModelFiles("gguf", tmp_path / "m.gguf", "m"))
    text = "all of the pages, and  the  words"
    assert written.encode(text) == source.encode(text)
    word = library.token_to_id("▁the")
    assert word in written.encode(text)
    assert written.vocabulary.token_bytes[word] == source.vocabulary.token_bytes[word] == b" the"
    assert GgufFile.open(tmp_path / "m.gguf").metadata.strings("tokenizer.ggml.tokens")[word] == " the"


def test_a_folder_without_an_end_token(tmp_path: Path) -> None:
    files = folder_with(tmp_path / "folder", "merges")
    path = tmp_path / "folder" / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": "<s>"}))
    write_gguf(tmp_path / "m.gguf", tokenizer_metadata(files, SIZE), [])
    with pytest.raises(ModelFileError, match="names no token as eos; GGUF would take token 2"):
        check_same_tokens(files, tmp_path / "m.gguf")
