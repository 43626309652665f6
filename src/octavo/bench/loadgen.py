"""Sends requests as a load: all at once or as a Poisson process, at most so many in flight."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.completion import BenchRequest, Endpoint, Outcome, body, complete
from octavo.bench.http import Client


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent.

    rate: mean arrivals a second of a Poisson process; infinity: all at once.
    concurrency: most requests in flight; None: no cap. timeout_s: longest time for one request.
    """

    endpoint: Endpoint
    model: str
    sampling: dict[str, Any]
    rate: float = math.inf
    concurrency: int | None = None
    seed: int = 0
    timeout_s: float = 600.0


@dataclass(slots=True)
class Run:
    """What has happened so far; complete once every request has ended. `started` holds the running ones too."""

    requests: int
    started: list[Outcome] = field(default_factory=list)
    in_flight: int = 0
    peak_in_flight: int = 0
    begin_s: float = 0.0
    client_cpu_s: float = 0.0
    complete: bool = False

    @property
    def outcomes(self) -> list[Outcome]:
        """Those that have ended."""
        return [outcome for outcome in self.started if outcome.end_s]


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which each request is due; independent exponential gaps, or all zero."""
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(seed)
    due, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        due.append(now)
    return due


async def drive(client: Client, requests: Sequence[BenchRequest], load: Load, run: Run) -> None:
    """Send all requests and fill `run` as they go.

    In an open loop (a finite rate) a request's clock starts when it is due, so that waiting for a free place under the
    concurrency cap, or a late load generator, counts (no coordinated omission). In a closed loop it starts when sent.
    If this is cancelled, `run` keeps what was there, with `complete` False.
    """
    gate = asyncio.Semaphore(load.concurrency or len(requests) or 1)
    payloads = [body(request, load.endpoint, load.model, load.sampling) for request in requests]
    cpu_before = time.process_time()
    run.begin_s = time.perf_counter()

    async def one(payload: bytes, due_s: float) -> None:
        if due_s:
            await asyncio.sleep(max(0.0, run.begin_s + due_s - time.perf_counter()))
        async with gate:
            outcome = Outcome(run.begin_s + due_s if due_s else time.perf_counter())
            run.in_flight += 1
            run.peak_in_flight = max(run.peak_in_flight, run.in_flight)
            run.started.append(outcome)
            try:
                await asyncio.wait_for(complete(client, load.endpoint, payload, outcome), load.timeout_s)
            except asyncio.TimeoutError:
                outcome.end_s = time.perf_counter()
                outcome.error = f"no complete answer within {load.timeout_s:g} s."
            finally:
                run.in_flight -= 1

    due = arrivals(len(requests), load.rate, load.seed)
    tasks = [asyncio.ensure_future(one(payload, due_s)) for payload, due_s in zip(payloads, due, strict=True)]
    try:
        await asyncio.gather(*tasks)
        run.complete = True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        run.client_cpu_s = time.process_time() - cpu_before
