"""The journal: every live request, with all that is needed to go on with it.

One entry for each request sent to the engine: prompt ids, resolved seed, and for each choice the tokens so far. What
the engine reports is applied here, once a step.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo import ipc
from octavo.engine.params import SamplingParams
from octavo.server.errors import ApiError, engine_failed
from octavo.server.mailbox import ABORT, ERROR, REASONS, RUNNING, Choice, Mailbox, TokenLogprob
from octavo.server.metrics import Metrics

log = logging.getLogger("octavo.server")

Salt = tuple[tuple[str, str], ...]

#: A stream whose client reads so slowly is ended. Nobody else waits for it; what is bounded is its memory.
MAX_UNTAKEN_TOKENS = 1 << 14


@dataclass(slots=True)
class Entry:
    """A live request: what an engine would need to go on with it from where its client is.

    generation, fingerprint: of the engine that has it. prompt_logprobs: as the engine finds them, by position; empty
    unless asked for. cached_tokens: of the prompt, as the engine found it. queued_s: how long the engine let it wait.
    request_id and what follows are the journal's to fill.
    """

    prompt: array[int]
    params: SamplingParams
    seed: int
    priority: int
    salt: Salt
    generation: int
    fingerprint: str
    choices: list[Choice]
    mailbox: Mailbox
    arrival_s: float
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    request_id: int = 0
    open_choices: int = 0
    cached_tokens: int = 0
    submitted_s: float = 0.0
    first_token_s: float = 0.0
    queued_s: float = 0.0

    def submission(self) -> ipc.Submit:
        return ipc.Submit(self.request_id, self.prompt.tobytes(), self.params, self.seed, self.priority, self.salt)


@dataclass(slots=True)
class Journal:
    """Live requests by id. `send` reaches the engine; `on_choice_end` is told how many sequences have ended."""

    metrics: Metrics
    send: Callable[[ipc.FrontMessage], None]
    on_choice_end: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    entries: dict[int, Entry] = field(default_factory=dict)
    _last_id: int = 0

    def open(self, entry: Entry) -> None:
        """Enter a request and send it to the engine."""
        self._last_id += 1
        entry.request_id = self._last_id
        entry.submitted_s = self.clock()
        entry.open_choices = len(entry.choices)
        entry.mailbox.open_choices += len(entry.choices)
        self.entries[entry.request_id] = entry
        self.send(entry.submission())

    def close(self, entry: Entry) -> None:
        """The client is done with it, or gone; what still runs is aborted. Closing twice does nothing."""
        if self.entries.pop(entry.request_id, None) is None:
            return
        self.send(ipc.Abort([entry.request_id]))
        self.metrics.success.add(value="abort")
        self._release(entry, entry.open_choices)

    def fail_all(self, error: ApiError) -> int:
        """The engine is gone: every live request ends with `error`. Returns how many there were."""
        entries, self.entries = list(self.entries.values()), {}
        for entry in entries:
            self._fail(entry, error)
        return len(entries)

    def apply(self, message: ipc.Tokens) -> None:
        """The outcome of one step: tokens to their choices, handlers woken. Raises ipc.FrameError for a broken one."""
        now_s = self.clock()
        if message.message and message.step_id >= 0:
            log.error("%s (%d sequences ended)", message.message, len(message.finish))
        for row, (request_id, number, token, finish) in enumerate(ipc.columns(message)):
            entry = self.entries.get(request_id)
            if entry is None:
                continue  # aborted while the step ran
            if not 0 <= number < len(entry.choices):
                raise ipc.FrameError(f"request {request_id} has no choice {number}")
            choice = entry.choices[number]
            if choice.finish_reason is not None:
                continue  # a stop string ended it while the step ran
            if finish in (ERROR, ABORT):
                self._give_up(entry, message.message or "The engine could not go on with this request.")
                continue
            if choice.untaken_tokens >= MAX_UNTAKEN_TOKENS and entry.mailbox.streaming:
                self._give_up(entry, f"The client has left {choice.untaken_tokens} tokens unread.")
                continue
            if not entry.first_token_s:
                self._first_token(entry, message, row, now_s)
            elif choice.last_s:
                self.metrics.itl.observe(now_s - choice.last_s)
            choice.last_s = now_s
            if self._push(entry, choice, message, row, token, finish):
                if choice.finish_reason is not None:
                    self._choice_ended(entry, number, told=finish != RUNNING, now_s=now_s)
                entry.mailbox.add(choice)

    def apply_prompt(self, message: ipc.PromptLogprobs) -> None:
        """Log-probabilities of prompts, which come before the first token. Raises ipc.FrameError for a broken one."""
        for request_id, position, logprob, top in ipc.prompt_rows(message):
            entry = self.entries.get(request_id)
            if entry is None:
                continue
            if not 0 < position < len(entry.prompt_logprobs):
                raise ipc.FrameError(f"request {request_id} asked for no log-probability of prompt token {position}")
            entry.prompt_logprobs[position] = TokenLogprob(entry.prompt[position], logprob, top)

    def _push(self, entry: Entry, choice: Choice, message: ipc.Tokens, row: int, token: int, finish: int) -> bool:
        """Returns whether there is something for the client. `token` -1: the sequence has ended without another one."""
        if token < 0:
            choice.end(REASONS[finish])
            return True
        self.metrics.generation_tokens.add()
        wanted = entry.params.logprobs
        return choice.push(token, finish, None if wanted is None else _logprob(message, row, token, wanted))

    def _first_token(self, entry: Entry, message: ipc.Tokens, row: int, now_s: float) -> None:
        metrics, prompt_tokens = self.metrics, len(entry.prompt)
        entry.first_token_s = now_s
        entry.cached_tokens = cached_tokens = memoryview(message.cached_tokens).cast("i")[row]
        entry.queued_s = memoryview(message.queued_s).cast("f")[row]
        metrics.ttft.observe(now_s - entry.arrival_s)
        metrics.queue.observe(entry.queued_s)
        metrics.prefill.observe(max(0.0, now_s - entry.submitted_s - entry.queued_s))
        metrics.prompt_tokens.add(prompt_tokens)
        metrics.cache_queries.add(prompt_tokens)
        metrics.cache_hits.add(cached_tokens)

    def _choice_ended(self, entry: Entry, number: int, told: bool, now_s: float) -> None:
        """told: the engine ended the sequence itself; else it has to be told."""
        self._release(entry, 1)
        if not told:
            self.send(ipc.Abort([entry.request_id], number))
        if entry.open_choices:
            return
        del self.entries[entry.request_id]
        self._ended(entry, now_s)

    def _ended(self, entry: Entry, now_s: float) -> None:
        metrics, tokens = self.metrics, sum(len(choice.tokens) for choice in entry.choices)
        reasons = {choice.finish_reason for choice in entry.choices}
        metrics.success.add(value="length" if "length" in reasons else "stop")
        metrics.e2e.observe(now_s - entry.arrival_s)
        metrics.decode.observe(now_s - entry.first_token_s)
        metrics.inference.observe(max(0.0, now_s - entry.submitted_s - entry.queued_s))
        metrics.request_prompt.observe(len(entry.prompt))
        metrics.request_generation.observe(tokens)
        metrics.request_n.observe(len(entry.choices))
        longest = max(len(choice.tokens) for choice in entry.choices)
        if longest > 1:
            metrics.mean_tpot.observe((now_s - entry.first_token_s) / (longest - 1))

    def _give_up(self, entry: Entry, why: str) -> None:
        del self.entries[entry.request_id]
        self._fail(entry, engine_failed(why))
        self.send(ipc.Abort([entry.request_id]))

    def _fail(self, entry: Entry, error: ApiError) -> None:
        self.metrics.success.add(value="error")
        self._release(entry, entry.open_choices)
        entry.mailbox.fail(error)

    def _release(self, entry: Entry, count: int) -> None:
        entry.open_choices -= count
        entry.mailbox.open_choices -= count
        self.on_choice_end(count)


def _logprob(message: ipc.Tokens, row: int, token: int, width: int) -> TokenLogprob:
    logprob = memoryview(message.logprobs).cast("f")[row]
    first = row * message.top_width
    ids = memoryview(message.top_ids).cast("i")[first : first + width].tolist()
    values = memoryview(message.top_logprobs).cast("f")[first : first + width].tolist()
    return TokenLogprob(token, logprob, [pair for pair in zip(ids, values, strict=True) if pair[0] >= 0])
