"""The calibrated cost model: measured on this machine's own executor, in about two minutes.

A step's time is a piecewise linear function of its tokens (products: their speed depends on how many rows they have)
plus non-negative shares for sequences, tokens drawn, context tokens read and query-key pairs.
"""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octavo.engine.params import SamplingParams
from octavo.engine.step import SequenceStart, Step
from octavo.formats.whole_file import write_whole
from octavo.simulate.fields import MAX_CONTEXT, Fields
from octavo.simulate.load import Floats
from octavo.simulate.replica import Executor

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_PARTS = ("per_sequence_s", "per_sample_s", "per_context_s", "per_pair_s")


class Point(NamedTuple):
    """A step to measure: `sequences` of them feed `tokens` each from position `start` on, and draw one if `sample`."""

    sequences: int
    tokens: int
    start: int
    sample: bool


@dataclass(frozen=True, slots=True)
class Measured:
    point: Point
    seconds: float


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


def step_of(point: Point, page_size: int, num_pages: int, first: bool) -> Step | None:
    """The step; `first` gives the slots their tokens and pages. None when the pages are too few."""
    count, length = point.sequences, point.start + point.tokens
    blocks = -(-length // page_size)
    if count * blocks > num_pages:
        return None
    none = np.empty(0, np.int32)
    starts = tuple(
        SequenceStart(
            slot=slot,
            tokens=np.full(length, 1, np.int32),
            prompt_len=length,
            pages=np.arange(slot * blocks, (slot + 1) * blocks, dtype=np.int32),
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
) -> Iterator[Measured]:
    """The median time of each point's step, over about so many seconds (three runs at least), one after another."""
    for done, point in enumerate(points):
        on_progress(done, len(points))
        step = step_of(point, page_size, num_pages, first=True)
        if step is None:
            continue
        executor.submit(step).result()
        step = step_of(point, page_size, num_pages, first=True)
        assert step is not None
        times: list[float] = []
        until_s = time.perf_counter() + seconds_each
        while len(times) < 3 or time.perf_counter() < until_s:
            times.append(executor.submit(step).result().forward_s)
        yield Measured(point, float(np.median(times)))


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
    rows = np.zeros((len(shapes), len(knots) + len(_PARTS)))
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a calibration file holds. overhead_s: of the loop around the executor, of every step."""

    model: str
    cost: CalibratedCost
    overhead_s: float
    page_size: int
    num_pages: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    def write(self, path: Path) -> None:
        """Whole or not at all. Raises OSError."""
        content = {
            "model": self.model,
            "overhead_s": self.overhead_s,
            "page_size": self.page_size,
            "num_pages": self.num_pages,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "products_s": {
                str(knot): seconds for knot, seconds in zip(self.cost.knots, self.cost.products_s, strict=True)
            },
            **dict(zip(_PARTS, self.cost.parts_s, strict=True)),
        }
        write_whole(path, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Raises FileError."""
        fields = Fields.read(path)
        products = fields.inner("products_s")
        names = {products.count(name, 1, "tokens"): name for name in products.names()}
        knots = sorted(names)
        if len(knots) < 2:
            raise fields.error("products_s", f"has {len(knots)} entries; it must have at least 2")
        return cls(
            model=fields.text("model"),
            cost=CalibratedCost(
                knots,
                [products.number(names[knot], zero=True) for knot in knots],
                [fields.number(name, zero=True) for name in _PARTS],
            ),
            overhead_s=fields.number("overhead_s", zero=True),
            page_size=fields.integer("page_size", high=1 << 16),
            num_pages=fields.integer("num_pages"),
            max_model_len=fields.integer("max_model_len", high=MAX_CONTEXT),
            max_num_seqs=fields.integer("max_num_seqs", high=1 << 16),
            max_num_batched_tokens=fields.integer("max_num_batched_tokens"),
        )
