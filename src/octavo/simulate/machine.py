"""What runs the steps of a scheduler: an executor on the wall clock, or a cost model on a virtual one."""

from __future__ import annotations

import bisect
import itertools
import time
from typing import NamedTuple, Protocol

import numpy as np

from octavo.engine.step import Step, StepResult


class Machine(Protocol):
    """Runs steps, and has the time."""

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""

    def run(self, step: Step) -> StepResult:
        """The step's result; `now_s` is when it was there."""

    def wait(self, until_s: float) -> None:
        """Nothing to do before `until_s`."""


class StepCost(Protocol):
    """Seconds of a step: what takes the place of a forward pass."""

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        """tokens fed, sequences, context tokens whose K and V are read, query-key pairs, and tokens drawn."""


class LoopTime(NamedTuple):
    """Seconds that the loop around a step takes: for every step, for each sequence in it, and more if it prefills."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    prefill_s: float = 0.0


class Spread(NamedTuple):
    """What steps take over what the cost model says: short ones vary more, so there are classes by that time.

    bounds_s: where a class ends and the next begins. factors: of each class, one as likely as any other.
    """

    bounds_s: tuple[float, ...] = ()
    factors: tuple[tuple[float, ...], ...] = ((1.0,),)


NO_LOOP, NO_SPREAD = LoopTime(), Spread()
_DRAWS = 8191  # of a class of the spread, before they come again


class VirtualMachine:
    """Time passes only as the cost model says. All tokens drawn are 0.

    spread: drawn from anew for every step, by `seed`.
    """

    def __init__(self, cost: StepCost, loop: LoopTime = NO_LOOP, spread: Spread = NO_SPREAD, seed: int = 0) -> None:
        self.now_s = 0.0
        self._cost = cost
        self._loop = loop
        self._bounds_s = spread.bounds_s
        rng = np.random.default_rng(seed)
        self._factors = [itertools.cycle(rng.choice(each, _DRAWS).tolist()) for each in spread.factors]
        self._zeros = np.zeros((1 << 16, 1), np.int32)
        self._ones = np.ones(1 << 16, np.int32)

    def run(self, step: Step) -> StepResult:
        count, start = step.num_tokens, step.num_computed
        total, rows = step.num_tokens_total, len(count)
        context = int(start.sum()) + total
        pairs = context if total == rows else int((count * start + count * (count + 1) // 2).sum())
        samples = int(np.count_nonzero(step.sample))
        seconds = self._cost.seconds(total, rows, context, pairs, samples)
        seconds *= next(self._factors[bisect.bisect_left(self._bounds_s, seconds)])
        loop = self._loop
        self.now_s += seconds + loop.step_s + loop.sequence_s * rows + (loop.prefill_s if total != rows else 0.0)
        return StepResult(step.step_id, self._zeros[:samples], self._ones[:samples], seconds, seconds)

    def wait(self, until_s: float) -> None:
        self.now_s = until_s


class Executor(Protocol):
    """runtime.executor.Executor, as far as it is used here."""

    groups: int

    def submit(self, step: Step) -> ResultHandle: ...


class ResultHandle(Protocol):
    def result(self) -> StepResult: ...


class RealMachine:
    """A real executor on the wall clock, which starts at 0 now."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._began_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def run(self, step: Step) -> StepResult:
        return self._executor.submit(step).result()

    def wait(self, until_s: float) -> None:
        time.sleep(max(0.0, until_s - self.now_s))
