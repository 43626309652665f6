"""One streamed completion of an OpenAI server: the request's body, and what its stream says and when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.bench.http import Client, HttpError
from octavo.bench.sse import EventStream, EventTooLong

Endpoint = Literal["completions", "chat"]

PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt and how many tokens to ask for. prompt_tokens is what the data set's tokenizer counted."""

    prompt: str
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are perf_counter seconds.

    start_s: when it was due (open loop) or sent (closed loop). chunk_s: arrival of each piece that carried text.
    prompt_tokens and output_tokens come from the server's usage; output_tokens counts pieces if it sent none.
    error: None for a complete answer.
    """

    start_s: float
    end_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def body(request: BenchRequest, endpoint: Endpoint, model: str, sampling: dict[str, Any]) -> bytes:
    """The JSON of a streamed request with usage at its end. `sampling`: further fields, such as temperature."""
    fields: dict[str, Any] = {"model": model}
    if endpoint == "chat":
        fields["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        fields["prompt"] = request.prompt
    fields |= {"max_tokens": request.output_tokens, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(fields | sampling)


class _Reader:
    """Turns the stream's events into an Outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._events = EventStream()
        self.done = False
        self._usage = False

    def feed(self, piece: bytes) -> None:
        now = time.perf_counter()
        for event in self._events.feed(piece):
            if event == b"[DONE]":
                self.done = True
            else:
                self._chunk(_decode(event), now)

    def _chunk(self, chunk: _Chunk, now: float) -> None:
        outcome = self._outcome
        if chunk.error is not None:
            outcome.error = error_text(chunk.error)
        for choice in chunk.choices:
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or delta.reasoning_content)):
                outcome.chunk_s.append(now)
                outcome.output_tokens += not self._usage
            outcome.finish_reason = choice.finish_reason or outcome.finish_reason
        if chunk.usage is not None:
            self._usage = True
            outcome.prompt_tokens = chunk.usage.prompt_tokens
            outcome.output_tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            outcome.cached_tokens = (details.cached_tokens or 0) if details else 0


async def complete(client: Client, endpoint: Endpoint, payload: bytes, outcome: Outcome) -> None:
    """Send one request and fill `outcome` as its stream arrives; a failure becomes `outcome.error`, no exception."""
    reader = _Reader(outcome)
    try:
        status, answer = await client.post(PATHS[endpoint], payload, reader.feed)
    except (HttpError, EventTooLong, msgspec.MsgspecError) as error:
        outcome.error = outcome.error or str(error)
    else:
        if status != 200:
            outcome.error = f"status {status}: {_error_in(answer)}"
        elif outcome.error is None and outcome.finish_reason is None:
            outcome.error = "the stream ended without a finish_reason."
    outcome.end_s = time.perf_counter()


def _error_in(answer: bytes) -> str:
    try:
        decoded = msgspec.json.decode(answer)
    except msgspec.MsgspecError:
        decoded = answer[:200].decode("utf-8", "replace")
    return error_text(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def error_text(error: Any) -> str:
    """The message in an OpenAI error body, or whatever is there, on one line."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]
