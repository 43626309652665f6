"""One measurement: a workload on a server that runs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servers import Server

from octavo.bench.completion import BenchRequest
from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Figures, Limits, figures
from sidebyside import memory
from sidebyside.workloads import Texts, Work

# Goodput: the highest of these rates (requests a second) that keeps both limits.
RATES = (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24)
FIRST_PROBE = 6  # index of the rate that is tried first
TTFT_P99_MS, TPOT_P99_MS = 1000.0, 80.0


class MeasurementError(RuntimeError):
    """The run can't be compared: some request failed."""


def measure(server: Server, work: Work, texts: Texts, salt: int, seed: int) -> dict[str, Any]:
    """Figures of one workload. seed: of the arrivals. Raises MeasurementError, KeyboardInterrupt."""
    load = work.load(seed)
    _checked(_run(server, texts.warm_up(work, salt), replace(load, rate=float("inf"))))
    if work.name.endswith("goodput"):
        return goodput(server, work, texts, salt, seed)
    memory.reset_peaks(server.pid)
    result = _checked(_run(server, texts.build(work, salt), load))
    return {**flat(result), "peak_mib": round(memory.peak_mib(server.pid))}


def goodput(server: Server, work: Work, texts: Texts, salt: int, seed: int) -> dict[str, Any]:
    """The highest rate within the limits, found by bisection, and every rate that was tried."""
    probes = []
    low, high, middle = -1, len(RATES), FIRST_PROBE
    while high - low > 1:
        rate = float(RATES[middle])
        result = _run(server, texts.build(work, salt + 1 + len(probes)), replace(work.load(seed), rate=rate))
        good = not result.failed and result.ttft_ms.p99 < TTFT_P99_MS and result.tpot_ms.p99 < TPOT_P99_MS
        probes.append({"rate": rate, "good": good, **flat(result)})
        low, high = (middle, high) if good else (low, middle)
        # Upwards in steps until a rate fails, so that a slow server is not flooded first.
        middle = min(low + 4, high - 1) if high == len(RATES) else (low + high) // 2
    return {"rate": float(RATES[low]) if low >= 0 else 0.0, "probes": probes}


def offline(model: str, requests: int, in_flight: int, salt: int, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Octavo's engine alone on the same requests: throughput, and the share of wall time outside `plan.run`."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "throughput.json"
        command = [sys.executable, "-m", "octavo.cli.main", "bench", "throughput", "--model", model]
        command += ["--num-prompts", str(requests), "--salt", str(salt), "--json", str(target)]
        command += ["--max-num-seqs", str(in_flight), *flags]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode:
            raise MeasurementError(f"octavo bench throughput failed: {answer.stderr.strip()[-500:]}")
        content: dict[str, Any] = json.loads(target.read_text())["figures"]
    kept = ("output_tokens_per_s", "outside_share", "step_overhead_us", "wall_s", "output_tokens")
    return {key: content[key] for key in kept}


def flat(result: Figures) -> dict[str, Any]:
    """The figures that tables and ratios need, by plain names; milliseconds, seconds, tokens a second."""
    values = {
        "decode_tokens_per_s": 1000 / result.tpot_ms.p50 if result.tpot_ms.p50 > 0 else None,
        "ttft_p50_ms": result.ttft_ms.p50,
        "ttft_p99_ms": result.ttft_ms.p99,
        "tpot_p50_ms": result.tpot_ms.p50,
        "tpot_p99_ms": result.tpot_ms.p99,
        "output_tokens_per_s": result.output_tokens_per_s,
        "prefill_tokens_per_s": result.prompt_tokens / max(1, result.completed) / result.ttft_ms.p50 * 1e3,
        "duration_s": result.duration_s,
        "requests": result.completed,
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "output_tokens": result.output_tokens,
        "peak_in_flight": result.peak_in_flight,
        "client_cpu_share": result.client_cpu_share,
    }
    return {key: None if value is None or value != value else round(value, 4) for key, value in values.items()}


def _run(server: Server, requests: list[BenchRequest], load: Load) -> Figures:
    result = figures(run_serve(server.url, requests, [], load, None), Limits())
    if not result.complete:
        raise KeyboardInterrupt
    return result


def _checked(result: Figures) -> Figures:
    if result.failed:
        raise MeasurementError(f"{result.failed} of {result.requests} requests failed: {', '.join(result.errors)}")
    return result
