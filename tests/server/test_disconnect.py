"""Clients that leave: what they asked for ends within a step, whatever it was doing (CASES DC-01)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.harness import Served, Stream, until

LONG = 100_000


@pytest.fixture(scope="module")
def roomy(model: Path) -> Iterator[Served]:
    with Served(model, "--step-ms", "5", engine={"max_model_len": 1 << 20, "max_num_seqs": 8}) as one:
        yield one


def ask(served: Served, stream: bool, prompt: Any = "abc", **fields: Any) -> Stream:
    one = Stream(served.port, "/v1/completions", {"prompt": prompt, "max_tokens": LONG, **fields, "stream": stream}, {})
    if stream:
        events = one.events()
        for _ in range(3):
            next(events)
    return one


def is_running(served: Served, count: int) -> None:
    until(lambda: served.metric("num_requests_running") + served.metric("num_requests_waiting") == count)


def is_over(served: Served, aborted: float) -> None:
    """All is free within a second, and no more tokens are generated for nobody."""
    until(lambda: served.metric("queue_seats_taken") == 0, 1.0)
    is_running(served, 0)
    assert served.metric("request_success_total", finished_reason="abort") == aborted
    before = served.metric("engine_steps_total")
    served.is_well()
    assert served.metric("engine_steps_total") - before <= 6


@pytest.fixture
def aborted(roomy: Served) -> float:
    """How many requests had been aborted before the test."""
    return roomy.metric("request_success_total", finished_reason="abort")


@pytest.mark.parametrize("fields", [{}, {"n": 4}, {"prompt": [f"p{i}" for i in range(8)]}], ids=["one", "n", "batch"])
@pytest.mark.parametrize("stream", [True, False])
def test_closing_aborts(roomy: Served, aborted: float, stream: bool, fields: dict[str, Any]) -> None:
    prompts = len(fields.get("prompt", [1]))
    one = ask(roomy, stream, **fields)
    is_running(roomy, fields.get("n", 1) * prompts)
    one.close()
    is_over(roomy, aborted + prompts)


def test_a_half_closed_socket_is_a_closed_one(roomy: Served, aborted: float) -> None:
    one = ask(roomy, stream=True)
    one.socket.shutdown(socket.SHUT_WR)
    is_over(roomy, aborted + 1)
    one.close()


def test_a_reset_connection(roomy: Served, aborted: float) -> None:
    one = ask(roomy, stream=False)
    is_running(roomy, 1)
    one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    one.close()
    is_over(roomy, aborted + 1)


def test_leaving_while_waiting(model: Path) -> None:
    with Served(model, "--step-ms", "5", engine={"max_model_len": 1 << 20, "max_num_seqs": 1}) as narrow:
        first = ask(narrow, stream=True)
        others = [ask(narrow, stream=False) for _ in range(5)]
        until(lambda: narrow.metric("num_requests_waiting") == 5)
        for one in others[:3]:
            one.close()
        until(lambda: narrow.metric("num_requests_waiting") == 2, 1.0)
        assert narrow.metric("num_requests_running") == 1
        for one in (first, *others[3:]):
            one.close()
        is_over(narrow, 6)


def test_leaving_before_the_body_is_complete(roomy: Served, aborted: float) -> None:
    with socket.create_connection(("127.0.0.1", roomy.port)) as line:
        line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
    is_over(roomy, aborted)
    until(lambda: " 499 " in roomy.log)


def test_the_same_connection_serves_again_after_an_answer(roomy: Served) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", roomy.port, timeout=5)
    for _ in range(3):
        connection.request(
            "POST", "/v1/completions", b'{"prompt": "abc", "max_tokens": 3}', {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        assert b'"abc"' in response.read()
    connection.close()
