"""What /metrics shows, under the names that vLLM's dashboards read (the prefix can be set)."""

from __future__ import annotations

from collections.abc import Callable

from octavo import ipc
from octavo.server.prometheus import (
    LATENCY_BUCKETS_S,
    SIZE_BUCKETS,
    Counter,
    Gauge,
    Histogram,
    Labels,
    Metric,
    Renamed,
    render,
)

MAX_LABEL_CHARS = 64
#: Totals that an engine counts from its own start: (name, field of ipc.Stats, help).
_ENGINE_TOTALS = (
    ("num_preemptions_total", "preemptions", "Sequences put back into the queue to free pages."),
    ("computed_tokens_total", "computed_tokens", "Tokens fed to the model, recomputed ones included."),
    ("engine_steps_total", "steps", "Forward passes."),
    ("forward_seconds_total", "forward_s", "Seconds inside forward passes, sampling included."),
    (
        "step_overhead_seconds_total",
        "step_overhead_s",
        "Seconds of the engine's loop outside forward passes, with work.",
    ),
    ("engine_busy_seconds_total", "busy_s", "Seconds during which the engine had work."),
)


class Metrics:
    """All metrics of the front. The engine's totals stay monotone when an engine is restarted."""

    def __init__(self, model_name: str, prefix: str) -> None:
        self._prefix = prefix
        self._labels: Labels = (("model_name", model_name),)
        self._stats: ipc.Stats | None = None
        self._ready: ipc.Ready | None = None

        self.prompt_tokens = Counter("prompt_tokens_total", "Prompt tokens of requests that got their first token.")
        self.generation_tokens = Counter("generation_tokens_total", "Tokens generated.")
        self.cache_queries = Counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix index.")
        self.cache_hits = Counter("prefix_cache_hits_total", "Prompt tokens found in the prefix index.")
        self.success = Counter(
            "request_success_total",
            "Requests that ended, by reason.",
            label="finished_reason",
            values=("stop", "length", "abort", "error"),
        )
        self.refused = Counter(
            "requests_refused_total", "Requests refused, by HTTP status.", label="status", values=("429", "503")
        )
        self.engine_restarts = Counter("engine_restarts_total", "Engine processes started again after a death.")
        self.ttft = Histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCY_BUCKETS_S)
        self.itl = Histogram("inter_token_latency_seconds", "Gap between a stream's tokens.", LATENCY_BUCKETS_S)
        self.tpot = Renamed("time_per_output_token_seconds", self.itl)
        self.mean_tpot = Histogram(
            "request_time_per_output_token_seconds", "Mean gap between a request's tokens.", LATENCY_BUCKETS_S
        )
        self.e2e = Histogram("e2e_request_latency_seconds", "Arrival to last token.", LATENCY_BUCKETS_S)
        self.queue = Histogram("request_queue_time_seconds", "Waiting for a place in the batch.", LATENCY_BUCKETS_S)
        self.prefill = Histogram("request_prefill_time_seconds", "Admission to first token.", LATENCY_BUCKETS_S)
        self.inference = Histogram("request_inference_time_seconds", "Admission to last token.", LATENCY_BUCKETS_S)
        self.decode = Histogram("request_decode_time_seconds", "First token to last token.", LATENCY_BUCKETS_S)
        self.request_prompt = Histogram("request_prompt_tokens", "Prompt tokens of a request.", SIZE_BUCKETS)
        self.request_generation = Histogram("request_generation_tokens", "Generated tokens of a request.", SIZE_BUCKETS)
        self.request_n = Histogram("request_params_n", "Choices asked for.", (1, 2, 5, 10, 20, 50, 100))
        self.step_tokens = Histogram("iteration_tokens_total", "Tokens in a forward pass.", ipc.STEP_TOKENS_BOUNDS)
        self._engine_totals = [(Counter(name, help), field) for name, field, help in _ENGINE_TOTALS]
        self._metrics: list[Metric] = [
            *self._gauges(),
            *(value for value in vars(self).values() if isinstance(value, (Counter, Histogram, Renamed))),
            *(counter for counter, _ in self._engine_totals),
        ]

    def watch(self, name: str, help: str, read: Callable[[], float | None]) -> None:
        """Add a gauge that is read at every scrape."""
        self._metrics.append(Gauge(name, help, read))

    def engine_ready(self, ready: ipc.Ready) -> None:
        """A new engine, whose totals begin at nothing."""
        self._ready = ready
        self._stats = None

    def engine_gone(self) -> None:
        self._stats = None

    def engine_stats(self, stats: ipc.Stats) -> None:
        before = self._stats
        for counter, field in self._engine_totals:
            counter.add(max(0, getattr(stats, field) - (getattr(before, field) if before is not None else 0)))
        if stats.step_tokens:
            old = before.step_tokens if before is not None else [0] * len(stats.step_tokens)
            tokens = stats.computed_tokens - (before.computed_tokens if before is not None else 0)
            self.step_tokens.add([now - then for now, then in zip(stats.step_tokens, old, strict=True)], tokens)
        self._stats = stats

    def render(self) -> bytes:
        return render(self._metrics, self._prefix, self._labels)

    def _gauges(self) -> list[Metric]:
        def of_stats(read: Callable[[ipc.Stats], float]) -> Callable[[], float]:
            return lambda: read(self._stats) if self._stats is not None else 0.0

        def pages(stats: ipc.Stats) -> float:
            return stats.pages_held / stats.pages_total if stats.pages_total else 0.0

        def waste(stats: ipc.Stats) -> float:
            return 1.0 - stats.slots_filled / stats.slots_held if stats.slots_held else 0.0

        return [
            Gauge("num_requests_running", "Sequences in the running batch.", of_stats(lambda stats: stats.running)),
            Gauge("num_requests_waiting", "Sequences waiting for it.", of_stats(lambda stats: stats.waiting)),
            Gauge("kv_cache_usage_perc", "Pages held by sequences, 0 to 1.", of_stats(pages)),
            Gauge("kv_pages_total", "Pages of the pool.", of_stats(lambda stats: stats.pages_total)),
            Gauge("kv_pages_held", "Pages held by sequences.", of_stats(lambda stats: stats.pages_held)),
            Gauge(
                "kv_pages_cached",
                "Pages nobody holds that a prefix can still find.",
                of_stats(lambda stats: stats.pages_cached),
            ),
            Gauge(
                "kv_waste_ratio",
                "Unfilled slots of held pages, 0 to 1, mean over steps.",
                of_stats(lambda stats: stats.waste_ratio_mean),
            ),
            Gauge("kv_waste_ratio_now", "Unfilled slots of held pages, 0 to 1, now.", of_stats(waste)),
            Gauge("cache_config_info", "How the page pool is made.", self._is_ready, self._cache_config),
        ]

    def _is_ready(self) -> float | None:
        return None if self._ready is None else 1.0

    def _cache_config(self) -> Labels:
        ready = self._ready
        assert ready is not None
        return (
            ("block_size", str(ready.page_size)),
            ("num_gpu_blocks", str(ready.num_pages // ready.kv_groups)),
            ("kv_bytes_per_token", str(ready.kv_bytes_per_token)),
            *sorted((name, value) for name, value in ready.facts.items() if len(value) <= MAX_LABEL_CHARS),
        )
