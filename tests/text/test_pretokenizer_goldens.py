"""CASES LD-01: token ids equal llama.cpp's own on the same file, for every rule of pre-tokenizing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.text import tokenizer_goldens
from tokenizers import Regex, pre_tokenizers

from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.pretokenizers import DISTINCT, PRE_TOKENIZERS
from octavo.text.tokenizer import Tokenizer

#: Long runs of what expressions repeat: an expression that looks at the rest again and again would take minutes.
UNITS = ("1", " ", "a", "A", "é", "日", "\u0301", "\n", "!", "a ", "1a", " \n", "'", "aA", "0\u0663", "<sentinel:")


@pytest.mark.parametrize("name", DISTINCT)
def test_ids_equal_llama_cpp(name: str, default_model: ModelFiles, tmp_path: Path) -> None:
    """The default model's vocabulary under another pre-tokenizer name (no tensors are needed here)."""
    path = tmp_path / "model.gguf"
    write_gguf(path, {**GgufFile.open(default_model.path).metadata, "tokenizer.ggml.pre": name}, [])
    tokenizer = Tokenizer.load(ModelFiles("gguf", path, name))
    tokenizer_goldens.assert_equal(tokenizer, tokenizer_goldens.read("pretokenizers")[name])


def test_one_name_stands_for_each_rule() -> None:
    assert len({PRE_TOKENIZERS[name] for name in DISTINCT}) == len(DISTINCT)
    assert {PRE_TOKENIZERS[name] for name in DISTINCT} == set(PRE_TOKENIZERS.values())


@pytest.mark.parametrize("name", DISTINCT)
def test_cutting_takes_time_in_proportion_to_the_text(name: str) -> None:
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in PRE_TOKENIZERS[name].cuts]
    cutter = pre_tokenizers.Sequence(cuts)
    for unit in UNITS:
        start = time.process_time()
        cutter.pre_tokenize_str(unit * (20_000 // len(unit)))
        assert time.process_time() - start < 0.6, unit
