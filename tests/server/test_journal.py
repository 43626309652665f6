"""The journal alone: what a step's outcome does to its entries and their handlers."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from octavo import ipc
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish
from octavo.server import journal as journal_module
from octavo.server.errors import ApiError
from octavo.server.journal import Entry, Journal
from octavo.server.mailbox import Choice, Mailbox, TokenLogprob
from octavo.server.metrics import Metrics


class Letters:
    """Token n is the letter number n."""

    def __init__(self, stop: int | None = None) -> None:
        self.stopped = False
        self.counts_last = True
        self._stop = stop

    def push(self, token: int, ends: bool = False) -> str:
        self.stopped = token == self._stop
        return "" if ends else chr(97 + token)

    def end(self) -> str:
        return ""


class Setup:
    """A journal with its ends in the open: messages sent to the engine, seats released."""

    def __init__(self) -> None:
        self.sent: list[ipc.FrontMessage] = []
        self.released = 0
        self.now_s = 100.0
        self.journal = Journal(Metrics("m", ""), self.sent.append, self._release, clock=lambda: self.now_s)

    def _release(self, count: int) -> None:
        self.released += count

    def open(self, mailbox: Mailbox, n: int = 1, stop: int | None = None, **params: Any) -> Entry:
        prompt = array("i", [1, 2, 3])
        of_prompt = [TokenLogprob(token, None, []) for token in prompt] if "prompt_logprobs" in params else []
        entry = Entry(
            prompt=prompt,
            params=SamplingParams(n=n, **params),
            seed=7,
            priority=0,
            salt=(),
            generation=3,
            fingerprint="fp_x",
            choices=[Choice(i, Letters(stop), prompt, of_prompt) for i in range(n)],  # type: ignore[arg-type]
            mailbox=mailbox,
            arrival_s=self.now_s,
            prompt_logprobs=of_prompt,
        )
        self.journal.open(entry)
        return entry

    def step(self, *rows: tuple[int, int, int, Finish], **more: Any) -> None:
        """Rows of (request id, choice, token, finish)."""
        self.now_s += 0.01
        self.journal.apply(tokens(rows, **more))


def tokens(rows: Sequence[tuple[int, int, int, Finish]], **more: Any) -> ipc.Tokens:
    ids, choices, values, finish = zip(*rows, strict=True)
    columns = {
        "request_ids": array("q", ids).tobytes(),
        "choices": array("i", choices).tobytes(),
        "tokens": array("i", values).tobytes(),
        "finish": bytes(finish),
        "cached_tokens": array("i", [2] * len(rows)).tobytes(),
        "queued_s": array("f", [0.5] * len(rows)).tobytes(),
    }
    return ipc.Tokens(**{"generation": 3, "step_id": 0, **columns, **more})


async def taken_and_failed(mailbox: Mailbox) -> str:
    """The error of a stream that had news before it."""
    await mailbox.take()
    with pytest.raises(ApiError) as failed:
        await mailbox.take()
    return str(failed.value)


@pytest.fixture
def setup() -> Setup:
    return Setup()


RUNNING, STOP, LENGTH, ERROR = Finish.RUNNING, Finish.STOP, Finish.LENGTH, Finish.ERROR


def test_an_entry_has_what_a_resumption_needs(setup: Setup) -> None:
    entry = setup.open(Mailbox(streaming=True), n=2)
    setup.step((entry.request_id, 1, 5, RUNNING))
    assert (entry.prompt.tolist(), entry.seed, entry.generation, entry.fingerprint) == ([1, 2, 3], 7, 3, "fp_x")
    assert [choice.tokens.tolist() for choice in entry.choices] == [[], [5]]
    assert (entry.cached_tokens, entry.queued_s) == (2, 0.5)


def test_a_slow_reader_gets_fewer_and_longer_pieces(setup: Setup) -> None:
    async def read() -> str:
        mailbox = Mailbox(streaming=True)
        entry = setup.open(mailbox)
        for token in range(5):
            setup.step((entry.request_id, 0, token, RUNNING))
        (choice,) = await mailbox.take()
        text, _ = choice.take()
        return text

    assert asyncio.run(read()) == "abcde"


def test_a_reader_that_never_reads_is_given_up(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_UNTAKEN_TOKENS", 3)
    streaming, whole = Mailbox(streaming=True), Mailbox(streaming=False)
    slow, other = setup.open(streaming), setup.open(whole)
    for _ in range(5):
        setup.step((slow.request_id, 0, 1, RUNNING), (other.request_id, 0, 1, RUNNING))
    assert asyncio.run(taken_and_failed(streaming)) == "The client has left 3 tokens unread."
    assert setup.journal.entries == {other.request_id: other}
    assert setup.sent[2:] == [ipc.Abort([slow.request_id])]
    assert setup.released == 1


def test_a_whole_answer_wakes_its_handler_once(setup: Setup) -> None:
    async def read() -> int:
        mailbox = Mailbox(streaming=False)
        entry = setup.open(mailbox, n=2)
        wakes = 0

        async def wait() -> None:
            nonlocal wakes
            assert len(await mailbox.take()) == 2
            wakes += 1

        handler = asyncio.ensure_future(wait())
        setup.step((entry.request_id, 0, 1, RUNNING), (entry.request_id, 1, 1, LENGTH))
        await asyncio.sleep(0)
        assert not handler.done()
        setup.step((entry.request_id, 0, 2, STOP))
        await handler
        return wakes

    assert asyncio.run(read()) == 1
    assert setup.released == 2
    assert setup.journal.entries == {}


def test_a_stop_string_aborts_its_choice_alone_and_later_tokens_are_dropped(setup: Setup) -> None:
    entry = setup.open(Mailbox(streaming=True), n=2, stop=9)
    setup.step((entry.request_id, 0, 9, RUNNING), (entry.request_id, 1, 1, RUNNING))
    assert setup.sent[1:] == [ipc.Abort([entry.request_id], 0)]
    setup.step((entry.request_id, 0, 1, RUNNING), (entry.request_id, 1, 2, RUNNING))
    assert [choice.tokens.tolist() for choice in entry.choices] == [[9], [1, 2]]
    setup.step((entry.request_id, 1, 9, LENGTH))
    assert len(setup.sent) == 2
    assert [choice.finish_reason for choice in entry.choices] == ["stop", "stop"]


def test_a_sequence_may_end_without_a_token(setup: Setup) -> None:
    entry = setup.open(Mailbox(streaming=True))
    setup.step((entry.request_id, 0, 4, RUNNING))
    setup.step((entry.request_id, 0, -1, LENGTH))
    assert entry.choices[0].finish_reason == "length"
    assert entry.choices[0].tokens.tolist() == [4]


def test_closing_aborts_once(setup: Setup) -> None:
    entry = setup.open(Mailbox(streaming=True), n=3)
    setup.step((entry.request_id, 2, 1, LENGTH))
    setup.journal.close(entry)
    setup.journal.close(entry)
    assert setup.sent[1:] == [ipc.Abort([entry.request_id])]
    assert setup.released == 3
    setup.step((entry.request_id, 0, 1, RUNNING))  # computed meanwhile
    assert entry.choices[0].tokens.tolist() == []


def test_one_failed_choice_fails_the_request(setup: Setup) -> None:
    mailbox = Mailbox(streaming=True)
    entry = setup.open(mailbox, n=2)
    setup.step((entry.request_id, 0, 1, RUNNING), (entry.request_id, 1, -1, ERROR), message="out of luck")
    assert asyncio.run(taken_and_failed(mailbox)) == "out of luck"
    assert setup.released == 2
    assert setup.journal.entries == {}


def test_a_failed_step_is_logged_once_and_a_refusal_is_not(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    entries = [setup.open(Mailbox(streaming=True)) for _ in range(3)]
    first, second, third = (entry.request_id for entry in entries)
    setup.step((first, 0, -1, ERROR), (second, 0, -1, ERROR), message="A forward pass failed: no luck.")
    setup.step((third, 0, -1, ERROR), message="the prompt is too long", step_id=-1)
    assert [record.getMessage() for record in caplog.records] == ["A forward pass failed: no luck. (2 sequences ended)"]


def test_a_stream_gets_what_came_before_its_failure(setup: Setup) -> None:
    async def read() -> str:
        mailbox = Mailbox(streaming=True)
        entry = setup.open(mailbox)
        setup.step((entry.request_id, 0, 0, RUNNING))
        setup.step((entry.request_id, 0, 1, RUNNING))
        setup.step((entry.request_id, 0, -1, ERROR))
        (choice,) = await mailbox.take()
        with pytest.raises(ApiError):
            await mailbox.take()
        return choice.take()[0]

    assert asyncio.run(read()) == "ab"


def test_all_requests_fail_with_the_engine(setup: Setup) -> None:
    mailboxes = [Mailbox(streaming=True) for _ in range(3)]
    for mailbox in mailboxes:
        setup.open(mailbox, n=2)
    assert setup.journal.fail_all(ApiError(500, "gone")) == 3
    for mailbox in mailboxes:
        with pytest.raises(ApiError, match="gone"):
            asyncio.run(mailbox.take())
    assert setup.released == 6
    assert setup.journal.fail_all(ApiError(500, "gone")) == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"finish": b""},
        {"tokens": b"\0\0\0"},
        {"choices": array("i", [5]).tobytes()},
        {"choices": array("i", [-1]).tobytes()},
        {"cached_tokens": b""},
        {"queued_s": b""},
        {"logprobs": b"\0" * 8},
        {"logprobs": b"\0" * 4, "top_width": 2, "top_ids": b"\0" * 4},
    ],
)
def test_a_broken_message_is_found_before_it_does_harm(setup: Setup, broken: dict[str, Any]) -> None:
    entry = setup.open(Mailbox(streaming=True), logprobs=2)
    with pytest.raises(ipc.FrameError):
        setup.step((entry.request_id, 0, 1, RUNNING), **broken)
    assert entry.choices[0].tokens.tolist() == []


def of_prompt(request_id: int, at: list[int], **more: Any) -> ipc.PromptLogprobs:
    columns = {
        "request_ids": array("q", [request_id] * len(at)).tobytes(),
        "positions": array("i", at).tobytes(),
        "logprobs": array("f", [-0.25 * position for position in at]).tobytes(),
        "top_ids": array("i", [token for position in at for token in (position, -1)]).tobytes(),
        "top_logprobs": array("f", [-0.25, 0.0] * len(at)).tobytes(),
        "top_width": 2,
    }
    return ipc.PromptLogprobs(generation=3, **{**columns, **more})


def test_log_probabilities_of_a_prompt_come_in_parts(setup: Setup) -> None:
    entry = setup.open(Mailbox(streaming=False), prompt_logprobs=2)
    other = setup.open(Mailbox(streaming=False))
    for position in (1, 2):
        setup.journal.apply_prompt(of_prompt(entry.request_id, [position]))
    setup.journal.apply_prompt(of_prompt(99, [1]))  # gone meanwhile
    wanted = [TokenLogprob(1, None, []), TokenLogprob(2, -0.25, [(1, -0.25)]), TokenLogprob(3, -0.5, [(2, -0.25)])]
    assert entry.prompt_logprobs == entry.choices[0].prompt_logprobs == wanted
    with pytest.raises(ipc.FrameError, match="asked for no log-probability"):
        setup.journal.apply_prompt(of_prompt(other.request_id, [1]))


@pytest.mark.parametrize(
    "broken",
    [
        {"positions": array("i", [0]).tobytes()},
        {"positions": array("i", [3]).tobytes()},
        {"positions": b""},
        {"logprobs": b"\0" * 3},
        {"top_ids": b""},
        {"top_width": 3},
        {"top_width": -1},
    ],
)
def test_a_broken_message_about_a_prompt(setup: Setup, broken: dict[str, Any]) -> None:
    entry = setup.open(Mailbox(streaming=True), prompt_logprobs=2)
    with pytest.raises(ipc.FrameError):
        setup.journal.apply_prompt(of_prompt(entry.request_id, [1], **broken))
    assert all(one.logprob is None for one in entry.prompt_logprobs)
