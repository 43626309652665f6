"""One engine under a load: its real scheduler, some machine (a real executor or a cost model), and what came out when.

The loop is the engine process's: requests that have arrived are added, one step is made and run, its result applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.engine.params import SamplingParams
from octavo.engine.request import Request, StepOutputs, Tokens
from octavo.engine.scheduler import Scheduler
from octavo.engine.step import Step, StepResult
from octavo.simulate.load import Floats, Ints, Load
from octavo.simulate.machine import Machine


@dataclass(slots=True)
class Timeline:
    """When what happened to each request of a load; seconds, NaN for what has not happened.

    first_s: its first token; finish_s: its last. tokens int64 [N]: drawn so far.
    """

    arrival_s: Floats
    first_s: Floats
    finish_s: Floats
    tokens: Ints

    @classmethod
    def of(cls, arrival_s: Floats) -> Timeline:
        count = len(arrival_s)
        return cls(arrival_s, np.full(count, math.nan), np.full(count, math.nan), np.zeros(count, np.int64))

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.finish_s)


AfterStep = Callable[[Step, StepResult, StepOutputs, float, float], None]
"""(step, result, outputs, when the step began, when it had been applied)"""


class Replica:
    """A scheduler and its machine. Request ids are indices into load and timeline, which several replicas may share.

    A request ends with the load's output tokens, though its max_tokens may be larger: its client stops listening, as it
    does at a stop string. open_requests, open_tokens: of requests that have not ended, prompt and answer together.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Machine,
        timeline: Timeline,
        load: Load,
        after_step: AfterStep | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.machine = machine
        self.open_requests = 0
        self.open_tokens = 0
        self.forward_s = 0.0
        self._timeline = timeline
        self._load = load
        self._after_step = after_step

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.open_requests += 1
        self.open_tokens += self._size(request.request_id)

    def advance(self, until_s: float) -> None:
        """Go on until this moment; a step that has begun before ends after it."""
        scheduler, machine = self.scheduler, self.machine
        while scheduler.has_work and machine.now_s < until_s:
            began_s = machine.now_s
            step = scheduler.schedule(began_s)
            if step is None:
                raise RuntimeError("the scheduler has work but no step for it; this is a bug in Octavo")
            result = machine.run(step)
            now_s = machine.now_s
            outputs = scheduler.apply(step, result, now_s)
            self.forward_s += result.forward_s
            self._note(outputs, now_s)
            if self._after_step is not None:
                self._after_step(step, result, outputs, began_s, now_s)
        if machine.now_s < until_s < math.inf:
            machine.wait(until_s)

    def _note(self, outputs: StepOutputs, now_s: float) -> None:
        line, ids = self._timeline, outputs.request_ids
        drawn = line.tokens[ids] + 1
        line.tokens[ids] = drawn
        line.first_s[ids[drawn == 1]] = now_s
        ended = drawn >= self._load.output_tokens[ids]
        if np.count_nonzero(ended) or np.count_nonzero(outputs.finish):
            for request_id in ids[ended & (outputs.finish == 0)].tolist():
                self.scheduler.abort(request_id, 0)
            gone = ids[ended | (outputs.finish != 0)]
            line.finish_s[gone] = now_s
            self.open_requests -= len(gone)
            self.open_tokens -= sum(map(self._size, gone.tolist()))

    def _size(self, index: int) -> int:
        return int(self._load.prompt_tokens[index] + self._load.output_tokens[index])


MakePrompt = Callable[[int], Tokens]


def random_prompts(load: Load, vocab: int, seed: int = 0) -> MakePrompt:
    """Prompts of the load's lengths from random tokens, made when they are needed: no two begin alike."""

    def make(index: int) -> Tokens:
        return _random_tokens(seed, index, vocab, int(load.prompt_tokens[index]))

    return make


def prefixed_prompts(load: Load, vocab: int, prefix_of: Ints, prefix_tokens: int, seed: int = 0) -> MakePrompt:
    """Prompts whose first `prefix_tokens` tokens belong to prefix `prefix_of[index]`; the rest is their own."""

    def make(index: int) -> Tokens:
        prompt = _random_tokens(seed, index, vocab, int(load.prompt_tokens[index]))
        shared = min(prefix_tokens, len(prompt) - 1)
        prompt[:shared] = _random_tokens(seed + 1, int(prefix_of[index]), vocab, prefix_tokens)[:shared]
        return prompt

    return make


def _random_tokens(seed: int, index: int, vocab: int, count: int) -> Tokens:
    return np.random.Generator(np.random.SFC64([seed, index])).integers(0, vocab, count, dtype=np.int32)


def request_of(index: int, arrival_s: float, prompt: Tokens, max_tokens: int) -> Request:
    """A greedy request of `max_tokens` tokens at most, which no end token ends. Its seed, which draws nothing, is its
    index, so that the sequences of a step can be told apart."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(index, prompt, params, seed=index, arrival_s=arrival_s)


OnProgress = Callable[[int, int], None]


def run_load(
    replica: Replica, load: Load, prompt: MakePrompt, max_tokens: int | None = None, progress: OnProgress | None = None
) -> None:
    """Give the replica the whole load, each request when it arrives, and go on until all have ended.

    max_tokens: what every request asks for at most; None: exactly its output tokens.
    """
    for index, arrival_s in enumerate(load.arrival_s.tolist()):
        replica.advance(arrival_s)
        asked = int(load.output_tokens[index]) if max_tokens is None else max_tokens
        replica.add(request_of(index, arrival_s, prompt(index), asked))
        if progress is not None and index % 64 == 0:
            progress(index, len(load))
    replica.advance(math.inf)
