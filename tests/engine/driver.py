"""Runs a scheduler against the fake executor on a virtual clock, and remembers what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tests.engine.fake_executor import FakeExecutor, draw

from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish, Request
from octavo.engine.scheduler import SchedulerConfig
from octavo.engine.step import Step

EOS = frozenset({3, 5})


def config(**changes: object) -> SchedulerConfig:
    """A small scheduler; `changes` replace fields."""
    fields: dict[str, object] = {
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "page_size": 4,
        "num_pages": 128,
        "eos_ids": EOS,
        "prefix_key": b"k" * 16,
    }
    return SchedulerConfig(**{**fields, **changes})  # type: ignore[arg-type]


def request(
    request_id: int,
    prompt: int | list[int],
    max_tokens: int | None = 4,
    *,
    seed: int = 0,
    priority: int = 0,
    arrival_s: float = 0.0,
    salt: tuple[tuple[str, str], ...] = (),
    output: tuple[int, ...] = (),
    choice: int = 0,
    **params: object,
) -> Request:
    """A request; an int prompt means so many tokens that no other request id begins with."""
    ids = [(request_id * 37 + i * 11) % 900 + 10 for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(
        request_id=request_id,
        prompt=np.array(ids, np.int32),
        params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        seed=seed,
        arrival_s=arrival_s,
        priority=priority,
        salt=salt,
        output=np.array(output, np.int32),
        choice=choice,
    )


def expected(prompt: list[int], count: int, seed: int = 0, choice: int = 0) -> list[int]:
    """The tokens that the fake model continues a prompt with, computed alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(draw(np.array(tokens, np.int64), seed, choice))
    return tokens[len(prompt) :]


@dataclass
class Driver:
    """`step` runs one step; `run` goes on until nothing is left. Outputs are keyed by (request id, choice)."""

    config: SchedulerConfig
    cost: Callable[[Step], float] = lambda step: 0.001
    now_s: float = 0.0
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    finish: dict[tuple[int, int], Finish] = field(default_factory=dict)
    cached: dict[tuple[int, int], int] = field(default_factory=dict)
    times: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = make_scheduler(self.config)
        self.executor = FakeExecutor(
            self.config.num_pages,
            self.config.page_size,
            self.config.max_num_seqs,
            self.config.max_num_batched_tokens,
            self.config.eos_ids,
            cost=self.cost,
            windows=self.config.windows,
        )
        if self.config.batch_policy == "static" and self.config.static_padding:
            self.executor.padding_rows = 0

    def step(self) -> Step | None:
        step = self.scheduler.schedule(self.now_s)
        if step is None:
            return None
        result = self.executor.execute(step)
        self.now_s += result.total_s
        outputs = self.scheduler.apply(step, result, self.now_s)
        columns = (outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish, outputs.cached_tokens)
        for request_id, choice, token, finish, cached in zip(*(c.tolist() for c in columns), strict=True):
            key = (request_id, choice)
            assert key not in self.finish, f"{key} gave a token after its end"
            self.tokens.setdefault(key, []).append(token)
            self.times.setdefault(key, []).append(self.now_s)
            self.cached[key] = cached
            if finish:
                self.finish[key] = Finish(finish)
        self.steps.append(step)
        return step

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if self.step() is None:
                break
        assert not self.scheduler.has_work, "work is left but nothing is scheduled"
