"""What a client may ask of sampling. Plain data; what exists is valid, but for token ids, which a vocabulary bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP = 16
#: Kernels compute in f32, where a top_p under 1e-45 is 0; this one already keeps one token only.
LEAST_TOP_P = 1e-9
#: Where LLM, `octavo run` and `octavo chat` end an answer that names no max_tokens: a model that never stops would
#: otherwise fill its whole context. The server has the API's own rules.
OFFLINE_MAX_TOKENS = 1024


class ParamError(ValueError):
    """A request parameter out of its limits.

    Attributes: `param` (the field's name), so that a server can answer with `{"param": ...}`.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it ends.

    Defaults follow the OpenAI API where it has the field (temperature 1, top_p 1) and are "off" elsewhere. `seed` None
    means: drawn fresh by whoever admits the request. `max_tokens` None means: until the context is full; LLM ends such
    requests after OFFLINE_MAX_TOKENS. `stop` may also be given as one text or a list, `stop_token_ids` as a list.

    Raises ParamError, which names field, value and limit.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _tuple("stop", self.stop, "texts"))
        object.__setattr__(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids, "token ids"))
        _integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamError(
                "min_tokens", f"min_tokens is {self.min_tokens}; it must not be above max_tokens, {self.max_tokens}."
            )
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p < LEAST_TOP_P:
            raise ParamError("top_p", f"top_p is {self.top_p}; it must be from {LEAST_TOP_P} to 1.")
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not isinstance(self.logit_bias, Mapping):
            raise ParamError("logit_bias", f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers.")
        for token, bias in self.logit_bias.items():
            _number(f"logit_bias[{token}]", bias, -100.0, 100.0, param="logit_bias")
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if len(self.stop) > MAX_STOP:
            raise ParamError("stop", f"stop has {len(self.stop)} strings; at most {MAX_STOP} are allowed.")
        for text in self.stop:
            if not isinstance(text, str):
                raise ParamError("stop", f"stop holds {text!r}; it must hold texts.")
        if any(not text for text in self.stop):
            raise ParamError("stop", "stop holds an empty string; every stop string must have at least 1 character.")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    def validate(self, vocab_size: int) -> SamplingParams:
        """Return self, or raise ParamError for a token id that the vocabulary doesn't have."""
        for token in self.logit_bias:
            _token("logit_bias", token, vocab_size)
        for token in self.stop_token_ids:
            _token("stop_token_ids", token, vocab_size)
        return self


def _tuple(name: str, value: object, what: str) -> tuple[Any, ...]:
    if isinstance(value, str) and name == "stop":
        return (value,)
    if not isinstance(value, (tuple, list)):
        raise ParamError(name, f"{name} is {value!r}; it must be a list of {what}.")
    return tuple(value)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParamError(name, f"{name} is {value!r}; it must be an integer from {low} to {high}.")
    if not low <= value <= high:
        raise ParamError(name, f"{name} is {value}; it must be from {low} to {high}.")


def _number(name: str, value: object, low: float, high: float, param: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ParamError(param or name, f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
    if not low <= value <= high:
        shown = f"{value:g}" if float(f"{value:g}") == value else repr(value)
        raise ParamError(param or name, f"{name} is {shown}; it must be from {low:g} to {high:g}.")


def _token(name: str, token: object, vocab_size: int) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise ParamError(name, f"{name} holds token id {token!r}; ids are integers from 0 to {vocab_size - 1}.")
