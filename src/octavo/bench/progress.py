"""One line that shows how far a run is: rewritten in place on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time

from octavo.bench.loadgen import Run

_TERMINAL_S, _LOG_S = 0.25, 10.0


class ProgressLine:
    """`follow` runs beside the load; `end` clears the line."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    async def follow(self, run: Run) -> None:
        """Show `run` until cancelled."""
        tokens, then = 0, time.perf_counter()
        while True:
            await asyncio.sleep(_TERMINAL_S if self._terminal else _LOG_S)
            before, was = tokens, then
            tokens, then = sum(outcome.output_tokens for outcome in run.started), time.perf_counter()
            self._print(describe(run, (tokens - before) / (then - was), then - run.begin_s))

    def _print(self, line: str) -> None:
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(start + line, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def describe(run: Run, tokens_per_s: float, elapsed_s: float) -> str:
    """The line's text."""
    ended = run.outcomes
    failed = sum(outcome.error is not None for outcome in ended)
    return (
        f"{len(ended)}/{run.requests} requests, {run.in_flight} in flight, {failed} failed, "
        f"{tokens_per_s:.0f} tokens/s, {elapsed_s:.0f} s"
    )
