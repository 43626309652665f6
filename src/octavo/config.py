"""Every knob once, with type, unit, default and help.

CLI flags, OCTAVO_* variables, the config file and the docs derive from these dataclasses (cli/options.py): the field
`max_model_len` is `--max-model-len`, `OCTAVO_MAX_MODEL_LEN` and `max-model-len:`. Spelling follows vLLM's where the
meaning is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def knob(default: Any, help: str, *, unit: str = "", choices: tuple[str, ...] = (), secret: bool = False) -> Any:
    """A config field. `secret` values are never logged or shown."""
    return field(default=default, metadata={"help": help, "unit": unit, "choices": choices, "secret": secret})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process (or `LLM`) is built from."""

    model: str = knob("smollm2-135m-instruct", "GGUF file, safetensors folder, catalogue name or hub id")
    backend: str = knob("cpu", "implementation of the ops", choices=("cpu", "reference"))
    max_model_len: int | None = knob(
        None, "longest prompt plus answer of one sequence; default: the model's context, or what fits", unit="tokens"
    )
    max_num_seqs: int = knob(256, "most sequences in one step", unit="sequences")
    max_num_batched_tokens: int = knob(512, "most tokens in one step", unit="tokens")
    page_size: int = knob(8, "token slots of a KV page: 4, 8, 16 or 32", unit="tokens")
    kv_cache_memory_bytes: int | None = knob(
        None, "size of the page pool; default: from the memory this process may use", unit="bytes"
    )
    kv_cache_dtype: str = knob("auto", "type of stored K and V; auto is bf16", choices=("auto", "f32", "bf16"))
    activations: str = knob(
        "auto",
        "type that activations are multiplied in; auto: int8 for quantised weights, bf16 for bf16, else f32",
        choices=("auto", "f32", "bf16", "int8"),
    )
    threads: int | None = knob(None, "kernel threads; default: min(affinity, CPU quota, physical cores)")
    isa: str | None = knob(None, "force an ISA level: generic, avx2, avx512, avx512_bf16")
    prefix_caching: bool = knob(True, "share KV pages between requests with equal prefixes")
    schedule_policy: str = knob("fcfs", "order of waiting requests", choices=("fcfs", "priority", "fair"))
    target_itl_ms: float = knob(
        0.0,
        "gap between a running stream's tokens that prefill must not exceed; 0: three times a pure decode",
        unit="ms",
    )
    generation_config: str = knob(
        "auto", "auto: sampling defaults come from the model; none: they don't", choices=("auto", "none")
    )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the front process adds."""

    host: str = knob("127.0.0.1", "address to listen on")
    port: int = knob(8000, "port to listen on; 0 picks a free one")
    api_key: tuple[str, ...] = knob((), "keys that may use the API; none: no check", secret=True)
    api_key_file: str | None = knob(None, "file with one key a line")
    served_model_name: tuple[str, ...] = knob((), "names the model answers to; default: the name it was asked for by")
    chat_template: str | None = knob(None, "file with a chat template that replaces the model's own")
    root_path: str = knob("", "path prefix under which a proxy serves this server")
    max_queue: int = knob(1024, "most requests waiting or running; above it: 429", unit="requests")
    max_body_bytes: int = knob(8 << 20, "largest request body", unit="bytes")
    max_prompts: int = knob(128, "most prompts in one completions request, and prompts times n", unit="sequences")
    shutdown_timeout: float = knob(30.0, "how long running requests may finish after SIGTERM", unit="s")
    strict_max_tokens: bool = knob(False, "refuse prompt + max_tokens over the context instead of clipping")
    metrics_prefix: str = knob("vllm:", "prefix of the metric names on /metrics")
    log_level: str = knob("info", "log level", choices=("debug", "info", "warning", "error"))
