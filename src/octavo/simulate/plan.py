"""Fewest replicas that meet a service level on a trace, for each device, tensor-parallel degree and token budget asked.

A level is met when the 99th percentiles are within their limits, that is, when at most one request in a hundred is not.
A simulation ends as soon as more than that have failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.simulate.fields import Fields
from octavo.simulate.figures import Latencies, good, plain
from octavo.simulate.fleet import Fleet, make_router
from octavo.simulate.load import Load
from octavo.simulate.replica import OnProgress, Timeline
from octavo.simulate.scenario import EngineChoice, Machine, Work

_FAILING_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Level:
    """The longest 99th percentiles that are good enough, in milliseconds."""

    ttft_p99_ms: float
    tpot_p99_ms: float

    def failures(self, line: Timeline) -> dict[str, int]:
        """Requests over each limit so far."""
        ttft = line.first_s - line.arrival_s
        tpot = (line.finish_s - line.first_s) / np.maximum(1, line.tokens - 1)
        return {
            "TTFT": int((ttft * 1e3 > self.ttft_p99_ms).sum()),
            "TPOT": int(((tpot * 1e3 > self.tpot_p99_ms) & (line.tokens > 1)).sum()),
        }

    def broken(self, line: Timeline) -> str:
        """Why the level can't be met any more; empty: it still can."""
        most = _FAILING_SHARE * len(line.arrival_s)
        limits = {"TTFT": self.ttft_p99_ms, "TPOT": self.tpot_p99_ms}
        for name, count in self.failures(line).items():
            if count > most:
                return (
                    f"{count} of {len(line.arrival_s)} requests have a {name} over {limits[name]:g} ms; "
                    f"{int(most)} may have"
                )
        return ""


@dataclass(frozen=True, slots=True)
class Option:
    """Something that could be rented. machine: one replica."""

    device: str
    tensor_parallel: int
    budget: int
    machine: Machine
    choice: EngineChoice

    @property
    def name(self) -> str:
        return f"{self.device} x {self.tensor_parallel}, budget {self.budget}"


@dataclass(frozen=True, slots=True)
class Trial:
    """So many replicas of an option. reason: why they fail; latencies: None when the simulation ended early.

    price_per_hour: of all devices; in device-hours when there are no prices.
    """

    option: Option
    replicas: int
    reason: str
    latencies: Latencies | None
    price_per_hour: float

    @property
    def devices(self) -> int:
        return self.replicas * self.option.tensor_parallel

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.option.device,
            "tensor_parallel": self.option.tensor_parallel,
            "budget": self.option.budget,
            "replicas": self.replicas,
            "devices": self.devices,
            "meets": not self.reason,
            "reason": self.reason,
            "price_per_hour": self.price_per_hour,
            "latencies": plain(self.latencies),
        }


@dataclass(frozen=True, slots=True)
class Prices:
    """currency and price per device-hour, by device as it is named on the command line."""

    currency: str
    per_hour: dict[str, float]

    @classmethod
    def read(cls, path: Path | None, devices: Sequence[str]) -> Prices:
        """None: every device costs one device-hour an hour. Raises FileError."""
        if path is None:
            return cls("device-hours", dict.fromkeys(devices, 1.0))
        fields = Fields.read(path)
        prices = fields.inner("per_hour")
        return cls(fields.text("currency"), {device: prices.number(device) for device in devices})


@dataclass(frozen=True, slots=True)
class Asked:
    """What every trial has in common."""

    work: Callable[[int], Work]
    level: Level
    router: str
    prices: Prices
    max_replicas: int


def trial(asked: Asked, option: Option, replicas: int, progress: OnProgress) -> Trial:
    """Simulate so many replicas."""
    config = option.machine.config(option.choice)
    work = asked.work(config.max_model_len)
    fleet = Fleet(replicas, config, option.machine.virtual, work.load)
    router = make_router(asked.router, fleet.replicas, work.prefix_of)
    whole = fleet.run(router, work.prompt, progress, lambda line: bool(asked.level.broken(line)))
    price = replicas * option.tensor_parallel * asked.prices.per_hour[option.device]
    reason = asked.level.broken(fleet.timeline)
    return Trial(option, replicas, reason, Latencies.of(fleet.timeline) if whole else None, price)


def fewest(asked: Asked, option: Option, progress: OnProgress) -> Iterator[Trial]:
    """Trials in the order that they are made: doubling until the level is met, then halving what lies between."""
    failing, replicas = 0, 1
    while True:
        made = trial(asked, option, replicas, progress)
        yield made
        if not made.reason:
            break
        failing = replicas
        if replicas >= asked.max_replicas:
            return
        replicas = min(2 * replicas, asked.max_replicas)
    meeting = replicas
    while meeting - failing > 1:
        middle = (failing + meeting) // 2
        made = trial(asked, option, middle, progress)
        yield made
        failing, meeting = (middle, meeting) if made.reason else (failing, middle)


def best(trials: Sequence[Trial]) -> Trial | None:
    """The cheapest that meets the level; of equally cheap ones that with the lowest TTFT."""
    meeting = [made for made in trials if not made.reason]
    return min(meeting, key=lambda made: (made.price_per_hour, _ttft(made)), default=None)


def _ttft(made: Trial) -> float:
    return made.latencies.ttft_ms.p99 if made.latencies else math.inf


def next_cheaper(trials: Sequence[Trial], chosen: Trial) -> Trial | None:
    """The dearest of those that cost less than `chosen`; all of them fail."""
    cheaper = [made for made in trials if made.price_per_hour < chosen.price_per_hour]
    return max(cheaper, key=lambda made: made.price_per_hour, default=None)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the trace costs on a chosen trial: while it lasts, all devices are rented."""

    hours: float
    device_hours: float
    price: float
    per_million_output: float
    per_million_total: float

    @classmethod
    def of(cls, chosen: Trial, load: Load) -> Bill:
        hours = max(float(load.arrival_s[-1]), 1.0) / 3600
        price = hours * chosen.price_per_hour
        output = float(load.output_tokens.sum())
        total = output + float(load.prompt_tokens.sum())
        return cls(hours, hours * chosen.devices, price, price / output * 1e6, price / total * 1e6)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The chosen fleet with the trace coming `factor` times as fast."""

    factor: float
    rate: float
    good_per_s: float
    latencies: Latencies


def sweep(
    asked: Asked, chosen: Trial, factors: Sequence[float], most_requests: int, progress: OnProgress
) -> Iterator[LoadPoint]:
    """Goodput and latencies over load."""
    option = chosen.option
    config = option.machine.config(option.choice)
    work = asked.work(config.max_model_len)
    for factor in factors:
        load = work.load.head(most_requests).faster(factor)
        fleet = Fleet(chosen.replicas, config, option.machine.virtual, load)
        fleet.run(make_router(asked.router, fleet.replicas, work.prefix_of), work.prompt, progress)
        line = fleet.timeline
        within = good(line, asked.level.ttft_p99_ms / 1e3, asked.level.tpot_p99_ms / 1e3)
        rate = (len(load) - 1) / max(float(load.arrival_s[-1]), 1e-9)
        yield LoadPoint(factor, rate, float(within.mean()) * rate, Latencies.of(line))
