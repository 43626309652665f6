"""CASES LD-01: token ids equal llama.cpp's own on the same file (goldens by make_tokenizer_goldens.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.text.token_samples import FIXED, random_texts

from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.tokenizer import Tokenizer

GOLDENS = Path(__file__).parent / "goldens" / "tokenizer.json"

# One name for each distinct rule, and how many random texts it is compared on.
RANDOM_COUNTS = {"smollm": 5000, "default": 1000, "gpt-2": 1000, "llama-bpe": 1000, "qwen2": 1000, "dbrx": 300}


def digest(ids: Sequence[int]) -> str:
    """Six hex digits that stand for a list of ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:6]


@pytest.fixture(scope="module", params=list(RANDOM_COUNTS))
def renamed(
    request: pytest.FixtureRequest, default_model: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer]:
    """The default model's vocabulary under another pre-tokenizer name (no tensors are needed here)."""
    path = tmp_path_factory.mktemp("renamed") / "model.gguf"
    write_gguf(path, {**GgufFile.open(default_model.path).metadata, "tokenizer.ggml.pre": request.param}, [])
    return request.param, Tokenizer.load(ModelFiles("gguf", path, request.param))


def test_fixed_texts(renamed: tuple[str, Tokenizer]) -> None:
    name, tokenizer = renamed
    for text, (plain, control) in zip(FIXED, json.loads(GOLDENS.read_text())[name]["fixed"], strict=True):
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode_trusted(text) == control, text


def test_random_texts(renamed: tuple[str, Tokenizer]) -> None:
    name, tokenizer = renamed
    expected = json.loads(GOLDENS.read_text())[name]["random"]
    texts = random_texts(RANDOM_COUNTS[name], 0)
    got = "".join(digest(tokenizer.encode(text)) for text in texts)
    wrong = [text for i, text in enumerate(texts) if got[6 * i : 6 * i + 6] != expected[6 * i : 6 * i + 6]]
    assert wrong == []
