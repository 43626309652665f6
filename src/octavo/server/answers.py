"""Answers as bytes: server-sent events, of which all that never changes is formatted once per stream, and whole bodies.

One class for each of the two APIs, with the same methods; server/generate.py doesn't know which one it drives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from octavo.server.mailbox import Choice, TokenLogprob
from octavo.server.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    TopLogprob,
    Usage,
)

DONE = b"data: [DONE]\n\n"
#: JSON has no infinity; no log-probability of a token that can be drawn comes near this.
LOWEST_LOGPROB = -9999.0

TokenBytes = Callable[[int], bytes]
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every answer says of itself."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> bytes:
        """The constant beginning of a chunk, up to its choices."""
        return b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"system_fingerprint":%b,"choices":[' % (
            _encode(self.id),
            _encode(kind),
            self.created,
            _encode(self.model),
            _encode(self.fingerprint),
        )


class Answer(Protocol):
    def chunk(self, choice: Choice) -> bytes:
        """Events for what a choice has new: its text, and its end."""

    def usage_chunk(self, usage: Usage) -> bytes:
        """The event that reports usage, when the client asked for it."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""


class ChatAnswer:
    def __init__(self, stamp: Stamp, token_bytes: TokenBytes, logprobs: bool, usage_field: bool) -> None:
        """usage_field: chunks carry `"usage":null` (the client asked for usage)."""
        self._stamp = stamp
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._head = stamp.head("chat.completion.chunk")
        self._tail = b"]%b}\n\n" % (b',"usage":null' if usage_field else b"")
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._text_heads: dict[int, bytes] = {}

    def chunk(self, choice: Choice) -> bytes:
        text, logprobs = choice.take()
        index = choice.index
        head = self._text_heads.get(index)
        opening = b""
        if head is None:
            head = self._text_heads[index] = self._head + b'{"index":%d,"delta":{"content":' % index
            role = b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null}' % index
            opening = self._head + role + self._text_tail[1:]
        if not text and not logprobs and choice.finish_reason is None:
            return opening
        body = b""
        if logprobs:
            tail = b'},"logprobs":%b,"finish_reason":null}' % _encode(self._logprobs_of(logprobs)) + self._tail
            body = head + _encode(text) + tail
        elif text:
            body = head + _encode(text) + self._text_tail
        if choice.finish_reason is None:
            return opening + body
        end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}' % (index, choice.finish_reason.encode())
        return opening + body + self._head + end + self._tail

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % _encode(usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        answer = []
        for choice in choices:
            text, logprobs = choice.take()
            shown = self._logprobs_of(logprobs) if self._logprobs else None
            answer.append(ChatChoice(choice.index, AssistantMessage(text), shown, choice.finish_reason or ""))
        stamp = self._stamp
        return _encode(ChatCompletion(stamp.id, stamp.created, stamp.model, stamp.fingerprint, answer, usage))

    def _logprobs_of(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
        content = []
        for entry in entries:
            top = [
                TopLogprob(_readable(raw), _finite(value), list(raw))
                for raw, value in ((self._token_bytes(token), value) for token, value in entry.top)
            ]
            raw = self._token_bytes(entry.token)
            content.append(ChatLogprob(_readable(raw), _finite(entry.logprob), list(raw), top))
        return ChatLogprobs(content)


class CompletionAnswer:
    def __init__(self, stamp: Stamp, token_bytes: TokenBytes, logprobs: bool, usage_field: bool) -> None:
        self._stamp = stamp
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._head = stamp.head("text_completion")
        self._tail = b"]%b}\n\n" % (b',"usage":null' if usage_field else b"")
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._text_heads: dict[int, bytes] = {}
        self._offsets: dict[int, int] = {}

    def chunk(self, choice: Choice) -> bytes:
        text, logprobs = choice.take()
        index = choice.index
        head = self._text_heads.get(index)
        if head is None:
            head = self._text_heads[index] = self._head + b'{"index":%d,"text":' % index
        if not logprobs and choice.finish_reason is None:
            return head + _encode(text) + self._text_tail
        shown = _encode(self._logprobs_of(index, logprobs)) if logprobs else b"null"
        reason = _encode(choice.finish_reason)
        return head + _encode(text) + b',"logprobs":%b,"finish_reason":%b}' % (shown, reason) + self._tail

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % _encode(usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        answer = []
        for choice in choices:
            text, logprobs = choice.take()
            shown = self._logprobs_of(choice.index, logprobs) if self._logprobs else None
            answer.append(CompletionChoice(choice.index, text, shown, choice.finish_reason or ""))
        stamp = self._stamp
        return _encode(Completion(stamp.id, stamp.created, stamp.model, stamp.fingerprint, answer, usage))

    def _logprobs_of(self, index: int, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """text_offset counts characters from the beginning of the choice's text, over all its chunks."""
        shown = CompletionLogprobs([], [], [], [])
        offset = self._offsets.get(index, 0)
        for entry in entries:
            token = _readable(self._token_bytes(entry.token))
            top: dict[str, float] = {}
            for other, value in (*entry.top, (entry.token, entry.logprob)):
                top.setdefault(_readable(self._token_bytes(other)), _finite(value))
            shown.text_offset.append(offset)
            shown.token_logprobs.append(_finite(entry.logprob))
            shown.tokens.append(token)
            shown.top_logprobs.append(top)
            offset += len(token)
        self._offsets[index] = offset
        return shown


def _readable(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB  # false for NaN, too
