"""One tiny random model of every family, as transformers makes it.

golden/families.json holds each one's config.json as transformers saved it and its tensors' names and shapes;
golden/families.npz what transformers computed. The values of the tensors follow from a seed and their names.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.oracle import mxfp4
from tests.oracle.tiny import EOS, VOCAB, Arrays, seeded_prompts, write_safetensors

GOLDEN = Path(__file__).parent / "golden"

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 0.004,  # large enough to show in the logits; each family has one of these three
    "layer_norm_eps": 0.005,
    "norm_epsilon": 0.006,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_WINDOW = 12
_LONG = [1.0 + 0.35 * i for i in range(8)]
_SHORT = [1.0 + 0.04 * i for i in range(8)]


@dataclass(frozen=True)
class Family:
    """`changes` are made to _COMMON (None removes a field). gguf: general.architecture of its GGUF, if it has one.

    mxfp4: experts are in MXFP4, in the folder as in the GGUF; transformers is given their values.
    max_model_len: of the engine, where a rotary scaling depends on it; transformers then is given as many tokens in
    each pass, the last ones padding, so that it settles for the same frequencies.
    """

    name: str
    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)
    gguf: str | None = None
    prompt_lengths: tuple[int, ...] = (1, 17, 40)
    max_model_len: int | None = None
    mxfp4: bool = False

    @property
    def config(self) -> dict[str, Any]:
        config = {**_COMMON, **self.changes, "architectures": [self.architecture]}
        return {key: value for key, value in config.items() if value is not None}

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode()) % 10_000

    def prompts(self) -> list[npt.NDArray[np.int32]]:
        """Seeded prompts; the later ones share the first half of the earlier."""
        return seeded_prompts(self.seed, self.prompt_lengths, VOCAB)


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA = {"query_pre_attn_scalar": 24, "sliding_window": _WINDOW, "hidden_activation": "gelu_pytorch_tanh"}
_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
_QWEN_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
_DEEPSEEK = {
    "head_dim": None,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "num_nextn_predict_layers": 0,
}
_GPT_OSS = {
    "sliding_window": _WINDOW,
    "swiglu_limit": 1.5,
    **_rope("yarn", **_YARN, truncate=False, beta_fast=32.0, beta_slow=1.0),
}
_GPT2 = {
    **dict.fromkeys(_COMMON), "vocab_size": VOCAB, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128,
    "layer_norm_epsilon": 0.007,
    "bos_token_id": 1, "eos_token_id": EOS,
}  # fmt: skip

FAMILIES = {
    family.name: family
    for family in (
        Family("llama-yarn", "LlamaForCausalLM", _rope("yarn", **_YARN), "llama"),
        Family(
            "llama-dynamic-within",
            "LlamaForCausalLM",
            {**_rope("dynamic", factor=3.0), "max_position_embeddings": 64},
            max_model_len=64,
        ),
        Family(
            "llama-dynamic-beyond",
            "LlamaForCausalLM",
            {**_rope("dynamic", factor=3.0), "max_position_embeddings": 64},
            max_model_len=150,
        ),
        Family("llama-linear", "LlamaForCausalLM", {**_rope("linear", factor=2.5)}, "llama"),
        Family("qwen2", "Qwen2ForCausalLM", {"head_dim": None, "tie_word_embeddings": True}, "qwen2"),
        Family(
            "qwen2-windows",
            "Qwen2ForCausalLM",
            {"head_dim": None, "use_sliding_window": True, "sliding_window": _WINDOW, "max_window_layers": 2},
        ),
        Family("qwen3", "Qwen3ForCausalLM", {"head_dim": 32, **_rope("default", rope_theta=1e6)}, "qwen3"),
        Family("qwen3-yarn", "Qwen3ForCausalLM", _rope("yarn", **_YARN, attention_factor=1.25)),
        Family(
            "gemma2", "Gemma2ForCausalLM", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}
        ),
        Family(
            "gemma2-gguf",
            "Gemma2ForCausalLM",
            {**_GEMMA, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
            "gemma2",
        ),
        Family(
            "gemma3", "Gemma3ForCausalLM", {**_GEMMA, "num_hidden_layers": 7, "num_key_value_heads": 1, "head_dim": 256}
        ),
        Family(
            "gemma3-gguf",
            "Gemma3ForCausalLM",
            {
                **_GEMMA,
                "query_pre_attn_scalar": 16,
                "num_hidden_layers": 7,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
            "gemma3",
        ),
        Family("mistral", "MistralForCausalLM", {"sliding_window": _WINDOW}),
        Family("phi3", "Phi3ForCausalLM", {"head_dim": None, "sliding_window": _WINDOW}, "phi3"),
        Family(
            "phi3-short",
            "Phi3ForCausalLM",
            {
                "head_dim": None,
                "original_max_position_embeddings": 64,
                "max_position_embeddings": 256,
                "rope_scaling": {"rope_type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
            },
            "phi3",
            max_model_len=64,
        ),
        Family(
            "phi3-long",
            "Phi3ForCausalLM",
            {
                "head_dim": None,
                "original_max_position_embeddings": 64,
                "max_position_embeddings": 256,
                "partial_rotary_factor": 0.75,
                "rope_scaling": {"rope_type": "longrope", "short_factor": _SHORT[:6], "long_factor": _LONG[:6]},
            },
            "phi3",
            prompt_lengths=(1, 17, 40, 200),
            max_model_len=256,
        ),
        Family("smollm3", "SmolLM3ForCausalLM", {"head_dim": None, "num_hidden_layers": 5}, "smollm3"),
        Family("olmo2", "Olmo2ForCausalLM", {"head_dim": None}, "olmo2"),
        Family(
            "granite",
            "GraniteForCausalLM",
            {
                "head_dim": None,
                "attention_multiplier": 0.2,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.4,
                "logits_scaling": 2.5,
            },
            "granite",
        ),
        Family(
            "starcoder2",
            "Starcoder2ForCausalLM",
            {"head_dim": None, "sliding_window": _WINDOW, "use_bias": True},
        ),
        Family("starcoder2-full", "Starcoder2ForCausalLM", {"head_dim": None, "sliding_window": None}, "starcoder2"),
        Family(
            "stablelm",
            "StableLmForCausalLM",
            {"head_dim": None, "hidden_size": 160, "num_attention_heads": 2, "use_qkv_bias": True},
            "stablelm",
        ),
        Family(
            "stablelm-parallel",
            "StableLmForCausalLM",
            {"head_dim": None, "use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
            "stablelm",
        ),
        Family("cohere", "CohereForCausalLM", {"head_dim": None, "logit_scale": 0.25}, "command-r"),
        Family("cohere-qk-norm", "CohereForCausalLM", {"head_dim": None, "use_qk_norm": True}, "command-r"),
        Family("cohere2", "Cohere2ForCausalLM", {"head_dim": None, "sliding_window": _WINDOW}, "cohere2"),
        Family("glm4", "Glm4ForCausalLM", {"partial_rotary_factor": 0.5}, "glm4"),
        Family("glm", "GlmForCausalLM", {"partial_rotary_factor": 0.5}),
        Family("gpt2", "GPT2LMHeadModel", _GPT2, "gpt2"),
        Family(
            "gpt-neox",
            "GPTNeoXForCausalLM",
            {"head_dim": None, "num_key_value_heads": None, "rotary_pct": 0.5},
            "gptneox",
        ),
        Family(
            "gpt-neox-serial",
            "GPTNeoXForCausalLM",
            {"head_dim": None, "num_key_value_heads": None, "use_parallel_residual": False, "attention_bias": False},
            "gptneox",
        ),
        Family("mixtral", "MixtralForCausalLM", {**_EXPERTS, "sliding_window": _WINDOW}),
        Family("mixtral-gguf", "MixtralForCausalLM", _EXPERTS, "llama"),
        Family("qwen3-moe", "Qwen3MoeForCausalLM", {**_QWEN_EXPERTS, "norm_topk_prob": True}, "qwen3moe"),
        Family("qwen3-moe-not-normalised", "Qwen3MoeForCausalLM", {**_QWEN_EXPERTS, "norm_topk_prob": False}),
        Family("deepseek-v2", "DeepseekV2ForCausalLM", {**_DEEPSEEK, "topk_method": "group_limited_greedy"}),
        Family(
            "deepseek-v2-lite",
            "DeepseekV2ForCausalLM",
            {**_DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1},
            "deepseek2",
        ),
        Family(
            "deepseek-v3",
            "DeepseekV3ForCausalLM",
            {
                **_DEEPSEEK,
                "routed_scaling_factor": 1.8,
                "norm_topk_prob": True,
                **_rope("yarn", **_YARN, mscale=1.0, mscale_all_dim=0.8),
            },
        ),
        Family(
            "deepseek-v3-gguf",
            "DeepseekV3ForCausalLM",
            {
                **_DEEPSEEK,
                "norm_topk_prob": True,
                "scoring_func": "sigmoid",
                **_rope("yarn", **_YARN, mscale=0.8, mscale_all_dim=0.8),
            },
            "deepseek2",
        ),
        Family("gpt-oss", "GptOssForCausalLM", {**_EXPERTS, **_GPT_OSS}),
        Family("gpt-oss-gguf", "GptOssForCausalLM", {**_EXPERTS, **_GPT_OSS, "swiglu_limit": 7.0}, "gpt-oss"),
        Family(
            "gpt-oss-mxfp4", "GptOssForCausalLM", {**_EXPERTS, **_GPT_OSS, "swiglu_limit": 7.0}, "gpt-oss", mxfp4=True
        ),
    )
}


@cache
def _saved() -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((GOLDEN / "families.json").read_text())
    return saved


def config_of(family: Family) -> dict[str, Any]:
    """config.json as transformers wrote it."""
    config: dict[str, Any] = _saved()[family.name]["config"]
    return config


def arrays_of(family: Family) -> Arrays:
    """float32 arrays by safetensors name."""
    return seeded(family, {name: tuple(shape) for name, shape in _saved()[family.name]["tensors"].items()})


def seeded(family: Family, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Values for tensors of these names and shapes; each depends on the family and its own name only."""
    return {name: _values(family, name, shape) for name, shape in shapes.items()}


