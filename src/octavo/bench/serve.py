"""A benchmark of an OpenAI server over HTTP: warm-up, load, figures."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from octavo.bench.completion import BenchRequest, error_text
from octavo.bench.http import Client, HttpError, Origin
from octavo.bench.loadgen import Load, Run, drive
from octavo.bench.progress import ProgressLine


async def first_model(client: Client) -> str:
    """The first name that /v1/models lists. Raises HttpError."""
    status, answer = await client.get("/v1/models")
    try:
        listed: Any = msgspec.json.decode(answer)
        if status == 200:
            return str(listed["data"][0]["id"])
        reason = error_text(listed.get("error", listed))
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError):
        reason = "it lists no model"
    advice = "give a key with --api-key" if status in (401, 403) else "name one with --model"
    raise HttpError(f"/v1/models answered with status {status}: {reason.rstrip('.')}; {advice}.")


async def warm_up(client: Client, requests: Sequence[BenchRequest], load: Load) -> None:
    """Send some requests one after another, outside of all figures. Raises HttpError if one fails."""
    run = Run(len(requests))
    await drive(client, requests, replace(load, rate=math.inf, concurrency=1), run)
    for outcome in run.outcomes:
        if outcome.error is not None:
            raise HttpError(f"a warm-up request failed: {outcome.error}")


def run_serve(
    base_url: str,
    requests: Sequence[BenchRequest],
    warm_up_requests: Sequence[BenchRequest],
    load: Load,
    api_key: str | None,
) -> Run:
    """Drive the server at `base_url`; blocks. An interrupt (SIGINT) ends the load and returns what there is.

    load.model "" stands for the server's first model. Raises HttpError, ValueError (base_url).
    """
    run = Run(len(requests))
    line = ProgressLine()

    async def whole() -> None:
        client = Client(Origin.parse(base_url), api_key)
        try:
            model = load.model or await first_model(client)
            named = replace(load, model=model)
            await warm_up(client, warm_up_requests, named)
            progress = asyncio.ensure_future(line.follow(run))
            await drive(client, requests, named, run)
            progress.cancel()
        finally:
            client.close()

    try:
        _run(whole())
    except KeyboardInterrupt:
        if not run.begin_s:
            raise
    finally:
        line.end()
    return run


def _run(coroutine: Any) -> None:
    """asyncio.run on uvloop, which halves what the load generator takes from the machine, where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)
