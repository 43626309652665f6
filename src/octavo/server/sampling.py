"""From a request's fields to engine.params.SamplingParams, checked before anything reaches the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.engine.params import MAX_LOGPROBS, ParamError, SamplingParams
from octavo.server.errors import bad_request
from octavo.server.protocol import ChatRequest, CompletionRequest, GenerationRequest

COMPLETION_MAX_TOKENS = 16
MAX_LOGIT_BIAS = 1024
MAX_WORD_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_SALT_CHARS = 256
_PRIORITIES = range(-(2**31), 2**31)

_SAMPLED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "seed", "min_tokens", "n", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("allowed_token_ids", "bad_words", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "xtc_probability", "xtc_threshold", "best_of", "truncate_prompt_tokens"),
    *("use_beam_search", "beam_width", "length_penalty", "early_stopping"),
)


def completion_params(request: CompletionRequest, defaults: Mapping[str, float], vocab_size: int) -> SamplingParams:
    """`defaults` are the model's own, for fields that the request leaves out. Raises ApiError 400."""
    max_tokens = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    prompt_logprobs = request.prompt_logprobs
    if request.echo:
        max_tokens = 1 if max_tokens == 0 else max_tokens  # the engine's least; nobody will see it
        if request.logprobs is not None:
            prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    return _params(request, defaults, vocab_size, max_tokens, request.logprobs, prompt_logprobs)


def chat_params(request: ChatRequest, defaults: Mapping[str, float], vocab_size: int) -> SamplingParams:
    """The same for chat, where the answer may go on to the end of the context."""
    limits = [limit for limit in (request.max_tokens, request.max_completion_tokens) if limit is not None]
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request(
            f"top_logprobs is {request.top_logprobs}, but logprobs is not true; set it, or leave top_logprobs out.",
            "top_logprobs",
        )
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"top_logprobs is {request.top_logprobs}; it must be from 0 to {MAX_LOGPROBS}.", "top_logprobs"
        )
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _params(request, defaults, vocab_size, min(limits, default=None), logprobs, request.prompt_logprobs)


def check_common(request: GenerationRequest) -> None:
    """What is no sampling parameter: stream options, priority, salt. Raises ApiError 400."""
    if request.stream_options is not None and not request.stream:
        raise bad_request(
            "stream_options is set, but stream is not true; set it, or leave stream_options out.", "stream_options"
        )
    if request.priority is not None and request.priority not in _PRIORITIES:
        raise bad_request(f"priority is {request.priority}; it must be from {-(2**31)} to {2**31 - 1}.", "priority")
    if request.cache_salt is not None and not 1 <= len(request.cache_salt) <= MAX_SALT_CHARS:
        raise bad_request(
            f"cache_salt has {len(request.cache_salt)} characters; it must have 1 to {MAX_SALT_CHARS}. "
            "Leave it out to share cached pages with everybody who does.",
            "cache_salt",
        )


def check_streamed(request: GenerationRequest, params: SamplingParams) -> None:
    """What is known only at the end can't be streamed. Raises ApiError 400."""
    if not request.stream:
        return
    if params.ranks_choices:
        raise bad_request(
            f"best_of is {params.best_of} and n is {params.n}: which choices are best shows at the end only, so they "
            "can't be streamed. Leave stream out, or best_of.",
            "best_of",
        )
    if params.use_beam_search:
        raise bad_request(
            "use_beam_search is true, but a search has no text before its end; leave stream out.", "stream"
        )
    if request.prompt_logprobs is not None:
        raise bad_request(
            f"prompt_logprobs is {request.prompt_logprobs}, but it can't be streamed; leave stream out, or "
            "prompt_logprobs.",
            "prompt_logprobs",
        )


def _params(
    request: GenerationRequest,
    defaults: Mapping[str, float],
    vocab_size: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    given: dict[str, Any] = dict(defaults)
    given.update((name, value) for name in _SAMPLED if (value := getattr(request, name)) is not None)
    _at_most("logit_bias", len(request.logit_bias or ()), MAX_LOGIT_BIAS)
    _at_most("stop_token_ids", len(request.stop_token_ids or ()), MAX_STOP_TOKEN_IDS)
    stop = _stop_strings(request.stop)
    _check_chars("bad_words", request.bad_words or ())
    _check_chars("dry_sequence_breakers", request.dry_sequence_breakers or ())
    try:
        params = SamplingParams(
            **given,
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=tuple(request.stop_token_ids or ()),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        if params.ranks_choices and logprobs is None:
            params = replace(params, logprobs=0)
        return params.validate(vocab_size)
    except ParamError as error:
        raise bad_request(str(error), error.param, "invalid_value") from None


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    _check_chars("stop", texts)
    return texts


def _check_chars(name: str, texts: Sequence[object]) -> None:
    for text in texts:
        if isinstance(text, str) and len(text) > MAX_WORD_CHARS:
            raise bad_request(f"{name} holds a string of {len(text)} characters; the limit is {MAX_WORD_CHARS}.", name)


def _at_most(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise bad_request(f"{name} has {count} entries; the limit is {limit}.", name, "invalid_value")
