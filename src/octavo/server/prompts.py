"""The `prompt` of a completions request in its four shapes, and the limits on prompts.

What is too much is found by counting bytes of the raw JSON, before millions of Python objects are made from it.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

import msgspec

from octavo.engine.params import SamplingParams
from octavo.server.decoding import decode_field
from octavo.server.errors import ApiError, bad_request, context_length_exceeded

Prompt = str | list[int]

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptCut:
    """How long prompts may be. most_tokens: of what is read. keep: of what is left of it, from the end; None: all."""

    most_tokens: int
    keep: int | None = None

    @classmethod
    def of(cls, params: SamplingParams, max_model_len: int, max_body_bytes: int) -> PromptCut:
        keep = params.prompt_tokens_kept(max_model_len)
        return cls(max_model_len) if keep is None else cls(max_body_bytes, keep)  # a body has no more tokens than bytes

    @property
    def cuts(self) -> bool:
        return self.keep is not None

    def cut(self, ids: list[int]) -> list[int]:
        return ids if self.keep is None else ids[-self.keep :]


def parse_prompts(raw: msgspec.Raw, max_prompts: int, max_model_len: int) -> list[Prompt]:
    """Texts or lists of token ids, at least one. Raises ApiError 400."""
    data = bytes(raw)
    first = data[1:].lstrip(b" \t\r\n")[:1] if data.startswith(b"[") else b""
    if data.startswith(b'"'):
        return [decode_field(raw, str, "prompt")]
    if first == b'"':
        return _texts(raw, data, max_prompts)
    if first == b"[":
        return _token_lists(raw, data, max_prompts, max_model_len)
    if first not in (b"", b"]"):
        _check_length(data.count(b",") + 1, max_model_len)
        return [decode_field(raw, list[int], "prompt")]
    shown = data[:80].decode(errors="replace")
    raise bad_request(
        f"prompt is {shown}; it must be a text, a list of texts, a list of token ids, or a list of such lists.",
        "prompt",
        "invalid_value",
    )


def check_count(prompts: int, params: SamplingParams, limit: int) -> None:
    """Raise ApiError 400 when a request asks for more than `limit` sequences."""
    name = "best_of" if params.ranks_choices else "beam_width" if params.width > params.n else "n"
    each = params.width
    if prompts * each > limit:
        raise bad_request(
            f"{prompts} prompts times {name} = {each} are {prompts * each} sequences; one request may ask for {limit} "
            "(--max-prompts).",
            name if each > 1 else "prompt",
            "too_many_sequences",
        )


def checked_ids(ids: list[int], vocab_size: int, param: str) -> array[int]:
    """Token ids as 32-bit integers, each inside the vocabulary. Raises ApiError 400."""
    low, high = min(ids, default=0), max(ids, default=0)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise bad_request(
            f"{param} holds token id {wrong}; ids are from 0 to {vocab_size - 1}.", param, "invalid_value"
        )
    return array("i", ids)


def room_for(
    prompt_tokens: int, max_tokens: int | None, max_model_len: int, strict: bool, param: str = "prompt"
) -> int:
    """How many tokens the answer may have: `max_tokens`, clipped to what the context leaves. Raises ApiError 400.

    A prompt must leave room for at least one. strict: refuse what would be clipped.
    """
    if prompt_tokens == 0:
        raise bad_request(f"{param} is empty; at least 1 token is needed.", param, "empty_prompt")
    _check_length(prompt_tokens, max_model_len - 1, param, max_model_len)
    room = max_model_len - prompt_tokens
    if max_tokens is None:
        return room
    if strict and max_tokens > room:
        raise context_length_exceeded(
            f"The context has {max_model_len} tokens; the prompt's {prompt_tokens} and max_tokens {max_tokens} are "
            f"{prompt_tokens + max_tokens}. Ask for at most {room}.",
            "max_tokens",
        )
    return min(max_tokens, room)


def _check_length(tokens: int, limit: int, param: str = "prompt", context: int | None = None) -> None:
    if tokens > limit:
        raise context_length_exceeded(
            f"{param} has {tokens} tokens; the context has {context or limit}, of which the answer needs at least 1. "
            "Shorten it.",
            param,
        )


def _texts(raw: msgspec.Raw, data: bytes, max_prompts: int) -> list[Prompt]:
    if data.count(b",") >= max_prompts:
        for count, _ in enumerate(_STRING.finditer(data), start=1):
            if count > max_prompts:
                raise _too_many(max_prompts)
    texts: list[Prompt] = decode_field(raw, list[str], "prompt")
    return texts


def _token_lists(raw: msgspec.Raw, data: bytes, max_prompts: int, max_model_len: int) -> list[Prompt]:
    if data.count(b"[") - 1 > max_prompts:
        raise _too_many(max_prompts)
    if data.count(b",") > max_prompts * max_model_len:
        raise context_length_exceeded(
            f"prompt has {data.count(b',')} tokens in all; {max_prompts} prompts of {max_model_len} are the limit.",
            "prompt",
        )
    lists: list[Prompt] = decode_field(raw, list[list[int]], "prompt")
    return lists


def _too_many(max_prompts: int) -> ApiError:
    return bad_request(
        f"prompt is a list of more than {max_prompts} prompts, the most in one request (--max-prompts).",
        "prompt",
        "too_many_sequences",
    )
