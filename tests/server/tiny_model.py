"""A model file that holds a tokenizer and nothing else: one token for each byte, and ChatML's turn marks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo.formats.gguf_write import write_gguf
from octavo.text.byte_level import ALPHABET

#: Ids: byte b is token b; then these.
END, START, EOS = 256, 257, 258
VOCAB = 259
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(path: Path, chat_template: str | None = TEMPLATE) -> Path:
    tokens = [*ALPHABET, "<|im_end|>", "<|im_start|>", "<|endoftext|>"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * 3, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": EOS,
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    write_gguf(path, metadata, [])
    return path
