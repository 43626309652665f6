"""The engine alone: requests straight into it, in this process, as fast as it takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from octavo.bench.completion import BenchRequest
from octavo.engine.params import SamplingParams
from octavo.engine.request import Request
from octavo.ipc import Stats
from octavo.runtime.engine import Engine
from octavo.text.tokenizer import Tokenizer

OnProgress = Callable[[int, int, float], None]
"""Called about four times a second with (output tokens so far, output tokens in all, seconds so far)."""

_PROGRESS_S = 0.25


@dataclass(frozen=True, slots=True)
class Throughput:
    """A run in numbers. forward_s is the time inside `plan.run` (sampling included); outside_share the rest of wall_s.

    step_overhead_us: mean microseconds of a step outside `plan.run`. kv_waste_ratio: unfilled slots of held pages, mean
    over the steps. op_s: forward_s by kind of op; empty if the backend can't tell.
    """

    complete: bool
    requests: int
    wall_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    steps: int
    forward_s: float
    outside_share: float
    step_overhead_us: float
    kv_waste_ratio: float
    preemptions: int
    op_s: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_throughput(
    engine: Engine,
    tokenizer: Tokenizer,
    requests: Sequence[BenchRequest],
    warm_up: Sequence[BenchRequest],
    on_progress: OnProgress,
) -> Throughput:
    """Give the engine all requests at once (it runs `max_num_seqs` of them together) and step it until all have ended.

    Greedy, exactly the asked number of tokens. An interrupt ends the run; its figures then cover what was done.
    """
    _finish(engine, _prepare(tokenizer, warm_up, first_id=len(requests)), lambda *_: None)
    prepared = _prepare(tokenizer, requests, first_id=0)
    before = engine.stats()
    engine.executor.set_profiling(True)
    begin = time.perf_counter()
    complete = True
    try:
        _finish(engine, prepared, on_progress)
    except KeyboardInterrupt:
        complete = False
    wall_s = time.perf_counter() - begin
    engine.executor.set_profiling(False)
    op_s = {line.name: line.total_s for line in engine.executor.profile() if line.stages}
    return _figures(before, engine.stats(), wall_s, op_s, len(requests), complete)


def _prepare(tokenizer: Tokenizer, requests: Sequence[BenchRequest], first_id: int) -> list[Request]:
    return [
        Request(
            request_id=first_id + index,
            prompt=np.asarray(tokenizer.encode_prompt(request.prompt), np.int32),
            params=SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True),
            seed=0,
            arrival_s=time.monotonic(),
        )
        for index, request in enumerate(requests)
    ]


def _finish(engine: Engine, requests: Sequence[Request], on_progress: OnProgress) -> None:
    total = sum(request.params.max_tokens or 0 for request in requests)
    done, begin = 0, time.perf_counter()
    shown_s = begin
    for request in requests:
        engine.add(request)
    while engine.busy:
        outputs = engine.step()
        done += len(outputs.tokens) if outputs is not None else 0
        now = time.perf_counter()
        if now - shown_s >= _PROGRESS_S:
            shown_s = now
            on_progress(done, total, now - begin)


def _figures(
    before: Stats, after: Stats, wall_s: float, op_s: dict[str, float], requests: int, complete: bool
) -> Throughput:
    steps = after.steps - before.steps
    forward_s = after.forward_s - before.forward_s
    prompt_tokens = after.prompt_tokens - before.prompt_tokens
    output_tokens = after.generated_tokens - before.generated_tokens
    return Throughput(
        complete=complete,
        requests=requests,
        wall_s=wall_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=after.cached_tokens - before.cached_tokens,
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / wall_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / wall_s,
        steps=steps,
        forward_s=forward_s,
        outside_share=1.0 - forward_s / wall_s,
        step_overhead_us=(wall_s - forward_s) / max(1, steps) * 1e6,
        kv_waste_ratio=after.waste_ratio_mean,
        preemptions=after.preemptions - before.preemptions,
        op_s=op_s,
    )


def text(result: Throughput) -> str:
    """A table of some ten lines."""
    ended = "" if result.complete else " (INTERRUPTED, figures cover what was done)"
    rows = [
        ("requests", f"{result.requests}{ended}"),
        ("wall time", f"{result.wall_s:.2f} s"),
        ("prompt tokens", f"{result.prompt_tokens} ({result.cached_tokens} from cache)"),
        ("output tokens", f"{result.output_tokens}"),
        ("output throughput", f"{result.output_tokens_per_s:.1f} tokens/s"),
        ("total throughput", f"{result.total_tokens_per_s:.1f} tokens/s"),
        ("forward passes", f"{result.steps}, {result.forward_s:.2f} s"),
        ("outside of them", f"{result.outside_share:.2%} of wall time, {result.step_overhead_us:.0f} us a step"),
        ("KV waste", f"{result.kv_waste_ratio:.2%} (mean over steps)"),
        ("preemptions", f"{result.preemptions}"),
    ]
    if result.op_s:
        parts = sorted(result.op_s.items(), key=lambda item: -item[1])
        shown = [f"{name} {seconds / result.forward_s:.1%}" for name, seconds in parts]
        rows.append(("forward passes by op", ", ".join(shown)))
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
