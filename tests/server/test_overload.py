"""The bounded queue (CASES OV-01)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.harness import Answer, Served, until


@pytest.mark.parametrize(("n", "stream"), [(1, False), (1, True), (4, False), (4, True)])
def test_ov01_exactly_the_bound_is_kept(model: Path, n: int, stream: bool) -> None:
    requests = 100 if n == 1 else 20
    with (
        Served(model, "--step-ms", "8", engine={"max_num_seqs": 2}, server={"max_queue": 8}) as small,
        ThreadPoolExecutor(requests) as clients,
    ):
        body: dict[str, Any] = {"prompt": "abc", "max_tokens": 20, "n": n, "stream": stream}
        answers = [clients.submit(small.post, "/v1/completions", body) for _ in range(requests)]
        until(lambda: small.metric("queue_seats_taken") == 8)
        for path in ("/health", "/metrics"):
            began_s = time.monotonic()
            assert small.get(path).status == 200
            assert time.monotonic() - began_s < 0.2
        outcomes = [answer.result() for answer in answers]
        served = [answer for answer in outcomes if answer.status == 200]
        assert len(served) == 8 // n
        for answer in outcomes:
            if answer.status != 200:
                is_refusal(answer, n)
        assert small.metric("requests_refused_total", status="429") == requests - 8 // n
        assert small.metric("queue_seats_taken") == 0
        small.is_well()


def is_refusal(answer: Answer, n: int) -> None:
    assert answer.status == 429
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.error["type"] == "rate_limit_error"
    assert f"this request has {n}" in answer.error["message"]


def test_a_request_that_never_fits_is_refused_too(model: Path) -> None:
    with Served(model, server={"max_queue": 4}) as small:
        assert small.complete(n=5).status == 429
        assert small.complete(["a"] * 3, n=2).status == 429
        assert small.complete(n=4, max_tokens=1).status == 200
