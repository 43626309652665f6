"""Every knob once, with type, unit, limits, default and help.

CLI flags, OCTAVO_* variables, the config file and docs/configuration.md derive from these dataclasses (cli/options.py):
the field `max_model_len` is `--max-model-len`, `OCTAVO_MAX_MODEL_LEN` and `max-model-len:`. Spelling follows vLLM's
where the meaning is the same. A config that exists is valid: construction checks every value.
"""

from __future__ import annotations

import math
import re
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

Kind = typing.Literal["integer", "number", "text", "switch", "list"]


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)(B?)", re.IGNORECASE)


class ConfigError(ValueError):
    """A setting is unknown or out of its limits; the message names it, the value, the limit and where it came from."""


@dataclass(frozen=True, slots=True)
class Knob:
    """What is known of a setting beyond its type and default.

    low and high are inclusive, in `unit`. `unset` says in words what None means. `secret` values are never logged or
    shown. `aliases` are further spellings of the flag, for people who come from other servers. A text matches
    `pattern` as a whole, if there is one; `pattern_words` says it for people.
    """

    help: str
    unit: str = ""
    choices: tuple[str | int, ...] = ()
    low: float | None = None
    high: float | None = None
    unset: str = ""
    secret: bool = False
    aliases: tuple[str, ...] = ()
    pattern: str = ""
    pattern_words: str = ""


def knob(default: Any, help: str, **known: Any) -> Any:
    """A config field; the keywords are Knob's."""
    return field(default=default, metadata={"knob": Knob(help, **known)})


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a config class, resolved: what flags, variables, file keys and docs are made from."""

    name: str
    kind: Kind
    optional: bool
    default: Any
    knob: Knob

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return "--" + self.key

    @property
    def variable(self) -> str:
        return "OCTAVO_" + self.name.upper()

    @property
    def requirement(self) -> str:
        """The limit in words: "an integer from 1 to 65535 (tokens)"."""
        limits = self.knob
        if limits.choices:
            return "one of " + ", ".join(str(choice) for choice in limits.choices)
        if self.kind == "switch":
            return "true or false"
        if self.kind in ("text", "list"):
            return limits.pattern_words or "text"
        in_bytes = limits.unit == "bytes"
        what = "a size in bytes" if in_bytes else "an integer" if self.kind == "integer" else "a number"
        if limits.low is not None and limits.high is not None:
            what += f" from {_plain(limits.low)} to {_plain(limits.high)}"
        elif limits.low is not None:
            what += f" of at least {_plain(limits.low)}"
        if in_bytes:
            return what + ", such as 512MiB or 4GiB"
        return what + (f" ({limits.unit})" if limits.unit else "")

    def check(self, value: Any, shown: str | None = None) -> None:
        """Raise ConfigError unless `value` fits. `shown` names the setting as the user wrote it (flag, file key)."""
        if value is None and self.optional:
            return
        if not self._fits(value):
            visible = "set to something else" if self.knob.secret else f"{value!r}"
            raise ConfigError(f"{shown or self.name} is {visible}; it must be {self.requirement}.")

    def _fits(self, value: Any) -> bool:
        if self.kind == "switch":
            return isinstance(value, bool)
        if self.kind == "list":
            return isinstance(value, tuple) and all(isinstance(item, str) and item for item in value)
        if self.kind == "text":
            if not isinstance(value, str) or (self.knob.pattern and not re.fullmatch(self.knob.pattern, value)):
                return False
            return not self.knob.choices or value in self.knob.choices
        numeric = (int,) if self.kind == "integer" else (int, float)
        if isinstance(value, bool) or not isinstance(value, numeric) or not math.isfinite(value):
            return False
        if self.knob.choices and value not in self.knob.choices:
            return False
        low, high = self.knob.low, self.knob.high
        return (low is None or value >= low) and (high is None or value <= high)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


_KINDS: dict[Any, Kind] = {int: "integer", float: "number", str: "text", bool: "switch", tuple[str, ...]: "list"}


def settings(config: type[Any]) -> tuple[Setting, ...]:
    """The settings of a config class, in its order."""
    hints = typing.get_type_hints(config)
    found = []
    for item in fields(config):
        hint, optional = hints[item.name], False
        if isinstance(hint, types.UnionType):
            hint, optional = hint.__args__[0], True
        assert item.default is not MISSING
        found.append(Setting(item.name, _KINDS[hint], optional, item.default, item.metadata["knob"]))
    return tuple(found)


def parse_size(text: str) -> int | None:
    """Bytes in `4096`, `4GiB`, `4G` (both binary) or `4GB` (decimal); None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix, binary, byte = match.groups()
    if not prefix:
        return int(number) if number.isdigit() and not binary else None
    base = 1000 if byte and not binary else 1024
    return int(float(number) * base ** ("KMGT".index(prefix.upper()) + 1))


