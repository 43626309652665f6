"""The GGUF parser on a good file."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.formats.tensor import TensorType


@pytest.fixture(scope="module")
def default_file(default_model: ModelFiles) -> GgufFile:
    return GgufFile.open(default_model.path)


def test_metadata(default_file: GgufFile) -> None:
    metadata = default_file.metadata
    assert metadata.string("general.architecture") == "llama"
    assert metadata.integer("llama.block_count") == 30
    assert metadata.number("llama.rope.freq_base") == 100000.0
    assert metadata.boolean("tokenizer.ggml.add_bos_token") is False
    assert metadata.integer("llama.absent", 7) == 7
    assert metadata.array_length("tokenizer.ggml.tokens") == 49152
    assert metadata.strings("tokenizer.ggml.tokens")[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert metadata.numbers("tokenizer.ggml.token_type")[:18].tolist() == [3] * 17 + [1]


def test_typed_access_names_the_key(default_file: GgufFile) -> None:
    metadata = default_file.metadata
    with pytest.raises(ModelFileError, match=r"llama\.absent is missing"):
        metadata.integer("llama.absent")
    with pytest.raises(ModelFileError, match=r"general\.architecture must be an integer; the file has 'llama'"):
        metadata.integer("general.architecture")
    with pytest.raises(ModelFileError, match=r"tokens must be a number; the file has an array of strings"):
        metadata.number("tokenizer.ggml.tokens")


def test_tensors(default_file: GgufFile) -> None:
    assert len(default_file.infos) == 272
    embedding = default_file.tensor("token_embd.weight")
    assert (embedding.type, embedding.shape) == (TensorType.Q8_0, (49152, 576))
    assert embedding.data.shape == (49152, 576 // 32 * 34)
    assert not embedding.data.flags.writeable
    down = default_file.tensor("blk.0.ffn_down.weight")
    assert (down.type, down.shape, down.data.shape) == (TensorType.Q4_1, (576, 1536), (576, 960))
    norm = default_file.tensor("blk.0.attn_norm.weight")
    assert (norm.type, norm.shape, norm.data.shape) == (TensorType.F32, (576,), (1, 2304))
    assert 0.0 < float(np.abs(norm.data.view(np.float32)).mean()) < 10.0
    before = down.data.copy()
    default_file.release("blk.0.ffn_down.weight")
    assert np.array_equal(down.data, before)


def test_opening_is_fast(default_model: ModelFiles) -> None:
    """CPU time, so that a busy machine does not matter."""

    def once() -> float:
        start = time.process_time()
        GgufFile.open(default_model.path)
        return time.process_time() - start

    assert min(once() for _ in range(5)) < 0.06


def test_positions_finds_whole_strings_only(tmp_path: Path) -> None:
    needle = "end"
    inside = "x" + len(needle).to_bytes(8, "little").decode() + needle  # the bytes of a stored "end", inside a string
    write_gguf(tmp_path / "m.gguf", {"words": ["end", inside, "ends", "the end", "", "end"], "n": 3}, [])
    metadata = GgufFile.open(tmp_path / "m.gguf").metadata
    assert metadata.positions("words", needle) == [0, 5]
    assert metadata.positions("words", "") == [4]
    assert metadata.positions("words", "absent") == []
    with pytest.raises(ModelFileError, match="must be an array of strings"):
        metadata.positions("n", needle)
    assert "words" in metadata
    assert "word" not in metadata
