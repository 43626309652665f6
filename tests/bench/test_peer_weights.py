"""Random weights in a geometry, and the forms of a model's weights that peers read: all hold the same model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from geometries import Geometry, write_random
from peers.environment import peers_folder
from peers.weights import Forms, halves_first
from tests.server.tiny_model import VOCAB, write_tiny_model

from octavo.bench.perplexity import log_likelihoods
from octavo.config import EngineConfig
from octavo.formats.blocks import dequantize
from octavo.formats.gguf import GgufFile
from octavo.formats.resolve import resolve
from octavo.formats.tensor import TensorType
from octavo.text.tokenizer import Tokenizer

SIZES = Geometry(
    vocab=VOCAB + 5, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=96, context=128, rope_base=5e5
)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return write(tmp_path, TensorType.BF16)


def write(folder: Path, type_: TensorType) -> Path:
    tokenizer = GgufFile.open(write_tiny_model(folder / "tokenizer.gguf")).metadata
    path = folder / f"tiny.{type_.name}.gguf"
    write_random(path, "tiny", SIZES, type_, tokenizer)
    return path


def scores(model: Path) -> np.ndarray:
    config = EngineConfig(model=str(model), backend="reference", activations="f32", kv_cache_dtype="f32")
    tokens = np.random.default_rng(1).integers(0, VOCAB, 40).astype(np.int32)
    return np.concatenate(list(log_likelihoods(config, tokens)))


def test_the_hugging_face_folder_is_the_same_model(shipped: Path) -> None:
    folder = Forms(lambda: shipped).hf_bf16()
    np.testing.assert_allclose(scores(folder), scores(shipped), atol=1e-4)
    assert folder.parent == peers_folder()
    text = "The quick brown fox, <|im_start|> and ünïcode."
    ours, theirs = Tokenizer.load(resolve(str(shipped))), Tokenizer.load(resolve(str(folder)))
    assert theirs.encode_trusted(text) == ours.encode_trusted(text)
    assert theirs.decode(theirs.encode(text)) == text


def test_w8a8_rounds_each_row_of_a_projection_to_127_steps(shipped: Path) -> None:
    folder = Forms(lambda: shipped).hf_w8a8()
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"]["format"] == "int-quantized"
    tensors = read_safetensors(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    exact = dequantize(GgufFile.open(shipped).tensor("blk.1.ffn_down.weight"))
    scale = tensors[name + "_scale"]
    assert scale.shape == (64, 1)
    assert tensors[name].dtype == np.int8
    assert np.abs(tensors[name]).max(axis=1).tolist() == [127] * 64
    assert np.all(np.abs(tensors[name] * scale - exact) <= scale * 0.501)
    assert tensors["model.embed_tokens.weight"].dtype == np.uint16
    assert len(tensors) == 2 + 2 * (2 + 2 * 7)
    values = dequantize(GgufFile.open(Forms(lambda: shipped).w8a8_values()).tensor("blk.1.ffn_down.weight"))
    np.testing.assert_array_equal(values, tensors[name] * scale)


def test_requantised_files_keep_vectors_and_round_matrices(shipped: Path) -> None:
    small = GgufFile.open(Forms(lambda: shipped).q4_0())
    assert small.tensor("blk.0.attn_q.weight").type is TensorType.Q4_0
    assert small.tensor("blk.0.attn_norm.weight").type is TensorType.F32
    assert small.metadata["llama.attention.key_length"] == 32


def test_the_formats_of_a_geometry_hold_the_same_weights(tmp_path: Path) -> None:
    exact = dequantize(GgufFile.open(write(tmp_path, TensorType.BF16)).tensor("blk.1.ffn_up.weight"))
    assert exact.std() == pytest.approx(64**-0.5, rel=0.05)
    for type_, error in ((TensorType.Q8_0, 0.01), (TensorType.Q4_0, 0.12)):
        rounded = dequantize(GgufFile.open(write(tmp_path, type_)).tensor("blk.1.ffn_up.weight"))
        assert np.abs(rounded - exact).mean() < error * exact.std()


def test_rows_of_q_and_k_change_from_pairs_to_halves() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four: rows of a pair are neighbours
    assert halves_first(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """BF16 as its bits."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    dtypes = {"BF16": np.uint16, "I8": np.int8, "F32": np.float32}
    return {
        name: np.frombuffer(data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]], dtypes[
            entry["dtype"]
        ]).reshape(entry["shape"])
        for name, entry in header.items()
    }  # fmt: skip
