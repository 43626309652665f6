"""tokenizer.json as GGUF metadata: the same ids, under the name that GGUF has for the way texts are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.text.token_samples import FIXED
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.gguf_export import check_same_tokens, tokenizer_metadata
from octavo.text.tokenizer import Tokenizer

SPARE = 7  # ids of the model that the tokenizer does not know
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _split(regex: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), _BYTES])


# As these models' own tokenizer.json have them.
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
KINDS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "llama-bpe": _split(rf"{_WORDS}|\p{{N}}{{1,3}}{_REST}"),
    "qwen2": _split(rf"{_WORDS}|\p{{N}}{_REST}"),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def folder_with(
    folder: Path, pre_tokenizer: Any, whole_words: bool = False, normalizer: Any = None, trained: int = 600
) -> ModelFiles:
    """tokenizer.json with so many tokens trained on the sample texts, two control tokens and a word of its own."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=trained, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(FIXED * 3, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("Octavo", normalized=False)])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    said = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return ModelFiles("safetensors", folder, "m")


def vocabulary_size(files: ModelFiles) -> int:
    return Tokenizer.load(files).vocabulary.size + SPARE


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ids(tmp_path: Path, kind: str) -> None:
    files = folder_with(tmp_path / "folder", KINDS[kind], whole_words=kind == "llama-bpe")
    size = vocabulary_size(files)
    metadata = tokenizer_metadata(files, size)
    assert metadata["tokenizer.ggml.pre"] == kind
    target = tmp_path / "m.gguf"
    write_gguf(target, metadata, [])
    check_same_tokens(files, target)
    ours, theirs = Tokenizer.load(ModelFiles("gguf", target, "m")), Tokenizer.load(files)
    for text in FIXED:
        assert ours.encode_prompt(text) == theirs.encode_prompt(text), text
        assert ours.decode(ours.encode(text)) == text
    turn = "<|im_start|>user\nOctavo!<|im_end|>"
    assert ours.encode_trusted(turn) == theirs.encode_trusted(turn)
    assert ours.vocabulary.control == theirs.vocabulary.control
    assert (ours.vocabulary.bos_id, ours.vocabulary.eos_id) == (theirs.vocabulary.bos_id, theirs.vocabulary.eos_id)
    assert (ours.vocabulary.size, ours.vocabulary.add_bos) == (size, theirs.vocabulary.add_bos)
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_what_gguf_has_no_name_for(tmp_path: Path) -> None:
    files = folder_with(tmp_path, _split(r"\p{L}{1,2}|."))
    with pytest.raises(ModelFileError, match="cuts texts into words in a way that GGUF has no name for here"):
        tokenizer_metadata(files, vocabulary_size(files))


def test_a_normalizer_that_changes_texts(tmp_path: Path) -> None:
    files = folder_with(tmp_path, KINDS["qwen2"], normalizer=normalizers.Lowercase())
    with pytest.raises(ModelFileError, match="cuts texts into words"):
        tokenizer_metadata(files, vocabulary_size(files))


def test_other_vocabularies_are_named(tmp_path: Path) -> None:
    files = folder_with(tmp_path, KINDS["qwen2"])
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text())
    description["model"]["byte_fallback"] = True
    path.write_text(json.dumps(description))
    with pytest.raises(ModelFileError, match="has a pre_tokenizer of type 'Split' that GGUF can't say"):
        tokenizer_metadata(files, vocabulary_size(files))
    description["model"] = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0}}
    path.write_text(json.dumps(description))
    with pytest.raises(ModelFileError, match="is of type 'WordLevel'; octavo quantize writes BPE and Unigram"):
        tokenizer_metadata(files, 1000)


def test_tokens_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    files = folder_with(tmp_path / "folder", KINDS["gpt-2"])
    size = Tokenizer.load(files).vocabulary.size
    without_the_word = tokenizer_metadata(files, size - 1)
    write_gguf(tmp_path / "m.gguf", without_the_word, [])
    check_same_tokens(files, tmp_path / "m.gguf")
    write_gguf(tmp_path / "m.gguf", tokenizer_metadata(files, 300), [])
    with pytest.raises(ModelFileError):
        check_same_tokens(files, tmp_path / "m.gguf")


def test_a_file_that_gives_other_ids(tmp_path: Path) -> None:
    files = folder_with(tmp_path / "folder", KINDS["gpt-2"])
    metadata = tokenizer_metadata(files, vocabulary_size(files))
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(merges, list)
    write_gguf(tmp_path / "m.gguf", {**metadata, "tokenizer.ggml.merges": merges[: len(merges) // 2]}, [])
    with pytest.raises(ModelFileError, match="would get other tokens there"):
        check_same_tokens(files, tmp_path / "m.gguf")


def test_types_of_tokens(tmp_path: Path) -> None:
    files = folder_with(tmp_path, KINDS["gpt-2"])
    size = vocabulary_size(files)
    metadata = tokenizer_metadata(files, size)
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert types[-SPARE:].tolist() == [5] * SPARE
    assert sorted(np.bincount(types).tolist()[3:6]) == sorted([2, 1, SPARE])
