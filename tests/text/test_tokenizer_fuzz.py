"""Mutated tokenizer metadata: a tokenizer that works, or ModelFileError."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.byte_level import ALPHABET
from octavo.text.chat import load_chat_template
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["gpt2", "llama", "t5"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of each kind of tokenizer; they have all keys in common, so that a mutated name finds another's."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    tokens = ["<|bos|>", "<|im_end|>", "<word>", "<unk>", *ALPHABET, "ab", "abc", "Ġab", "▁ab", "<0x0A>"]
    metadata = {
        "tokenizer.ggml.model": request.param,
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
        "tokenizer.ggml.token_type": np.array([3, 3, 4, 2, *[1] * (len(tokens) - 5), 6], np.int32),
        "tokenizer.ggml.merges": ["a b", "ab c", "Ġ ab"],
        "tokenizer.ggml.tokens": tokens,
    }
    write_gguf(path, metadata, [])
    return path.read_bytes()


@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_mutations(small: bytes, mutations: list[tuple[int, int]]) -> None:
    content = bytearray(small)
    for place, value in mutations:
        content[place % len(content)] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.gguf"
        path.write_bytes(content)
        files = ModelFiles("gguf", path, "mutant")
        try:
            tokenizer = Tokenizer.load(files)
        except ModelFileError:
            return
        text = "abc <|im_end|><word> ab"
        size = tokenizer.vocabulary.size
        for ids in (tokenizer.encode(text), tokenizer.encode_prompt(text)):
            assert all(0 <= token < size for token in ids)
            tokenizer.decode(ids)
        load_chat_template(files, tokenizer)
