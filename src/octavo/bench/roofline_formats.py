"""Matrices of one shape in every format that weights may have: what it costs here to read and multiply each.

The matrices lie one behind the other and are together more than caches hold, so few rows show how fast a format is read
from memory and unpacked, and many rows how fast it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import Batch, KvSpec, PlanLimits, Projection, Weight
from octavo.backends.work import Chunk, StepLoad
from octavo.bench.batches import batch_of
from octavo.bench.roofline_steps import TimedStep, median_run, timed
from octavo.formats.blocks import quantize, row_bytes
from octavo.formats.tensor import Tensor, TensorType

#: Outputs and inputs of a matrix, and how many there are: 134 million weights.
WIDTH, MATRICES = 2048, 32
#: Rows that are rounded to a format; matrices repeat them.
_DIFFERENT_ROWS = 64
_VOCAB, _PAGE = 16, 4


@dataclass(frozen=True, slots=True)
class RowsFigures:
    """All matrices one after another, times `rows` rows. bytes_per_s: of weights as their file stores them."""

    rows: int
    seconds: float
    bytes_per_s: float
    operations_per_s: float


@dataclass(frozen=True, slots=True)
class FormatFigures:
    """bits: of a weight, its part of the scales included."""

    format: str
    bits: float
    rows: tuple[RowsFigures, ...]


def time_formats(backend: CpuBackend, rows: Sequence[int], show: Callable[[str], None]) -> Iterator[FormatFigures]:
    """Every format, with activations in the type that the backend chooses for it."""
    for type_ in TensorType:
        yield _time_format(backend, type_, rows, show)


def _time_format(
    backend: CpuBackend, type_: TensorType, rows: Sequence[int], show: Callable[[str], None]
) -> FormatFigures:
    show(f"{MATRICES} matrices of {WIDTH}x{WIDTH} in {type_.name}")
    most = max(rows)
    builder = backend.builder(PlanLimits(max(most, _PAGE), most, 1, most, _VOCAB), KvSpec(1, 1, 16, _PAGE, "f32"))
    rng = np.random.default_rng(0)
    x = builder.embed(Weight(quantize("rows", rng.standard_normal((_VOCAB, WIDTH)), TensorType.F32)), 1.0)
    values = rng.standard_normal((min(WIDTH, _DIFFERENT_ROWS), WIDTH), np.float32) / WIDTH**0.5
    stored = quantize("matrix", values, type_)
    for _ in range(MATRICES):
        (x,) = builder.linear(x, [Projection(_repeated(stored))])
    plan = builder.finish()
    weights, figures = MATRICES * WIDTH * WIDTH, []
    nbytes = MATRICES * WIDTH * row_bytes(type_, WIDTH)
    for count in rows:
        batch = batch_of(StepLoad((Chunk(1, 1),) * count, 0), _PAGE, np.arange(most, dtype=np.int32), _VOCAB)
        seconds = median_run(partial(_step, plan, batch)).seconds
        figures.append(RowsFigures(count, seconds, nbytes / seconds, 2 * weights * count / seconds))
    return FormatFigures(type_.name, 8 * nbytes / weights, tuple(figures))


def _step(plan: CpuPlan, batch: Batch) -> TimedStep:
    return TimedStep(timed(partial(plan.run, batch)), {})


def _repeated(stored: Tensor) -> Weight:
    """A matrix of its own in memory: what is packed goes by the array of rows as well."""
    return Weight(stored, np.arange(WIDTH, dtype=np.int32) % len(stored.data))
