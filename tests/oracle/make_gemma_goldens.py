"""Makes golden/gemma-3-270m.json: greedy continuations by transformers, in float32, on the file's own weights.

    pip install '.[oracle]' && python -m tests.oracle.make_gemma_goldens

The file's blocks are de-quantised by the package gguf. Prompts are the beginnings of ShareGPT conversations, as raw
text: the model has no chat template. The last few are longer than its window of 512 tokens. Each line: id of the
conversation, prompt and continuation as token ids.
"""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import torch
import transformers
from tests.oracle.make_goldens import write_continuations

from octavo.bench.dataset import whole_records
from octavo.formats.resolve import resolve, resolve_dataset
from octavo.text.tokenizer import Tokenizer

MODEL = "gemma-3-270m"
CONTINUATION = 48
#: How many prompts of so many tokens.
WANTED = ((17, range(16, 201)), (3, range(700, 1201)))

_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def prompts() -> Iterator[tuple[str, list[int]]]:
    """(conversation id, prompt ids)."""
    tokenizer = Tokenizer.load(resolve(MODEL))
    left = {sizes: count for count, sizes in WANTED}
    for record in whole_records(resolve_dataset("sharegpt")):
        text = "\n\n".join(turn["value"] for turn in record["conversations"])
        short = record["conversations"][0]["value"] if record["conversations"] else ""
        for sizes, ids in zip(left, map(tokenizer.encode_prompt, (short, text)), strict=True):
            if left[sizes] and len(ids) in sizes:
                left[sizes] -= 1
                yield record["id"], ids
                break
        if not any(left.values()):
            return


def build() -> torch.nn.Module:
    """transformers' Gemma 3 on the file's tensors. In GGUF norm weights have one added; transformers adds it itself."""
    reader = gguf.GGUFReader(resolve(MODEL).path)
    arrays = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            [int(size) for size in tensor.shape[::-1]]
        )
        for tensor in reader.tensors
    }

    def field(name: str) -> float:
        return reader.fields[f"gemma3.{name}"].contents()

    vocab, hidden = arrays["token_embd.weight"].shape
    config = transformers.Gemma3TextConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("attention.key_length"),
        query_pre_attn_scalar=field("attention.key_length"),
        max_position_embeddings=field("context_length"),
        sliding_window=field("attention.sliding_window"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        attn_implementation="eager",
    )
    network = transformers.Gemma3ForCausalLM(config).float().eval()
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    for layer in range(config.num_hidden_layers):
        names |= {f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in _LAYER.items()}
    state = {}
    for name, array in arrays.items():
        stem = name.removesuffix(".weight")
        values = np.ascontiguousarray(array, np.float32) - (1 if stem.endswith("norm") else 0)
        state[f"{names[stem]}.weight"] = torch.from_numpy(values)
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
    network.tie_weights()
    return network


if __name__ == "__main__":
    write_continuations(MODEL, build(), prompts(), CONTINUATION)
