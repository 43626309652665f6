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
    PromptLogprob,
    PromptLogprobs,
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer holds besides its text. usage_field: chunks carry `"usage":null` (the client asked for usage).

    logprobs, prompt_logprobs: alternatives for each token, None: no log-probabilities.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    usage_field: bool = False


class Answer(Protocol):
    def chunk(self, choice: Choice) -> bytes:
        """Events for what a choice has new: its text, and its end."""

    def usage_chunk(self, usage: Usage) -> bytes:
        """The event that reports usage, when the client asked for it."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""


class ChatAnswer:
    def __init__(self, stamp: Stamp, token_bytes: TokenBytes, wanted: Wanted) -> None:
        self._stamp = stamp
        self._token_bytes = token_bytes
        self._wanted = wanted
        self._head = stamp.head("chat.completion.chunk")
        self._tail = b"]%b}\n\n" % (b',"usage":null' if wanted.usage_field else b"")
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
            if self._wanted.token_ids:
                ids = b'],"prompt_token_ids":%b' % _encode(choice.prompt.tolist())
                opening = self._head + role + b',"logprobs":null,"finish_reason":null}' + ids + self._tail[1:]
        if not text and not logprobs and choice.finish_reason is None:
            return opening
        ids = b',"token_ids":%b' % _encode(choice.take_ids()) if self._wanted.token_ids else b""
        body = b""
        if logprobs or (text and ids):
            shown = _encode(self._logprobs_of(logprobs)) if logprobs else b"null"
            body = head + _encode(text) + b'},"logprobs":%b,"finish_reason":null%b}' % (shown, ids) + self._tail
            ids = b',"token_ids":[]' if ids else b""
        elif text:
            body = head + _encode(text) + self._text_tail
        if choice.finish_reason is None:
            return opening + body
        reason = choice.finish_reason.encode()
        end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"%b}' % (index, reason, ids)
        return opening + body + self._head + end + self._tail

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % _encode(usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        answer = []
        for choice in choices:
            text, logprobs = choice.take()
            shown = None if self._wanted.logprobs is None else self._logprobs_of(logprobs)
            made = ChatChoice(choice.index, AssistantMessage(text), shown, choice.finish_reason or "")
            if self._wanted.token_ids:
                made.token_ids = choice.take_ids()
            answer.append(made)
        stamp, first = self._stamp, choices[0]
        body = ChatCompletion(stamp.id, stamp.created, stamp.model, stamp.fingerprint, answer, usage)
        if self._wanted.token_ids:
            body.prompt_token_ids = first.prompt.tolist()
        if self._wanted.prompt_logprobs is not None:
            body.prompt_logprobs = _of_prompt(first, self._wanted.prompt_logprobs, self._token_bytes)
        return _encode(body)

    def _logprobs_of(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
        content = []
        for entry in entries:
            top = [
                TopLogprob(_readable(raw), _finite(value), list(raw))
                for raw, value in ((self._token_bytes(token), value) for token, value in entry.top)
            ]
            raw = self._token_bytes(entry.token)
            content.append(ChatLogprob(_readable(raw), _finite(entry.logprob or 0.0), list(raw), top))
        return ChatLogprobs(content)


class CompletionAnswer:
    def __init__(self, stamp: Stamp, token_bytes: TokenBytes, wanted: Wanted) -> None:
        self._stamp = stamp
        self._token_bytes = token_bytes
        self._wanted = wanted
        self._head = stamp.head("text_completion")
        self._tail = b"]%b}\n\n" % (b',"usage":null' if wanted.usage_field else b"")
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._text_heads: dict[int, bytes] = {}
        self._offsets: dict[int, int] = {}

    def chunk(self, choice: Choice) -> bytes:
        text, logprobs = choice.take()
        index = choice.index
        head, ids = self._text_heads.get(index), b""
        if self._wanted.token_ids:
            ids = b',"token_ids":%b' % _encode(choice.take_ids())
            if head is None:
                ids += b',"prompt_token_ids":%b' % _encode(choice.prompt.tolist())
        if head is None:
            head = self._text_heads[index] = self._head + b'{"index":%d,"text":' % index
        if not logprobs and not ids and choice.finish_reason is None:
            return head + _encode(text) + self._text_tail
        shown = _encode(self._logprobs_of(index, logprobs)) if logprobs else b"null"
        reason = _encode(choice.finish_reason)
        return head + _encode(text) + b',"logprobs":%b,"finish_reason":%b%b}' % (shown, reason, ids) + self._tail

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":%b}\n\n' % _encode(usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        wanted, answer = self._wanted, []
        for choice in choices:
            text, logprobs = choice.take()
            shown = None if wanted.logprobs is None else self._logprobs_of(choice.index, logprobs)
            made = CompletionChoice(choice.index, text, shown, choice.finish_reason or "")
            if wanted.token_ids:
                made.token_ids, made.prompt_token_ids = choice.take_ids(), choice.prompt.tolist()
            if wanted.prompt_logprobs is not None:
                made.prompt_logprobs = _of_prompt(choice, wanted.prompt_logprobs, self._token_bytes)
            answer.append(made)
        stamp = self._stamp
        return _encode(Completion(stamp.id, stamp.created, stamp.model, stamp.fingerprint, answer, usage))

    def _logprobs_of(self, index: int, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """text_offset counts characters from the beginning of the choice's text, over all its chunks."""
        shown = CompletionLogprobs([], [], [], [])
        offset = self._offsets.get(index, 0)
        for entry in entries:
            token = _readable(self._token_bytes(entry.token))
            top: dict[str, float] | None = None
            if entry.logprob is not None:
                top = {}
                for other, value in (*entry.top, (entry.token, entry.logprob)):
                    top.setdefault(_readable(self._token_bytes(other)), _finite(value))
            shown.text_offset.append(offset)
            shown.token_logprobs.append(None if entry.logprob is None else _finite(entry.logprob))
            shown.tokens.append(token)
            shown.top_logprobs.append(top)
            offset += len(token)
        self._offsets[index] = offset
        return shown


def _of_prompt(choice: Choice, count: int, token_bytes: TokenBytes) -> PromptLogprobs:
    """vLLM's shape of a prompt's log-probabilities, with `count` alternatives each."""
    shown: PromptLogprobs = []
    for entry in choice.prompt_logprobs:
        if entry.logprob is None:
            shown.append(None)
            continue
        ranks = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
        tokens = {entry.token: entry.logprob, **dict(entry.top[:count])}
        shown.append(
            {
                str(token): PromptLogprob(_finite(value), ranks.get(token), _readable(token_bytes(token)))
                for token, value in tokens.items()
            }
        )
    return shown


def _readable(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB  # false for NaN, too