def _random(family: Family, name: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(f"{family.seed}/{name}".encode()))


def _is_mxfp4(family: Family, name: str) -> bool:
    return family.mxfp4 and name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def _values(family: Family, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if _is_mxfp4(family, name):
        return np.ascontiguousarray(mxfp4.values(*_blocks_and_scales(family, name, shape)).swapaxes(1, 2))
    normal = _random(family, name).standard_normal(shape)
    is_norm = any(part in name for part in ("norm", ".ln_"))
    if is_norm and name.endswith("weight"):
        values = 0.25 * normal + (0.0 if family.architecture.startswith("Gemma") else 1.0)
    elif len(shape) == 1:
        values = 0.3 * normal
    elif any(part in name for part in ("embed_tokens", "wte", "embed_in")):
        values = 0.7 * normal
    else:
        values = 1.6 * normal / shape[-1] ** 0.5
    return values.astype(np.float32)


def _blocks_and_scales(family: Family, name: str, shape: tuple[int, ...]) -> tuple[mxfp4.Bytes, mxfp4.Bytes]:
    """Of experts that transformers keeps as [experts, in, out]."""
    experts, inner, outer = shape
    return mxfp4.random_stack(_random(family, name), (experts, outer, inner))


def write_family(family: Family, folder: Path) -> Path:
    """The model as a user has it: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config_of(family), **({"quantization_config": mxfp4.CONFIG} if family.mxfp4 else {})}
    (folder / "config.json").write_text(json.dumps(config))
    stored: dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays_of(family).items():
        if _is_mxfp4(family, name):
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = _blocks_and_scales(family, name, array.shape)
        else:
            stored[name] = array
    write_safetensors(folder / "model.safetensors", stored)
    return folder
