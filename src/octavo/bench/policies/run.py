"""Runs one workload under several policies, on the same executor (or the same cost model) and KV memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.bench.policies.observe import Lane, Observer
from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.figures import Latencies, plain, shortest_quarter
from octavo.simulate.load import Load
from octavo.simulate.machine import Machine
from octavo.simulate.replica import MakePrompt, Replica, Timeline, run_load

KV_NAMES = {
    "paged": "paged",
    "contiguous": "contiguous",
    "contiguous-limit": "contiguous, prompt + max_tokens",
    "buddy": "contiguous, buddy growth",
}


@dataclass(frozen=True, slots=True)
class Combination:
    """A way to give out memory and a way to change batches."""

    kv: str
    batch: str
    padding: bool = True

    @property
    def name(self) -> str:
        batch = self.batch if self.batch == "continuous" else f"static, {'padded' if self.padding else 'dropped'}"
        return f"{KV_NAMES[self.kv]}; {batch}"

    @classmethod
    def parse(cls, text: str) -> Combination:
        """`paged/continuous`, `contiguous/static`, `buddy/static-dropped`. Raises ValueError."""
        kv, _, batch = text.partition("/")
        if kv not in KV_NAMES or batch not in ("continuous", "static", "static-dropped"):
            raise ValueError(
                f"the combination is {text!r}; it must be KV/BATCH with KV one of {', '.join(KV_NAMES)} and BATCH one "
                "of continuous, static, static-dropped."
            )
        return cls(kv, batch.removesuffix("-dropped"), not batch.endswith("-dropped"))

    def apply(self, config: SchedulerConfig) -> SchedulerConfig:
        """The config with these policies, and no prefix caching: engines of the time had none."""
        return replace(
            config,
            kv_policy=self.kv,
            batch_policy=self.batch,
            static_padding=self.padding,
            prefix_caching=False,
            prefix_key=None,
        )


ALL = tuple(
    Combination.parse(text)
    for text in (
        "contiguous/static",
        "contiguous/static-dropped",
        "contiguous/continuous",
        "contiguous-limit/continuous",
        "buddy/continuous",
        "paged/static",
        "paged/static-dropped",
        "paged/continuous",
    )
)


@dataclass(slots=True)
class Outcome:
    """One combination's run. Shares of KV memory are means over time (Observer says what the kinds are).

    forward_share: time inside forward passes / time in which somebody was running or waiting.
    """

    combination: Combination
    complete: bool
    requests: int
    completed: int
    duration_s: float
    output_tokens_per_s: float
    forward_share: float
    shares: dict[str, float]
    waste_of_held: float
    running_mean: float
    running_peak: int
    preemptions: int
    padding_rows_share: float
    all_requests: Latencies
    short: Latencies
    long: Latencies
    observer: Observer
    timeline: Timeline

    def figures_json(self) -> dict[str, Any]:
        fields = {
            name: plain(getattr(self, name))
            for name in self.__slots__
            if name not in ("combination", "observer", "timeline")
        }
        name = {"name": self.combination.name, "kv": self.combination.kv, "batch": self.combination.batch}
        return {**name, "padding": self.combination.padding, **fields}

    def to_json(self) -> dict[str, Any]:
        return {**self.figures_json(), "over_time": self.observer.to_json()}

    @property
    def lanes(self) -> list[Lane]:
        return self.observer.lanes


MakeMachine = Callable[[], Machine]
OnProgress = Callable[[str, int, int], None]


def run_combination(
    combination: Combination,
    config: SchedulerConfig,
    make_machine: MakeMachine,
    load: Load,
    prompt: MakePrompt,
    max_tokens: int,
    on_progress: OnProgress,
) -> Outcome:
    """Run the load once. An interrupt ends the run; the outcome is marked incomplete and covers what was done."""
    scheduler = make_scheduler(combination.apply(config))
    timeline = Timeline.of(load.arrival_s)
    observer = Observer(scheduler, load, timeline)
    machine = make_machine()

    def after_step(*args: Any) -> None:
        observer.after_step(*args)
        if scheduler.stats().steps % 8 == 0:
            on_progress(combination.name, int(timeline.done.sum()), len(load))

    replica = Replica(scheduler, machine, timeline, load, after_step)
    complete = True
    try:
        run_load(replica, load, prompt, max_tokens)
    except KeyboardInterrupt:
        complete = False
    observer.finish(machine.now_s)
    return _outcome(combination, complete, replica, load, observer, timeline)


def _outcome(
    combination: Combination, complete: bool, replica: Replica, load: Load, observer: Observer, timeline: Timeline
) -> Outcome:
    samples, stats = observer.samples, replica.scheduler.stats()
    duration_s = samples.time_s[-1] if samples.time_s else 0.0
    short = shortest_quarter(load.output_tokens)
    busy_s = sum(samples.step_s)
    rows = sum(samples.rows)
    return Outcome(
        combination=combination,
        complete=complete,
        requests=len(load),
        completed=int(timeline.done.sum()),
        duration_s=duration_s,
        output_tokens_per_s=float(timeline.tokens.sum()) / duration_s if duration_s else 0.0,
        forward_share=replica.forward_s / busy_s if busy_s else 0.0,
        shares=observer.means(),
        waste_of_held=observer.waste_of_held(),
        running_mean=_time_mean(samples.running, samples.step_s),
        running_peak=max(samples.running, default=0),
        preemptions=stats.preemptions,
        padding_rows_share=observer.padding_rows / rows if rows else 0.0,
        all_requests=Latencies.of(timeline),
        short=Latencies.of(timeline, short),
        long=Latencies.of(timeline, ~short),
        observer=observer,
        timeline=timeline,
    )


def _time_mean(values: Sequence[float], seconds: Sequence[float]) -> float:
    total = sum(seconds)
    return sum(v * s for v, s in zip(values, seconds, strict=True)) / total if total else 0.0
