"""config.json, the tokenizer's files and safetensors for a GGUF file of the Llama family."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf import GgufFile
from octavo.text.gguf_byte_level import load_byte_level

if TYPE_CHECKING:
    from peers.weights import Stored


def config_of(source: GgufFile) -> dict[str, object]:
    """The fields of config.json for a LlamaForCausalLM."""
    metadata = source.metadata
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": source.tensor("token_embd.weight").shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv", heads),
        "head_dim": metadata.integer("llama.attention.key_length", hidden // heads),
        "rms_norm_eps": metadata.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("llama.rope.freq_base", 10_000.0),
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in source,
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id", 0),
        "eos_token_id": metadata.integer("tokenizer.ggml.eos_token_id", 0),
    }


def write_tokenizer(source: GgufFile, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE vocabulary."""
    encoder, vocabulary = load_byte_level(source)
    content = json.loads(encoder.to_json())
    content["added_tokens"] = [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for text, index in sorted(vocabulary.control.items(), key=lambda item: item[1])
    ]  # fmt: skip
    content["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    texts = {index: text for text, index in vocabulary.control.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, index in (("bos_token", vocabulary.bos_id), ("eos_token", vocabulary.eos_id)):
        if index is not None and index in texts:
            config[key] = texts[index]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_safetensors(path: Path, tensors: Iterable[Stored]) -> None:
    """A safetensors file of the tensors, in their order; they are spooled to a file beside it, not held in memory."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    with tempfile.TemporaryFile(dir=path.parent) as data:
        for name, dtype, values in tensors:
            raw = np.ascontiguousarray(values)
            header[name] = {
                "dtype": dtype, "shape": list(raw.shape), "data_offsets": [offset, offset + raw.nbytes],
            }  # fmt: skip
            data.write(_bytes(raw))
            offset += raw.nbytes
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        data.seek(0)
        with path.open("wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            while piece := data.read(1 << 24):
                file.write(piece)


def _bytes(values: npt.NDArray[np.generic]) -> memoryview:
    return memoryview(values.reshape(-1).view(np.uint8))
