"""The Llama family: Llama, Mistral, Qwen2 (biases on q, k and v) from config.json; `llama` from GGUF.

GGUF's `llama` (Mistral too: it is converted as one) stores Q and K rows for interleaved rotation; safetensors don't.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.formats.blocks import dequantize
from octavo.models import rope
from octavo.models.fields import Fields
from octavo.models.slots import TensorFile
from octavo.models.spec import MLP, Attention, DecoderSpec, LayerSpec, Rope

_MAX_LAYERS, _MAX_HEADS, _MAX_WIDTH, _MAX_VOCAB, _MAX_CONTEXT = 1024, 1024, 1 << 18, 1 << 22, 1 << 31

_GGUF_LAYER = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "ffn_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
_GGUF_MODEL = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_HF_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_HF_MODEL = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def gguf_name(slot: str) -> str:
    """The GGUF tensor of a slot: layers.3.q.bias -> blk.3.attn_q.bias."""
    if slot in _GGUF_MODEL:
        return _GGUF_MODEL[slot]
    _, index, name, *bias = slot.split(".")
    return f"blk.{index}.{_GGUF_LAYER[name]}.{bias[0] if bias else 'weight'}"


def gguf_ignored(name: str) -> bool:
    """rope_freqs is read with the spec."""
    return name == "rope_freqs.weight"


def hf_name(slot: str) -> str:
    """The safetensors tensor of a slot: layers.3.q.bias -> model.layers.3.self_attn.q_proj.bias."""
    if slot in _HF_MODEL:
        return _HF_MODEL[slot]
    _, index, name, *bias = slot.split(".")
    return f"model.layers.{index}.{_HF_LAYER[name]}.{bias[0] if bias else 'weight'}"


def hf_ignored(name: str) -> bool:
    """Old checkpoints carry a buffer of frequencies; tied ones may repeat the embedding as a head."""
    return name == "lm_head.weight" or name.endswith(".self_attn.rotary_emb.inv_freq")


def spec_from_gguf(metadata: Mapping[str, object], file: TensorFile) -> DecoderSpec:
    """The spec of a GGUF file of architecture `llama`. Raises MetadataError."""
    fields = Fields(metadata, "GGUF metadata")
    heads = fields.integer("llama.attention.head_count", 1, _MAX_HEADS)
    hidden = fields.integer("llama.embedding_length", 1, _MAX_WIDTH)
    head_dim = fields.integer("llama.attention.key_length", 2, _MAX_WIDTH, max(2, hidden // heads))
    rotary_dim = fields.integer("llama.rope.dimension_count", 2, head_dim, head_dim)
    if fields.integer("llama.expert_count", 0, 1 << 16, 0):
        raise fields.error("llama.expert_count", "is above 0; mixtures of experts are not supported")
    if rotary_dim != head_dim:
        raise fields.error("llama.rope.dimension_count", f"is {rotary_dim}; it must be the head size, {head_dim}")
    factors = dequantize(file.tensor("rope_freqs.weight")).reshape(-1) if "rope_freqs.weight" in file else None
    if factors is not None and (factors.shape != (rotary_dim // 2,) or not np.all(factors > 0)):
        raise fields.error("tensor rope_freqs.weight", f"must hold {rotary_dim // 2} positive numbers")
    attention = Attention(
        heads=heads,
        kv_heads=_kv_heads(fields, "llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=Rope(rotary_dim, rope.from_gguf(fields, "llama", rotary_dim, factors), interleaved=True),
        bias="blk.0.attn_q.bias" in file,
        output_bias="blk.0.attn_output.bias" in file,
        window=fields.integer("llama.attention.sliding_window", 0, _MAX_CONTEXT, 0),
    )
    ffn_hidden = fields.integer("llama.feed_forward_length", 1, _MAX_WIDTH)
    eps = fields.number("llama.attention.layer_norm_rms_epsilon", 0.0, 1.0)
    layer = LayerSpec(attention, MLP(ffn_hidden, bias="blk.0.ffn_down.bias" in file), eps)
    return DecoderSpec(
        architecture="llama",
        vocab=file.tensor("token_embd.weight").shape[0],
        hidden=hidden,
        layers=(layer,) * fields.integer("llama.block_count", 1, _MAX_LAYERS),
        norm_eps=eps,
        tied_head="output.weight" not in file,
        context=fields.integer("llama.context_length", 1, _MAX_CONTEXT),
    )


def spec_from_config(config: Mapping[str, object], architecture: str) -> DecoderSpec:
    """The spec of a config.json whose architecture is Llama, Mistral or Qwen2. Raises MetadataError."""
    fields = Fields(config, "config.json")
    heads = fields.integer("num_attention_heads", 1, _MAX_HEADS)
    hidden = fields.integer("hidden_size", 1, _MAX_WIDTH)
    head_dim = fields.integer("head_dim", 2, _MAX_WIDTH, max(2, hidden // heads))
    qwen = architecture == "Qwen2ForCausalLM"
    bias = fields.flag("attention_bias", qwen)
    attention = Attention(
        heads=heads,
        kv_heads=_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=Rope(head_dim, rope.from_config(fields, head_dim)),
        bias=bias,
        output_bias=bias and not qwen,
        window=_window(fields, architecture),
    )
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise fields.error("hidden_act", f"is {activation!r}; a {architecture} is run with 'silu' only")
    if fields.has("quantization_config"):
        raise fields.error("quantization_config", "is set; quantised safetensors are not supported, use a GGUF file")
    eps = fields.number("rms_norm_eps", 0.0, 1.0, 1e-6)
    ffn = MLP(fields.integer("intermediate_size", 1, _MAX_WIDTH), bias=fields.flag("mlp_bias", False))
    return DecoderSpec(
        architecture=architecture,
        vocab=fields.integer("vocab_size", 1, _MAX_VOCAB),
        hidden=hidden,
        layers=(LayerSpec(attention, ffn, eps),) * fields.integer("num_hidden_layers", 1, _MAX_LAYERS),
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        context=fields.integer("max_position_embeddings", 1, _MAX_CONTEXT, 2048),
    )


def _kv_heads(fields: Fields, name: str, heads: int) -> int:
    kv_heads = fields.integer(name, 1, heads, heads)
    if heads % kv_heads:
        raise fields.error(name, f"is {kv_heads}; it must divide the number of heads, {heads}")
    return kv_heads


def _window(fields: Fields, architecture: str) -> int:
    """Mistral's window is on when set, Qwen2's only by a second flag, and Llama has none."""
    if architecture == "MistralForCausalLM":
        return fields.integer("sliding_window", 0, _MAX_CONTEXT, 0)
    if fields.flag("use_sliding_window", False):
        raise fields.error("use_sliding_window", "is true; windows in some layers only are not supported")
    return 0
