"""The bounded queue (CASES OV-01)."""

from __future__ import annotations

import json
import select
import time
from pathlib import Path

import pytest
from tests.server.harness import Served, Stream, until

BOUND = 8


@pytest.mark.parametrize("stream", [False, True])
def test_ov01_exactly_the_bound_is_kept(model: Path, stream: bool) -> None:
    engine = {"max_num_seqs": 2, "max_model_len": 1 << 20}
    with Served(model, "--step-ms", "20", engine=engine, server={"max_queue": BOUND}) as small:
        for n, requests in ((1, 100), (4, 20)):
            refused_before = refusals(small)
            body = {"prompt": "abc", "max_tokens": 100_000, "n": n, "stream": stream}
            clients = [Stream(small.port, "/v1/completions", body, {}) for _ in range(requests)]
            until(lambda: refusals(small) - refused_before == requests - BOUND // n)  # noqa: B023
            assert small.metric("queue_seats_taken") == BOUND
            for path in ("/health", "/metrics"):
                began_s = time.monotonic()
                assert small.get(path).status == 200
                assert time.monotonic() - began_s < 0.3
            answered, _, _ = select.select([client.socket for client in clients], [], [], 0)
            refused = [client for client in clients if client.socket in answered and client.status != 200]
            assert len(refused) == requests - BOUND // n
            for client in refused:
                is_refusal(client)
            for client in clients:
                client.close()
            until(lambda: small.metric("queue_seats_taken") == 0)
        small.is_well()


def refusals(served: Served) -> float:
    return served.metric("requests_refused_total", status="429")


def is_refusal(client: Stream) -> None:
    assert client.status == 429
    assert client.response.headers["content-type"] == "application/json"
    assert int(client.response.headers["retry-after"]) >= 1
    error = json.loads(client.response.read())["error"]
    assert error["type"] == "rate_limit_error"
    assert f"the limit is {BOUND}" in error["message"]


def test_a_request_that_never_fits_is_refused_too(model: Path) -> None:
    with Served(model, server={"max_queue": 4}) as small:
        assert small.complete(n=5).status == 429
        assert small.complete(["a"] * 3, n=2).status == 429
        assert small.complete(n=4, max_tokens=1).status == 200
