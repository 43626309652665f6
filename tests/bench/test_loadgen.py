"""The load generator against a server whose every answer is chosen."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from tests.bench.fake_server import Answer, Exchange, good_answer, serving

from octavo.bench.completion import BenchRequest, Endpoint
from octavo.bench.http import HttpError, Origin
from octavo.bench.loadgen import Load, Run, arrivals
from octavo.bench.serve import run_serve
from octavo.bench.stats import Limits, figures


def requests(count: int, tokens: int = 5) -> list[BenchRequest]:
    return [BenchRequest(f"prompt {index}", 2, tokens) for index in range(count)]


def load(endpoint: Endpoint = "completions", **fields: Any) -> Load:
    return Load(endpoint, "", {"temperature": 0}, **fields)


def run_against(answer: Answer, what: Sequence[BenchRequest], how: Load) -> Run:
    with serving(answer) as server:
        return run_serve(server.url, what, [], how, None)


def test_all_at_once_under_a_cap() -> None:
    async def slow(exchange: Exchange) -> None:
        await good_answer(exchange, 0.002)

    with serving(slow) as server:
        run = run_serve(server.url, requests(20), requests(2), load(concurrency=4), "key-1")
        assert server.peak == 4
        assert server.connections <= 5
        assert len(server.bodies) == 22
        assert server.headers[0]["authorization"] == "Bearer key-1"
        assert server.bodies[0]["model"] == "fake-model"
        assert server.bodies[0]["stream_options"] == {"include_usage": True}
        assert server.bodies[0]["temperature"] == 0
    result = figures(run, Limits())
    assert (result.complete, result.completed, result.failed, result.peak_in_flight) == (True, 20, 0, 4)
    assert result.output_tokens == 100
    assert result.prompt_tokens == 140
    assert result.cached_tokens == 80
    assert result.itl_ms.p50 >= 2


def test_chat_sends_messages_and_reads_deltas() -> None:
    async def chat(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await exchange.send_event({"choices": [{"delta": {"content": "a"}}]})
        await exchange.send_event({"choices": [{"delta": {"reasoning_content": "b"}}]})
        await exchange.send_event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None})
        await exchange.end_stream()

    with serving(chat) as server:
        run = run_serve(server.url, requests(1), [], load("chat"), None)
        assert server.bodies[0]["messages"] == [{"role": "user", "content": "prompt 0"}]
    (outcome,) = run.outcomes
    assert (outcome.error, outcome.output_tokens, len(outcome.chunk_s)) == (None, 2, 2)


def test_poisson_arrivals() -> None:
    due = arrivals(4000, 8.0, seed=0)
    gaps = [after - before for before, after in zip([0.0, *due], due, strict=False)]
    assert all(gap >= 0 for gap in gaps)
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(1 / 8, rel=0.07)
    assert due == arrivals(4000, 8.0, seed=0)
    assert due != arrivals(4000, 8.0, seed=1)
    assert arrivals(3, math.inf, 0) == [0.0, 0.0, 0.0]


def test_in_an_open_loop_waiting_for_a_place_counts() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await good_answer(exchange)

    run = run_against(slow, requests(6, 1), load(rate=1000.0, concurrency=1))
    slowest = max(outcome.end_s - outcome.start_s for outcome in run.outcomes)
    assert slowest > 0.25


async def refused(exchange: Exchange) -> None:
    await exchange.send_json(429, {"error": {"message": "queue is full", "code": 429}})


async def not_json(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\n<html>")


async def error_in_stream(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event({"choices": [{"text": "a"}]})
    await exchange.send_event({"error": {"message": "engine died"}})
    await exchange.end_stream()


async def cut(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event({"choices": [{"text": "a"}]})
    exchange.writer.close()


async def no_finish(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event({"choices": [{"text": "a"}]})
    await exchange.end_stream()


async def no_http(exchange: Exchange) -> None:
    exchange.writer.write(b"SSH-2.0-OpenSSH\r\n")


async def broken_event(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event("{nonsense")
    await exchange.end_stream()


async def silent(exchange: Exchange) -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refused, "status 429: queue is full"),
        (not_json, "status 502: <html>"),
        (error_in_stream, "engine died"),
        (cut, "cut before the answer was complete"),
        (no_finish, "without a finish_reason"),
        (no_http, "not HTTP"),
        (broken_event, "cannot be used"),
        (silent, "no complete answer within 0.3 s"),
    ],
)
def test_every_failure_is_counted_under_its_own_name(answer: Answer, says: str) -> None:
    run = run_against(answer, requests(3), load(timeout_s=0.3))
    result = figures(run, Limits())
    assert (result.complete, result.completed, result.failed) == (True, 0, 3)
    assert [message for message in result.errors if says not in message] == []
    assert result.output_tokens == 0


def test_good_and_bad_answers_mix_on_kept_connections() -> None:
    async def every_third_fails(exchange: Exchange) -> None:
        number = int(exchange.body["prompt"].split()[1])
        await (refused(exchange) if number % 3 == 0 else good_answer(exchange))

    run = run_against(every_third_fails, requests(30), load(concurrency=5))
    result = figures(run, Limits())
    assert (result.completed, result.failed) == (20, 10)


def test_connections_that_the_server_closes_between_requests_are_replaced() -> None:
    used = set()

    async def once_a_connection(exchange: Exchange) -> None:
        if exchange.writer in used:
            raise ConnectionError
        used.add(exchange.writer)
        await good_answer(exchange)

    with serving(once_a_connection) as server:
        run = run_serve(server.url, requests(20), [], load(concurrency=2), None)
        assert server.connections >= 20
    assert figures(run, Limits()).errors == {}


def test_a_failing_warm_up_ends_the_run() -> None:
    with serving(refused) as server, pytest.raises(HttpError, match="warm-up request failed: status 429"):
        run_serve(server.url, requests(1), requests(1), load(), None)


def test_no_server() -> None:
    with pytest.raises(HttpError, match=r"no connection to 127\.0\.0\.1 port 1"):
        run_serve("http://127.0.0.1:1", requests(1), [], load(), None)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:8000", Origin("http", "127.0.0.1", 8000, "")),
        ("localhost:8000/v1/", Origin("http", "localhost", 8000, "")),
        ("https://example.org/proxy/v1", Origin("https", "example.org", 443, "/proxy")),
        ("http://[::1]:80", Origin("http", "::1", 80, "")),
    ],
)
def test_base_urls(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_wrong_base_urls(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        Origin.parse(url)
