"""What the engine's tokens become on their way to a client: text by choice, and the mailbox where its handler waits."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass

from octavo.engine.request import Finish
from octavo.server.errors import ApiError
from octavo.text.output import TextOutput

#: Plain ints: they are compared once for each token, and an enum is slow at that.
RUNNING, STOP, LENGTH, ABORT, ERROR = (
    int(finish) for finish in (Finish.RUNNING, Finish.STOP, Finish.LENGTH, Finish.ABORT, Finish.ERROR)
)
REASONS = {STOP: "stop", LENGTH: "length"}


@dataclass(slots=True)
class TokenLogprob:
    """One token's log-probability and the likeliest alternatives, (token id, logprob) each.

    logprob None: of a prompt's first token, which nothing predicts.
    """

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Echo:
    """A prompt that is part of the answer: its text, and its tokens' log-probabilities, empty unless asked for, with
    `top` alternatives each.

    alone: nothing but the prompt was asked for; tokens that come are not the client's.
    """

    text: str
    logprobs: list[TokenLogprob]
    top: int
    alone: bool


class Mailbox:
    """Where a handler waits for its sequences: one for each HTTP request, whatever its number of prompts and choices.

    streaming: wake at every step that brought text; else only when all choices have ended.
    """

    def __init__(self, streaming: bool) -> None:
        self.streaming = streaming
        self.open_choices = 0
        self._news: list[Choice] = []
        self.error: ApiError | None = None  #: set once the request has failed
        self._waiter: asyncio.Future[None] | None = None

    def add(self, choice: Choice) -> None:
        if not choice.has_news:
            choice.has_news = True
            self._news.append(choice)
        if self.streaming or not self.open_choices:
            self._wake()

    def fail(self, error: ApiError) -> None:
        self.error = error
        self._wake()

    async def take(self) -> list[Choice]:
        """Choices with something new, in the order of their tokens. Raises ApiError when the request failed.

        A stream gets the text that came before the failure first.
        """
        while not self._deliverable():
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        news, self._news = self._news, []
        for choice in news:
            choice.has_news = False
        return news

    def _deliverable(self) -> bool:
        return bool(self._news) and (self.streaming or (not self.open_choices and self.error is None))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Choice:
    """One sequence of a request: its tokens, and the text that its handler has not taken yet.

    index: its place in the response. finish_reason: "stop" or "length" once it has ended. last_s: when its last token
    came. untaken_tokens: since the handler took its text last. logprob_sum: over its tokens, if the engine reports
    them. prompt, prompt_logprobs: those of its request.
    """

    __slots__ = (
        *("_echo", "_ids_taken", "_logprobs", "_output", "_text", "finish_reason", "has_news", "index", "last_s"),
        *("logprob_sum", "prompt", "prompt_logprobs", "tokens", "untaken_tokens"),
    )

    def __init__(
        self,
        index: int,
        output: TextOutput,
        prompt: array[int],
        prompt_logprobs: list[TokenLogprob],
        echo: Echo | None = None,
    ) -> None:
        self.index = index
        self.tokens = array("i")
        self.finish_reason: str | None = None
        self.has_news = False
        self.last_s = 0.0
        self.untaken_tokens = 0
        self.logprob_sum = 0.0
        self.prompt = prompt
        self.prompt_logprobs = prompt_logprobs
        self._output = output
        self._echo = echo
        self._text = echo.text if echo else ""
        self._logprobs: list[TokenLogprob] = []
        self._ids_taken = 0

    def push(self, token: int, finish: int, logprob: TokenLogprob | None) -> bool:
        """One more token. Returns whether there is something for the client."""
        if self._echo is not None and self._echo.alone:
            self.finish_reason = "length"
            return True
        self.tokens.append(token)
        self.untaken_tokens += 1
        text = self._output.push(token, ends=finish == STOP)
        if logprob is not None:
            self.logprob_sum += logprob.logprob or 0.0
            if self._output.counts_last:
                self._logprobs.append(logprob)
        if text:
            self._text += text
        if self._output.stopped:
            self.finish_reason = "stop"
        elif finish != RUNNING:
            self.end(REASONS[finish])
        return bool(text) or self.finish_reason is not None

    def end(self, reason: str) -> None:
        """No more tokens: text held back until a character or a stop string might be whole is due now."""
        self._text += self._output.end()
        self.finish_reason = reason

    def take(self) -> tuple[str, list[TokenLogprob]]:
        """Text and log-probabilities since the last call. A slow client gets fewer, longer pieces."""
        text, self._text = self._text, ""
        logprobs, self._logprobs = self._logprobs, []
        self.untaken_tokens = 0
        if self._echo is not None:
            echo, self._echo = self._echo, None
            logprobs = [TokenLogprob(one.token, one.logprob, one.top[: echo.top]) for one in echo.logprobs] + logprobs
        return text, logprobs

    def take_ids(self) -> list[int]:
        """Token ids since the last call."""
        taken, self._ids_taken = self._ids_taken, len(self.tokens)
        return self.tokens[taken:].tolist()
