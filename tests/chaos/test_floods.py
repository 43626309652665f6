"""Many clients, slow clients, silent clients: the server stays up, and everyone else is served."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.harness import Served, Stream, until


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    options = {"max_model_len": 1 << 20, "max_num_seqs": 2048}
    with Served(model, "--step-ms", "5", engine=options, server={"max_queue": 2048}) as one:
        yield one
        assert one.stop() == 0, one.log


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_more_connections_than_a_process_may_usually_open(served: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(1500)]
        served.is_well()
        with ThreadPoolExecutor(64) as clients:
            answers = list(clients.map(lambda number: served.complete(f"{number};", max_tokens=4), range(500)))
        assert [answer.status for answer in answers] == [200] * 500
        for one in silent:
            one.close()
        until(lambda: served.metric("queue_seats_taken") == 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_client_that_stops_reading_costs_no_memory_and_gets_everything_later(served: Served) -> None:
    others_before = memory_bytes(served.process.pid)
    total = 4000
    tokens_before = served.metric("generation_tokens_total")
    body = {"prompt": "0123456789", "max_tokens": total, "logprobs": 20}  # 1.5 KB each: no buffer holds all
    slow = Stream(served.port, "/v1/completions", {**body, "stream": True}, {})
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    until(lambda: served.metric("generation_tokens_total") >= tokens_before + total, 100)
    until(lambda: served.metric("num_requests_running") == 0)
    served.is_well()
    assert memory_bytes(served.process.pid) - others_before < 64 << 20
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    chunks = [json.loads(event) for event in slow.events() if event != "[DONE]"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "0123456789" * (total // 10)
    assert len(chunks) < total
    slow.close()


@pytest.mark.slow
def test_a_body_that_trickles_in_holds_up_nobody(served: Served) -> None:
    trickle = socket.create_connection(("127.0.0.1", served.port))
    trickle.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(20):
        trickle.sendall(b"[")
        began_s = time.monotonic()
        served.is_well()
        assert time.monotonic() - began_s < 1.0
    trickle.close()


@pytest.mark.slow
def test_five_hundred_clients_that_cut_the_line(served: Served) -> None:
    def come_and_go(number: int) -> None:
        stream = served.stream("/v1/completions", {"prompt": "abc", "max_tokens": 100_000, "n": 1 + number % 3})
        time.sleep(number % 50 / 1000)
        stream.close()

    with ThreadPoolExecutor(64) as clients:
        list(clients.map(come_and_go, range(500)))
    until(lambda: served.metric("queue_seats_taken") == 0)
    until(lambda: served.metric("num_requests_running") == 0)
    served.is_well()
