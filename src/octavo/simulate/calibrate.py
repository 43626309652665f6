"""The calibrated cost model: measured on this machine's own executor, in about two minutes.

A step's time is a piecewise linear function of its tokens (products: their speed depends on how many rows they have)
plus non-negative shares for sequences, tokens drawn, context tokens read and query-key pairs.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from octavo.engine.params import SamplingParams
from octavo.engine.step import SequenceStart, Step
from octavo.simulate.load import Floats
from octavo.simulate.machine import Executor, Spread

ROUNDS = 4
_CLASSES, _QUANTILES = 4, 32  # of a spread
KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
PARTS = ("per_sequence_s", "per_sample_s", "per_context_s", "per_pair_s")


class Point(NamedTuple):
    """A step to measure: `sequences` of them feed `tokens` each from position `start` on, and draw one if `sample`."""

    sequences: int
    tokens: int
    start: int
    sample: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """seconds: the median of `times`."""

    point: Point
    seconds: float
    times: tuple[float, ...] = ()


def grid(max_seqs: int, max_tokens: int, max_len: int) -> list[Point]:
    """Decodes and prefills, alone and in crowds, with short and long contexts, as far as the limits allow."""
    decodes = [Point(n, 1, at, True) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) for at in (15, 255, 1023)]
    prefills = [
        Point(1, n, at, n % 3 == 0) for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048) for at in (0, 512, 1536)
    ]
    several = [Point(n, count, 64, True) for n, count in ((4, 16), (8, 32), (16, 8), (4, 100))]
    return [
        point
        for point in decodes + prefills + several
        if point.sequences <= max_seqs
        and point.sequences * point.tokens <= max_tokens
        and point.start + point.tokens < max_len
    ]


def step_of(point: Point, page_size: int, num_pages: int, first: bool, groups: int = 1) -> Step | None:
    """The step; `first` gives the slots their tokens and pages, in each of so many KV groups. None when the pages are
    too few."""
    count, length = point.sequences, point.start + point.tokens
    pages = -(-length // page_size) * groups
    if count * pages > num_pages:
        return None
    none = np.empty(0, np.int32)
    starts = tuple(
        SequenceStart(
            slot=slot,
            tokens=np.full(length, 1, np.int32),
            prompt_len=length,
            pages=np.arange(slot * pages, (slot + 1) * pages, dtype=np.int32),
            params=SamplingParams(temperature=0.0),
            seed=0,
            choice=0,
        )
        for slot in range(count)
    )
    return Step(
        step_id=-1,
        released=(),
        starts=starts if first else (),
        append_slots=none,
        append_pages=none,
        copies=np.empty((0, 4), np.int32),
        slots=np.arange(count, dtype=np.int32),
        num_tokens=np.full(count, point.tokens, np.int32),
        num_computed=np.full(count, point.start, np.int32),
        sample=np.full(count, point.sample),
        num_tokens_total=count * point.tokens,
    )


def measure(
    executor: Executor,
    points: Sequence[Point],
    page_size: int,
    num_pages: int,
    seconds_each: float,
    on_progress: Callable[[int, int], None],
    rounds: int = ROUNDS,
) -> list[Measured]:
    """Times of each point's step, over about so many seconds, a run in each round at least.

    All points are gone through `rounds` times: what else the machine does for a while then is in the times of all of
    them, and not the cost of a few. The first run after others warms the caches, and isn't timed.
    """
    times: dict[Point, list[float]] = {point: [] for point in points}
    for done, point in enumerate(list(points) * rounds):
        on_progress(done, rounds * len(points))
        first = step_of(point, page_size, num_pages, first=True, groups=executor.groups)
        again = step_of(point, page_size, num_pages, first=False, groups=executor.groups)
        if first is None or again is None:
            continue
        executor.submit(first).result()
        until_s = time.perf_counter() + seconds_each / rounds
        while True:
            times[point].append(executor.submit(again).result().forward_s)
            if time.perf_counter() >= until_s:
                break
    return [Measured(point, float(np.median(taken)), tuple(taken)) for point, taken in times.items() if taken]


def spread_of(measured: Sequence[Measured]) -> Spread:
    """Quantiles of times over their point's median, in classes of so many points of similar times each."""
    ordered = sorted(measured, key=lambda one: one.seconds)
    count = max(1, min(_CLASSES, len(ordered)))
    parts = [ordered[i * len(ordered) // count : (i + 1) * len(ordered) // count] for i in range(count)]
    bounds_s = tuple(math.sqrt(low[-1].seconds * high[0].seconds) for low, high in itertools.pairwise(parts))
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    factors = []
    for part in parts:
        found = np.concatenate([np.array(one.times or (one.seconds,)) / one.seconds for one in part])
        factors.append(tuple(round(float(factor), 4) for factor in np.quantile(found, shares)))
    return Spread(bounds_s, tuple(factors))


class CalibratedCost:
    """A StepCost. products_s: seconds at KNOTS tokens; parts_s: for each sequence, token drawn, context token, pair."""

    def __init__(self, knots: Sequence[int], products_s: Sequence[float], parts_s: Sequence[float]) -> None:
        self.knots = list(knots)
        self.products_s = list(products_s)
        self.parts_s = list(parts_s)
        self._cache: dict[int, float] = {}

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int, samples: int) -> float:
        products_s = self._cache.get(tokens)
        if products_s is None:
            products_s = self._cache[tokens] = self._products(tokens)
        each, sample, read, pair = self.parts_s
        return products_s + each * sequences + sample * samples + read * context + pair * pairs

    def _products(self, tokens: int) -> float:
        """Between knots a line; behind the last one the line through the last two goes on."""
        i = min(max(bisect.bisect_right(self.knots, tokens), 1), len(self.knots) - 1)
        left, right = self.knots[i - 1], self.knots[i]
        share = (tokens - left) / (right - left)
        return self.products_s[i - 1] * (1 - share) + self.products_s[i] * share


class Shape(NamedTuple):
    """What StepCost.seconds is asked for."""

    tokens: int
    sequences: int
    context: int
    pairs: int
    samples: int


def shape_of(point: Point) -> Shape:
    count, tokens, start = point.sequences, point.tokens, point.start
    pairs = count * (tokens * start + tokens * (tokens + 1) // 2)
    return Shape(count * tokens, count, count * (start + tokens), pairs, count * point.sample)


def fit(measured: Sequence[Measured]) -> CalibratedCost:
    """Raises ValueError for fewer than 8 points."""
    return fit_shapes([shape_of(one.point) for one in measured], [one.seconds for one in measured])


def fit_shapes(shapes: Sequence[Shape], seconds: Sequence[float]) -> CalibratedCost:
    """Non-negative least squares of the relative errors. Raises ValueError for fewer than 8 steps."""
    if len(shapes) < 8:
        raise ValueError(f"a cost model is fitted to at least 8 kinds of steps; {len(shapes)} were measured")
    most = max(shape.tokens for shape in shapes)
    knots = [knot for knot in KNOTS if knot < most]
    knots.append(max(most, 2))
    rows = np.zeros((len(shapes), len(knots) + len(PARTS)))
    for row, shape in zip(rows, shapes, strict=True):
        i = min(max(bisect.bisect_right(knots, shape.tokens), 1), len(knots) - 1)
        share = (shape.tokens - knots[i - 1]) / (knots[i] - knots[i - 1])
        row[i - 1], row[i] = 1 - share, share
        row[len(knots) :] = shape.sequences, shape.samples, shape.context, shape.pairs
    solution = _non_negative(rows / np.array(seconds)[:, None], np.ones(len(shapes)))
    return CalibratedCost(knots, solution[: len(knots)].tolist(), solution[len(knots) :].tolist())


def _non_negative(rows: Floats, goal: Floats) -> Floats:
    """argmin |rows x - goal| with x >= 0, by cyclic coordinate descent on the normal equations."""
    scale = np.sqrt((rows * rows).sum(axis=0)) + 1e-300
    scaled = rows / scale
    gram, target = scaled.T @ scaled, scaled.T @ goal
    gram.flat[:: len(gram) + 1] += 1e-9
    x = np.zeros(len(target))
    for _ in range(20_000):
        before = x.copy()
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (target[i] - gram[i] @ x) / gram[i, i])
        if np.abs(x - before).max() < 1e-12 * max(1.0, float(np.abs(x).max())):
            break
    return np.asarray(x / scale)
