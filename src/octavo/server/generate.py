"""From a checked request to an answer: the part that completions and chat share."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.engine.best import best
from octavo.engine.params import SamplingParams
from octavo.server.admission import Seats
from octavo.server.answers import DONE, Answer
from octavo.server.errors import ApiError
from octavo.server.exchange import Exchange
from octavo.server.front import Front
from octavo.server.journal import Entry, Salt
from octavo.server.mailbox import Choice, Echo, Mailbox, TokenLogprob
from octavo.server.prompts import room_for
from octavo.server.protocol import GenerationRequest, PromptTokensDetails, Usage

log = logging.getLogger("octavo.server")


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of the engine: one request for each prompt. `param` names the field that errors blame.

    echo: the prompts' texts, where they are part of the answers, with `echo_logprobs` alternatives for each token
    (None: no log-probabilities). echo_alone: and nothing else is.
    """

    prompts: Sequence[array[int]]
    params: SamplingParams
    priority: int
    salt: Salt
    param: str
    echo: Sequence[str] | None = None
    echo_logprobs: int | None = None
    echo_alone: bool = False


def salt_of(exchange: Exchange, request: GenerationRequest) -> Salt:
    """Who shares cached pages: requests with equal salts. Tagged, so that no two kinds can be mistaken."""
    salt = [("tenant", exchange.tenant)] if exchange.tenant else []
    if request.cache_salt is not None:
        salt.append(("salt", request.cache_salt))
    return tuple(salt)


async def answer(
    front: Front,
    exchange: Exchange,
    seats: Seats,
    work: Work,
    request: GenerationRequest,
    make_answer: Callable[[str, bool], Answer],
) -> None:
    """Run the work and send its outcome. `make_answer(fingerprint, usage_field)`.

    Raises ApiError for everything that goes wrong before the response has begun. Leaving early, for whatever reason,
    aborts what still runs.
    """
    streaming = bool(request.stream)
    with_usage = bool(request.stream_options and request.stream_options.include_usage)
    mailbox = Mailbox(streaming)
    entries = _entries(front, work, mailbox, exchange.began_s)
    shown = make_answer(entries[0].fingerprint, streaming and with_usage)
    try:
        for entry in entries:
            seats.hand_over(len(entry.choices))
            front.journal.open(entry)
        if streaming:
            await _stream(exchange, mailbox, entries, shown, with_usage)
        else:
            await mailbox.take()
            choices = [choice for entry in entries for choice in _returned(entry)]
            await exchange.respond(200, shown.whole(choices, usage_of(entries)))
    finally:
        for entry in entries:
            front.journal.close(entry)
        exchange.note = _note(entries)


def usage_of(entries: Sequence[Entry]) -> Usage:
    """A prompt counts once, whatever its number of choices; every generated token counts, shown or not."""
    prompt = sum(len(entry.prompt) for entry in entries)
    completion = sum(len(choice.tokens) for entry in entries for choice in entry.choices)
    cached = sum(entry.cached_tokens for entry in entries)
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))


async def _stream(exchange: Exchange, mailbox: Mailbox, entries: Sequence[Entry], shown: Answer, usage: bool) -> None:
    """Events as steps end. The response begins with the first token: errors before it still have an HTTP status."""
    try:
        while True:
            news = await mailbox.take()
            data = shown.chunk(news[0]) if len(news) == 1 else b"".join([shown.chunk(choice) for choice in news])
            all_ended = not mailbox.open_choices
            if not exchange.started:
                await exchange.start_stream()
            if all_ended:
                break
            await exchange.write(data)
        if usage:
            data += shown.usage_chunk(usage_of(entries))
        await exchange.end(data + DONE)
    except ApiError as error:
        if not exchange.started:
            raise
        log.warning("request %s: %s", exchange.request_id, error)
        await exchange.end(b"data: " + error.body() + b"\n\n")


def _entries(front: Front, work: Work, mailbox: Mailbox, arrival_s: float) -> list[Entry]:
    """One for each prompt, with parameters whose limits fit the context. Raises ApiError."""
    ready, strict = front.require_ready(), front.config.strict_max_tokens
    entries: list[Entry] = []
    for prompt in work.prompts:
        asked = work.params
        room = room_for(len(prompt), asked.max_tokens, ready.max_model_len, strict, work.param)
        params = dataclasses.replace(asked, max_tokens=room, min_tokens=min(asked.min_tokens, room))
        first, index = len(entries) * params.n, len(entries)
        of_prompt = [] if params.prompt_logprobs is None else [TokenLogprob(token, None, []) for token in prompt]
        entries.append(
            Entry(
                prompt=prompt,
                params=params,
                seed=secrets.randbits(63) if params.seed is None else params.seed,
                priority=work.priority,
                salt=work.salt,
                generation=ready.generation,
                fingerprint=ready.fingerprint,
                choices=[
                    Choice(first + i, front.text.output(params), prompt, of_prompt, _echo(work, index, of_prompt))
                    for i in range(params.sequences)
                ],
                mailbox=mailbox,
                arrival_s=arrival_s,
                prompt_logprobs=of_prompt,
            )
        )
    return entries


def _echo(work: Work, index: int, of_prompt: list[TokenLogprob]) -> Echo | None:
    if work.echo is None:
        return None
    top = work.echo_logprobs
    return Echo(work.echo[index], [] if top is None else of_prompt, top or 0, work.echo_alone)


def _returned(entry: Entry) -> list[Choice]:
    """The choices that the client gets."""
    if not entry.params.ranks_choices:
        return entry.choices
    first = entry.choices[0].index
    ranked = best([(choice.logprob_sum, len(choice.tokens)) for choice in entry.choices], entry.params.n)
    chosen = [entry.choices[index] for index in ranked]
    for index, choice in enumerate(chosen, start=first):
        choice.index = index
    return chosen


def _note(entries: Sequence[Entry]) -> str:
    """For the log line."""
    usage = usage_of(entries)
    unfinished = "error" if entries[0].mailbox.error else "open"
    reasons = sorted({choice.finish_reason or unfinished for entry in entries for choice in entry.choices})
    first_s = min((entry.first_token_s - entry.arrival_s for entry in entries if entry.first_token_s), default=None)
    parts = [
        f"prompt={usage.prompt_tokens}",
        f"cached={usage.prompt_tokens_details.cached_tokens}",
        f"output={usage.completion_tokens}",
        f"finish={'+'.join(reasons)}",
    ]
    if first_s is not None:
        parts.append(f"ttft={first_s * 1e3:.1f}ms")
    return " ".join(parts)