def _check_all(config: Any) -> None:
    """Check every value; sizes in bytes may be texts, so that Python programs can say "512MiB" like everybody."""
    for setting in settings(type(config)):
        value = getattr(config, setting.name)
        if setting.knob.unit == "bytes" and isinstance(value, str) and (size := parse_size(value)) is not None:
            value = size
            object.__setattr__(config, setting.name, value)
        setting.check(value)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process (or `LLM`) is built from. Raises ConfigError."""

    model: str = knob(
        "smollm2-135m-instruct", "GGUF file, safetensors folder, catalogue name or hub id (org/name, org/name:Q8_0)"
    )
    backend: str = knob("cpu", "implementation of the ops", choices=("cpu", "reference"))
    max_model_len: int | None = knob(
        None,
        "longest prompt plus answer of one sequence",
        unit="tokens",
        low=1,
        high=1 << 24,
        unset="the model's context, or what fits in memory",
    )
    max_num_seqs: int = knob(256, "most sequences in one step", unit="sequences", low=1, high=65536)
    max_num_batched_tokens: int = knob(512, "most tokens in one step", unit="tokens", low=1, high=1 << 20)
    page_size: int = knob(4, "token slots of a KV page", unit="tokens", choices=(4, 8, 16, 32), aliases=("block-size",))
    kv_cache_memory_bytes: int | None = knob(
        None, "size of the page pool", unit="bytes", low=1, unset="from the memory that this process may use"
    )
    kv_cache_dtype: str = knob(
        "auto", "type of stored K and V; auto: bf16", choices=("auto", "f32", "bf16", "f16", "int8")
    )
    activations: str = knob(
        "auto",
        "type that activations are multiplied in; auto: int8 for quantised weights, bf16 for bf16, else f32",
        choices=("auto", "f32", "bf16", "int8"),
    )
    threads: int | None = knob(
        None, "kernel threads", low=1, high=1024, unset="min(affinity, CPU quota, physical cores)"
    )
    isa: str | None = knob(
        None,
        "force an instruction set level",
        choices=("generic", "avx2", "avx512", "avx512_bf16"),
        unset="the best that this CPU has",
    )
    prefix_caching: bool = knob(
        True, "share KV pages between requests with equal prefixes", aliases=("enable-prefix-caching",)
    )
    scheduling_policy: str = knob("fcfs", "order of waiting requests", choices=("fcfs", "priority", "fair"))
    kv_policy: str = knob(
        "paged",
        "how KV memory is given out; all but paged are for comparison and have no prefix caching: contiguous reserves "
        "max-model-len for each sequence, contiguous-limit its prompt and max_tokens, buddy grows in powers of two",
        choices=("paged", "contiguous", "contiguous-limit", "buddy"),
    )
    batch_policy: str = knob(
        "continuous",
        "when batches change; static, for comparison: nobody enters until the whole batch has finished",
        choices=("continuous", "static"),
    )
    static_padding: bool = knob(True, "a static batch goes on computing rows that have finished")
    target_itl_ms: float = knob(
        0.0,
        "gap between a running stream's tokens that prefill must not exceed; 0: three times a pure decode, or 30 ms",
        unit="ms",
        low=0,
    )
    record: str | None = knob(
        None,
        "file to which all that the scheduler is told and decides is appended, never text: `octavo simulate --replay`",
        unset="none",
    )
    generation_config: str = knob(
        "auto", "auto: sampling defaults come from the model; none: they don't", choices=("auto", "none")
    )
    logprobs_mode: str = knob(
        "raw",
        "log-probabilities of generated tokens: raw: of the model's own logits; processed: of the distribution that "
        "tokens are drawn from, after masks, bias, penalties, temperature and truncation",
        choices=("raw", "processed"),
    )

    def __post_init__(self) -> None:
        _check_all(self)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the front process adds. Raises ConfigError."""

    host: str = knob("127.0.0.1", "address to listen on; 0.0.0.0 for all IPv4, :: for all")
    port: int = knob(8000, "port to listen on; 0 picks a free one", low=0, high=65535)
    api_key: tuple[str, ...] = knob((), "keys that may use the API; none: no check", secret=True)
    api_key_file: str | None = knob(None, "file with one key a line", unset="none")
    served_model_name: tuple[str, ...] = knob(
        (), "names the model answers to; none: its file's or folder's name, catalogue name or hub id"
    )
    chat_template: str | None = knob(
        None, "file with a chat template that replaces the model's own", unset="the model's own"
    )
    root_path: str = knob("", "path prefix under which a proxy serves this server")
    max_queue: int = knob(1024, "most requests waiting or running; above it: 429", unit="requests", low=1, high=1 << 20)
    max_body_bytes: int = knob(8 << 20, "largest request body", unit="bytes", low=1024, high=1 << 31)
    max_prompts: int = knob(
        128, "most prompts in one completions request, and prompts times n", unit="sequences", low=1, high=65536
    )
    shutdown_timeout: float = knob(
        30.0, "how long running requests may finish after SIGTERM", unit="s", low=0, high=86400
    )
    step_timeout: float = knob(
        60.0,
        "how long one step may take; a longer one counts as hung: the engine is restarted",
        unit="s",
        low=1,
        high=86400,
    )
    strict_max_tokens: bool = knob(False, "refuse prompt + max_tokens over the context instead of clipping")
    metrics_prefix: str = knob(
        "vllm:",
        "prefix of the metric names on /metrics",
        pattern=r"([a-zA-Z_:][a-zA-Z0-9_:]*)?",
        pattern_words="letters, digits, `_` and `:`, no digit first",
    )
    log_level: str = knob("info", "log level", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        _check_all(self)
