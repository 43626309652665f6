"""What a long prompt does to running streams: the largest gap of each against its median gap before.

    python benchmarks/stall.py [--streams 16] [--prompt-tokens 4000] [--limit 3] [--json FILE]

The streams run for a while, then the long prompt is admitted. From its sending to its first token, no stream may wait
longer for a token than `limit` times the median gap that this stream had in the 5 s before.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from servers import octavo, write_result

from octavo.bench.completion import BenchRequest, Outcome, body, complete
from octavo.bench.http import Client, Origin
from octavo.bench.workload import Workload, tokenizer_of

MODEL = "smollm2-135m-instruct"
BEFORE_S = 5.0
SETTLE_S = 1.0
MOST_TOKENS = 4000


@dataclass(frozen=True)
class Stall:
    """One stream: median gap before, and largest gap while the long prompt was computed (milliseconds)."""

    median_ms: float
    largest_ms: float

    @property
    def ratio(self) -> float:
        return self.largest_ms / self.median_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--limit", type=float, default=3.0, help="above it the exit status is 1 (default: 3)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tokenizer = tokenizer_of(MODEL)
    short, _ = Workload(arguments.streams, dataset="random", input_len=64, output_len=MOST_TOKENS).build(tokenizer)
    (long,), _ = Workload(1, dataset="random", input_len=arguments.prompt_tokens, output_len=1, seed=1).build(tokenizer)
    with octavo("--model", MODEL) as server:
        stalls, ttft_ms = asyncio.run(measure(server.url, short, long))
    worst = max(stall.ratio for stall in stalls)
    print(
        f"{len(stalls)} streams, median gap {statistics.median(stall.median_ms for stall in stalls):.1f} ms; during a "
        f"prompt of {arguments.prompt_tokens} tokens (first token after {ttft_ms:.0f} ms) the largest gap was "
        f"{max(stall.largest_ms for stall in stalls):.1f} ms, {worst:.2f} times a stream's median (limit "
        f"{arguments.limit:g})"
    )
    content = {"worst_ratio": worst, "ttft_ms": ttft_ms, "streams": [vars(stall) for stall in stalls]}
    write_result(arguments.json, content)
    return int(worst > arguments.limit)


async def measure(url: str, short: list[BenchRequest], long: BenchRequest) -> tuple[list[Stall], float]:
    """Each stream's stall, and the long prompt's TTFT in milliseconds."""
    client = Client(Origin.parse(url))
    streams = [Outcome(time.perf_counter()) for _ in short]
    tasks = [
        asyncio.ensure_future(complete(client, "completions", payload(request), outcome))
        for request, outcome in zip(short, streams, strict=True)
    ]
    try:
        while not all(outcome.chunk_s for outcome in streams):
            await asyncio.sleep(0.01)
        await asyncio.sleep(SETTLE_S + BEFORE_S)
        admitted = Outcome(time.perf_counter())
        await complete(client, "completions", payload(long), admitted)
        if admitted.error is not None or any(task.done() for task in tasks):
            raise RuntimeError(f"the long prompt failed ({admitted.error}), or a stream ended early.")
        await asyncio.sleep(0.2)
        return [stall_of(outcome, admitted) for outcome in streams], (admitted.end_s - admitted.start_s) * 1e3
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def payload(request: BenchRequest) -> bytes:
    return body(request, "completions", MODEL, {"temperature": 0, "ignore_eos": True})


def stall_of(stream: Outcome, long: Outcome) -> Stall:
    """A gap belongs to the stall if it ends after the long prompt was sent and begins before its answer ended."""
    gaps = list(zip(stream.chunk_s, stream.chunk_s[1:], strict=False))
    before = [end - start for start, end in gaps if start >= long.start_s - BEFORE_S and end <= long.start_s]
    during = [end - start for start, end in gaps if end > long.start_s and start < long.end_s]
    return Stall(statistics.median(before) * 1e3, max(during) * 1e3)


if __name__ == "__main__":
    sys.exit(main())
