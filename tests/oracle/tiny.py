"""Tiny random models: their weights follow from a seed, so only what transformers computed with them is kept.

Each is written as a safetensors folder and, where GGUF has the architecture, as a GGUF file with permuted Q and K.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.blocks import quantize
from octavo.formats.gguf_write import write_gguf
from octavo.formats.tensor import TensorType
from octavo.text.byte_level import ALPHABET

Arrays = dict[str, npt.NDArray[np.float32]]

VOCAB = 263
EOS = 2
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def seeded_prompts(seed: int, lengths: Sequence[int], vocab: int) -> list[npt.NDArray[np.int32]]:
    """Prompts of these lengths; the later ones share the first half of the earlier."""
    stream = np.random.RandomState(seed).randint(3, vocab, max(lengths))
    prompts = []
    for index, length in enumerate(lengths):
        prompt = stream[:length].copy()
        prompt[length // 2 :] = (prompt[length // 2 :] + 7 * index) % vocab
        prompts.append(prompt.astype(np.int32))
    return prompts


@dataclass(frozen=True)
class TinyModel:
    """`config` is config.json without what all have in common; `gguf` tells whether GGUF can hold it as `llama`."""

    name: str
    seed: int
    config: dict[str, Any]
    gguf: bool = False
    prompt_lengths: tuple[int, ...] = (1, 17, 40)
    architecture: str = "LlamaForCausalLM"
    common: dict[str, Any] = field(
        default_factory=lambda: {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "bos_token_id": 1,
            "eos_token_id": EOS,
        }
    )

    @property
    def full_config(self) -> dict[str, Any]:
        return {**self.common, **self.config, "architectures": [self.architecture]}

    def prompts(self) -> list[npt.NDArray[np.int32]]:
        """Seeded prompts of `prompt_lengths` tokens; the later ones share the first half of the earlier."""
        return seeded_prompts(self.seed + 1000, self.prompt_lengths, VOCAB)


MODELS = {
    model.name: model
    for model in (
        TinyModel("tied", 1, {"tie_word_embeddings": True, "rope_theta": 10000.0}, gguf=True),
        TinyModel(
            "biases",
            2,
            {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
            gguf=True,
        ),
        TinyModel(
            "llama3-rope",
            3,
            {"tie_word_embeddings": False, "head_dim": 32, "rope_parameters": _LLAMA3},
            gguf=True,
            prompt_lengths=(11, 2001, 7901),
        ),
        TinyModel(
            "linear-rope",
            4,
            {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
            prompt_lengths=(1, 17, 2001),
        ),
        TinyModel("mistral", 5, {"sliding_window": None, "head_dim": 16}, architecture="MistralForCausalLM"),
        TinyModel("mistral-window", 6, {"sliding_window": 12, "head_dim": 16}, architecture="MistralForCausalLM"),
        TinyModel("qwen2", 7, {"tie_word_embeddings": True, "rope_theta": 1e6}, architecture="Qwen2ForCausalLM"),
    )
}


def weights(model: TinyModel) -> Arrays:
    """float32 arrays by safetensors name. RandomState's streams are frozen across numpy versions."""
    config = model.full_config
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, ffn = config.get("head_dim", hidden // heads), config["intermediate_size"]
    rng = np.random.RandomState(model.seed)

    def normal(*shape: int, scale: float) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    arrays: Arrays = {"model.embed_tokens.weight": normal(VOCAB, hidden, scale=0.7)}
    qwen = model.architecture == "Qwen2ForCausalLM"
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        for name, rows, width in (
            ("self_attn.q_proj", heads * head_dim, hidden),
            ("self_attn.k_proj", kv_heads * head_dim, hidden),
            ("self_attn.v_proj", kv_heads * head_dim, hidden),
            ("self_attn.o_proj", hidden, heads * head_dim),
            ("mlp.gate_proj", ffn, hidden),
            ("mlp.up_proj", ffn, hidden),
            ("mlp.down_proj", hidden, ffn),
        ):
            arrays[f"{prefix}{name}.weight"] = normal(rows, width, scale=1.6 / width**0.5)
            attention_bias = config.get("attention_bias", False) or (
                qwen and name[-6:] in ("q_proj", "k_proj", "v_proj")
            )
            if attention_bias if name.startswith("self_attn") else config.get("mlp_bias", False):
                arrays[f"{prefix}{name}.bias"] = normal(rows, scale=0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"{prefix}{norm}.weight"] = 1 + normal(hidden, scale=0.2)
    arrays["model.norm.weight"] = 1 + normal(hidden, scale=0.2)
    if not config.get("tie_word_embeddings", False):
        arrays["lm_head.weight"] = normal(VOCAB, hidden, scale=0.5)
    return arrays


def write_folder(model: TinyModel, folder: Path) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.full_config))
    write_safetensors(folder / "model.safetensors", weights(model))
    return folder


def write_safetensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Arrays of float32 and uint8."""
    header, offset = {}, 0
    for name, array in arrays.items():
        end = offset + array.nbytes
        header[name] = {
            "dtype": {"float32": "F32", "uint8": "U8"}[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values()))


def byte_tokenizer(chat_template: str | None = None) -> dict[str, Any]:
    """GGUF metadata of a tokenizer whose first 256 tokens are bytes, then ChatML's turn marks, then words."""
    tokens = [*ALPHABET, "<|im_start|>", "<|im_end|>"]
    tokens += [f"word{index}" for index in range(len(tokens), VOCAB)]
    types = np.ones(VOCAB, np.int32)
    types[256:258] = 3
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [],
    }
    return metadata if chat_template is None else {**metadata, "tokenizer.chat_template": chat_template}


def write_gguf_file(
    model: TinyModel, path: Path, matrices: TensorType = TensorType.F32, extra: dict[str, Any] | None = None
) -> Path:
    """What llama.cpp's converter would write: Q and K permuted, llama3 scaling as divisors in rope_freqs.weight.

    `extra` metadata replaces or adds keys.
    """
    config = model.full_config
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters", config)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        "tokenizer.ggml.eos_token_id": EOS,
    }
    tensors = []
    for name, array in weights(model).items():
        count = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        stored = array if count is None else _interleaved(array, count)
        type_ = matrices if array.ndim == 2 else TensorType.F32
        tensors.append(quantize(_gguf_name(name), stored, type_))
    if rope.get("rope_type") == "llama3":
        tensors.append(quantize("rope_freqs.weight", _llama3_factors(rope, head_dim), TensorType.F32))
    write_gguf(path, {**metadata, **(extra or {})}, tensors)
    return path


def _interleaved(array: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from the order of pairs (i, i + d / 2) to that of pairs (2i, 2i + 1)."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def _gguf_name(name: str) -> str:
    for old, new in (
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
    ):
        name = name.replace(old, new)
    return name


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> npt.NDArray[np.float32]:
    """Divisors of the base frequencies, written the way the converter does it: band by band."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns > rope["high_freq_factor"]:
            factors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
