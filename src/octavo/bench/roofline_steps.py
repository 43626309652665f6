"""Steps of chosen shapes through a model's own plan, each op timed where it stands.

Weights and pages lie in memory as they do in a server, ops run one after the other, and so an op is measured with the
caches as the op before left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import Batch, KvSpec, PlanLimits, SlotParams
from octavo.backends.work import Chunk, StepLoad
from octavo.bench.batches import batch_of
from octavo.models.decoder import record
from octavo.models.load import LoadedModel

#: A step is repeated for so long, and this often at least and at most; one that takes longer is believed at once.
_REPEAT_S, _LEAST_RUNS, _MOST_RUNS, _LONG_S = 0.5, 3, 40, 3.0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Seconds of one step, as `plan.run` took them, and of each op in it: (op, its sampling part) -> seconds."""

    seconds: float
    ops: dict[tuple[int, bool], float]


def timed(run: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def median_run(run: Callable[[], TimedStep]) -> TimedStep:
    """The run of median duration among several, without the first."""
    began = time.perf_counter()
    runs = [run()]
    while len(runs) < _MOST_RUNS and (time.perf_counter() - began < _REPEAT_S or len(runs) <= _LEAST_RUNS):
        if runs[-1].seconds > _LONG_S:
            break
        runs.append(run())
    warm = runs[1:] or runs
    return sorted(warm, key=lambda one: one.seconds)[len(warm) // 2]


class StepRunner:
    """A model's plan with a page pool of `pool_tokens`, every page written. Raises UnsupportedError.

    max_rows: most tokens, and most sequences, of a step.
    """

    def __init__(self, model: LoadedModel, backend: CpuBackend, kv: KvSpec, max_rows: int, pool_tokens: int) -> None:
        self._page_size = kv.page_size
        pages = pool_tokens // kv.page_size
        self._limits = PlanLimits(max(max_rows, kv.page_size), max_rows, pages, pages, model.spec.vocab)
        builder = backend.builder(self._limits, kv)
        record(model.spec, model.weights, builder)
        self._plan: CpuPlan = builder.finish(release=model.release)
        # Sequences' pages lie scattered over the pool, as they do after a while in a server.
        self._scattered = np.random.default_rng(0).permutation(pages).astype(np.int32)
        self._write_pages(pages)

    @property
    def capacity(self) -> int:
        """Tokens that the pool holds."""
        return self._limits.num_pages * self._page_size

    def time(self, load: StepLoad) -> TimedStep:
        """The step of median duration among several runs of this load."""
        batch = self._batch(load)
        return median_run(lambda: self._run(batch))

    def _run(self, batch: Batch) -> TimedStep:
        before = self._totals()
        self._plan.set_profiling(True)
        seconds = timed(lambda: self._plan.run(batch))
        self._plan.set_profiling(False)
        return TimedStep(seconds, {key: total - before.get(key, 0.0) for key, total in self._totals().items()})

    def _totals(self) -> dict[tuple[int, bool], float]:
        totals: dict[tuple[int, bool], float] = {}
        for line in self._plan.profile_ops():
            key = (line.op, line.name == "sample")
            totals[key] = totals.get(key, 0.0) + line.total_s
        return totals

    def _write_pages(self, pages: int) -> None:
        """K and V of some tokens into one page, and that into all others: memory that nobody wrote is not there yet."""
        first = StepLoad((Chunk(self._page_size, self._page_size),), 0)
        self._plan.run(self._batch(first))
        written = int(self._scattered[0])
        pairs = np.array([(written, page) for page in range(pages) if page != written], np.int32).reshape(-1, 2)
        self._plan.copy_pages(pairs)

    def _batch(self, load: StepLoad) -> Batch:
        for slot in range(load.outputs):
            self._plan.set_slot(slot, SlotParams(seed=slot, temperature=0.0), np.array([1], np.int32), 1)
        return batch_of(load, self._page_size, self._scattered, self._limits.vocab)
