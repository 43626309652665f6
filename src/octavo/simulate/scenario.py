"""From what a user asks for to a simulation: which machine, which engine settings, which traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.analytic import AnalyticCost, Setup
from octavo.simulate.calibration import Calibration
from octavo.simulate.device import Device
from octavo.simulate.load import Ints, Load, poisson, read_load, synthetic
from octavo.simulate.machine import NO_SPREAD, LoopTime, Spread, StepCost, VirtualMachine
from octavo.simulate.replica import MakePrompt, prefixed_prompts, random_prompts
from octavo.simulate.shape import ModelShape

_VOCAB = 1 << 15  # of the simulated prompts' tokens
_DEFAULT_REQUESTS = 1000
_MAX_PAGES = 1 << 24  # of a replica, at some 50 bytes each


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Engine settings; None: the calibration's, or what suits a GPU."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    page_size: int | None = None
    prefix_caching: bool = True
    kv_policy: str = "paged"
    batch_policy: str = "continuous"
    static_padding: bool = True
    target_itl_ms: float = 0.0
    policy: str = "fcfs"

    def change(self, config: SchedulerConfig, kv_tokens: int | None) -> SchedulerConfig:
        """`config` with what is given here, and with so much memory: for so many tokens in every KV group. Raises
        ValueError."""
        page_size = self.page_size or config.page_size
        paging = self.kv_policy == "paged" and self.batch_policy == "continuous"
        windows = config.windows if paging else (0,)  # else all layers are one group that keeps everything
        slots = config.num_pages * config.page_size  # in all groups
        if kv_tokens is not None:
            slots = kv_tokens * len(windows)
        elif windows != config.windows:
            slots //= len(config.windows)
        return replace(
            config,
            max_model_len=self.max_model_len or config.max_model_len,
            max_num_seqs=self.max_num_seqs or config.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens or config.max_num_batched_tokens,
            page_size=page_size,
            num_pages=max(1, slots // page_size),
            prefix_caching=self.prefix_caching and config.prefix_caching and paging,
            policy=self.policy,
            target_itl_s=self.target_itl_ms / 1000 or config.target_itl_s,
            kv_policy=self.kv_policy,
            batch_policy=self.batch_policy,
            static_padding=self.static_padding,
            windows=windows,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What stands in for a replica's executor. kv_tokens: how many fit; defaults: sizes unless the user gives some."""

    name: str
    cost: StepCost
    loop: LoopTime
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    devices: int = 1
    spread: Spread = NO_SPREAD

    def virtual(self, seed: int) -> VirtualMachine:
        """One that stands at the beginning of time; `seed`: of its step times' spread."""
        return VirtualMachine(self.cost, self.loop, self.spread, seed)

    def config(self, choice: EngineChoice) -> SchedulerConfig:
        """The scheduler's config. Raises ValueError when a sequence of max_model_len doesn't fit into memory, or when
        there is more of that than a simulation can keep track of."""
        page_size = choice.page_size or self.page_size
        pages = self.kv_tokens // page_size
        if pages > _MAX_PAGES:
            raise ValueError(
                f"{self.name} has memory for {pages:.3g} pages of {page_size} tokens; a simulation keeps track of at "
                f"most {_MAX_PAGES}. Check the memory in the device's file, or take a larger page_size."
            )
        paging = choice.kv_policy == "paged" and choice.batch_policy == "continuous"
        return SchedulerConfig(
            max_model_len=choice.max_model_len or min(self.max_model_len, pages * page_size),
            max_num_seqs=choice.max_num_seqs or self.max_num_seqs,
            max_num_batched_tokens=choice.max_num_batched_tokens or self.max_num_batched_tokens,
            page_size=page_size,
            num_pages=max(1, pages),
            prefix_caching=choice.prefix_caching and paging,
            policy=choice.policy,
            target_itl_s=choice.target_itl_ms / 1000,
            prefix_key=bytes(16),
            kv_policy=choice.kv_policy,
            batch_policy=choice.batch_policy,
            static_padding=choice.static_padding,
        )


def analytic_machine(
    device: str, model: str, tensor_parallel: int, kind: str, weight_bytes: float, kv_type: str = "bf16"
) -> Machine:
    """`device` and `model`: shipped names or files. Raises FileError, ValueError."""
    setup = Setup(Device.load(device), ModelShape.load(model), tensor_parallel, kind, weight_bytes, kv_type)
    return Machine(
        name=f"{setup.model.name} on {tensor_parallel} x {setup.device.name}",
        cost=AnalyticCost(setup),
        loop=LoopTime(),
        kv_tokens=setup.kv_tokens,
        max_model_len=setup.model.context,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        page_size=16,
        devices=tensor_parallel,
    )


def calibrated_machine(path: Path) -> Machine:
    """Raises FileError."""
    found = Calibration.read(path)
    return Machine(
        name=f"{found.model} as calibrated in {path}",
        cost=found.cost,
        loop=found.loop,
        spread=found.spread,
        kv_tokens=found.num_pages * found.page_size,
        max_model_len=found.max_model_len,
        max_num_seqs=found.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens,
        page_size=found.page_size,
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests: a trace's, or made up. count 0: all of the trace, or 1,000; more than the trace has: it is repeated.

    rate: mean arrivals a second; 0: the trace's own (made-up requests: 1). prefix_groups: so many shared prefixes of
    prefix_tokens, spread at random over the requests.
    """

    trace: Path | None = None
    count: int = 0
    rate: float = 0.0
    prompt_tokens: int = 512
    output_tokens: int = 128
    prefix_groups: int = 0
    prefix_tokens: int = 0
    seed: int = 0

    def build(self, max_model_len: int) -> Work:
        """Raises TraceError."""
        if self.trace is None:
            count = self.count or _DEFAULT_REQUESTS
            load = synthetic(count, self.rate or 1.0, self.prompt_tokens, self.output_tokens, self.seed)
        else:
            load = self._from_trace(read_load(self.trace))
        if self.prefix_groups:
            load = replace(load, prompt_tokens=load.prompt_tokens + self.prefix_tokens)
        load, clipped = load.clipped(max_model_len)
        if not self.prefix_groups:
            return Work(load, clipped, random_prompts(load, _VOCAB, self.seed), np.full(len(load), -1))
        prefix_of = np.random.default_rng(self.seed + 2).integers(0, self.prefix_groups, len(load))
        prompt = prefixed_prompts(load, _VOCAB, prefix_of, self.prefix_tokens, self.seed)
        return Work(load, clipped, prompt, prefix_of)

    def _from_trace(self, load: Load) -> Load:
        count = self.count or len(load)
        load = load.head(count) if count <= len(load) else load.repeated(count)
        if not self.rate:
            return load
        last_s = float(load.arrival_s[-1])
        if last_s <= 0.0:
            return replace(load, arrival_s=poisson(len(load), self.rate, self.seed))
        return load.faster(self.rate / ((len(load) - 1) / last_s))


@dataclass(frozen=True, slots=True)
class Work:
    """A load, how many of its requests were clipped to the context, its prompts, and their prefixes (-1: none)."""

    load: Load
    clipped: int
    prompt: MakePrompt
    prefix_of: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def rate(self) -> float:
        """Mean arrivals a second."""
        last_s = float(self.load.arrival_s[-1])
        return (len(self.load) - 1) / last_s if last_s > 0 else math.inf
