"""The engines by name, for one model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from peers.engine import Engine
from peers.hf_transformers import Transformers
from peers.llamacpp import LlamaCpp
from peers.openvino import OpenVino
from peers.ours import Octavo
from peers.vllm_cpu import Vllm
from peers.weights import Forms

_LLAMA = "two threads, flash attention, one slot for each request in flight, no unified KV"
_VLLM = "its OpenAI server, 4 GiB of KV, threads bound automatically, tcmalloc preloaded where it is installed"
_OPENVINO = (
    "ContinuousBatchingPipeline in a process with a small HTTP server of ours around it; 256 tokens a step "
    "(W4: 2,048), prefix caching for W5"
)


# Peers that are far behind are shown, but not waited for on every workload.
_SHORT = ("W1", "W2-32", "W4")


def engines(model: str, shipped: Callable[[], Path], llama_server: Path | None) -> dict[str, Callable[[], Engine]]:
    """Factories for every engine. model: as `octavo serve` takes it; shipped: gives its GGUF file when it is needed."""
    wheel = "" if llama_server else "; from the AVX2-only xllamacpp wheel, so ratios are divided by 1.4"
    llama = partial(LlamaCpp, settings=_LLAMA + wheel, executable=llama_server)
    forms = Forms(shipped)
    return {
        "octavo": lambda: Octavo("octavo", "Octavo", "`octavo serve` with its defaults", model=model, weights=shipped),
        "llamacpp": lambda: llama("llamacpp", "llama.cpp, same file", model=shipped, only=_SHORT),
        "llamacpp-q4_0": lambda: llama("llamacpp-q4_0", "llama.cpp, Q4_0", model=forms.q4_0),
        "openvino": lambda: OpenVino("openvino", "OpenVINO GenAI, int8", _OPENVINO, weights=forms.q8_0),
        "openvino-same": lambda: OpenVino("openvino-same", "OpenVINO GenAI, same file", _OPENVINO, weights=shipped),
        "vllm-bf16": lambda: Vllm("vllm-bf16", "vLLM, bf16", _VLLM, weights=forms.hf_bf16),
        "vllm-w8a8": lambda: Vllm("vllm-w8a8", "vLLM, W8A8", _VLLM, weights=forms.hf_w8a8, scored=forms.w8a8_values),
        "transformers": lambda: Transformers(
            "transformers",
            "transformers, bf16",
            "static batches, in a process with a small HTTP server of ours around it",
            weights=forms.hf_bf16,
            only=_SHORT,
        ),
    }


DEFAULT = ("octavo", "llamacpp", "llamacpp-q4_0", "openvino", "vllm-bf16", "vllm-w8a8", "transformers")
