"""How long a step takes, learned from steps that were measured, and what prefill may add to one.

A step's time is fitted as a sum of non-negative parts: a constant (weights are read once), tokens (matrix products),
sequences (head and sampling), context tokens (K and V are read once for each sequence) and query-key pairs (attention
arithmetic). The latest decode-only steps and the latest steps with prefill are kept apart, so that a long run of the
one kind doesn't make the model forget the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Without a target, a step with prefill aims at so many times a step without (three times are promised): with one
#: prompt to compute, with each further one so much more, and at most. The last holds for the least chunk of a step.
GAP_FACTOR = 2.0
GAP_PER_PROMPT = 0.1
GAP_UNDER_PRESSURE = 2.4
GAP_LEAST_CHUNK = 2.7
#: A step shorter than this is never too long: text that grows 33 times a second is read as flowing. Where decodes take
#: a few milliseconds, so many times that would only let prompts wait.
SMOOTH_GAP_S = 0.030
#: What steps with decodes only took is looked up in the latest so many steps; beyond what was usual there, such a step
#: is allowed so much growth (contexts grow while a long prompt is computed).
RECENT_STEPS = 512
GAP_GROWTH = 1.1
#: A given target is a limit, so the step aims a little below it.
TARGET_MARGIN = 0.9
#: The first prefill of a step gets MIN_CHUNK tokens even if they cost more than the step aims at, unless they cost far
#: more; then fewer, but one at least, so prefill always makes progress. A later one must get so many, or end with less,
#: to be worth a row of the batch.
#: The first chunk beside decodes has at most FIRST_CHUNK tokens (or as many as the last prompt's had). From step to
#: step it grows at most by CHUNK_GROWTH; after a step that took OVERSHOOT times what it aimed at, it must shrink. A fit
#: gone wrong then costs a moment and no more.
MIN_CHUNK = 8
FIRST_CHUNK = 32
CHUNK_GROWTH = 1.5
CHUNK_SHRINKAGE = 0.7
OVERSHOOT = 1.25
#: While prefill goes on, one in so many steps carries decodes only, so that their time stays known. Steps with so small
#: a share of prefill tokens count as such: where so little is let in, they show whether the reason still holds.
PROBE_STEPS = 32
PROBE_SHARE = 1 / 16

_DECODE_SAMPLES = 256
_PREFILL_SAMPLES = 192
_CORRECTION_SAMPLES = 15
_CHUNK_SAMPLES = 4
_DRIFT_GAIN = 0.25
_LEAST_DRIFT, _MOST_DRIFT = 0.7, 1.4  # of one step: a single slow one says little
_INERTIA = 1e-3


class StepShape(NamedTuple):
    """What a step's time depends on: counts of tokens fed, sequences, context tokens read, and query-key pairs."""

    tokens: int
    sequences: int
    context: int
    pairs: int

    def features(self) -> tuple[float, ...]:
        return (1.0, *self)


@dataclass(slots=True)
class Room:
    """Seconds (and tokens) that prefill may add to one step, and what its tokens cost.

    tokens: most that the step may have, whatever they cost. reserve_s: further seconds, for a least chunk only.
    """

    seconds: float
    reserve_s: float
    tokens: int
    per_token: float
    per_sequence: float
    per_context: float
    per_pair: float

    def tokens_at(self, start: int, reserve: bool = False) -> int:
        """Tokens of one more chunk, from position `start` on, that the room (and its reserve) is enough for."""
        seconds = self.seconds + (self.reserve_s if reserve else 0.0)
        seconds -= self.per_sequence + self.per_context * start
        if seconds <= 0.0 or self.tokens <= 0:
            return 0
        # n tokens make n * start + n * (n + 1) / 2 pairs: a * n^2 + b * n = seconds
        a = self.per_pair / 2
        b = self.per_token + self.per_context + self.per_pair * (start + 0.5)
        if a * self.tokens**2 + b * self.tokens <= seconds:
            return self.tokens
        return int(2 * seconds / (b + (b * b + 4 * a * seconds) ** 0.5))

    def half(self) -> Room:
        return replace(self, seconds=self.seconds / 2, reserve_s=0.0, tokens=self.tokens // 2)

    def absorb(self, half: Room) -> None:
        """What was spent from `half`, made from this room, is spent."""
        self.seconds -= self.seconds / 2 - half.seconds
        self.tokens -= self.tokens // 2 - half.tokens

    def spend(self, tokens: int, start: int) -> None:
        pairs = tokens * start + tokens * (tokens + 1) / 2
        self.tokens -= tokens
        self.seconds -= (
            self.per_sequence + self.per_token * tokens + self.per_context * (start + tokens) + self.per_pair * pairs
        )


class CostModel:
    """Fed with every step's time; asked for the room that prefill has beside running decodes.

    target_s: longest step that prefill may cause, in seconds; 0: relative to a step with decodes only, or SMOOTH_GAP_S.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._decode = _Samples(_DECODE_SAMPLES)
        self._prefill = _Samples(_PREFILL_SAMPLES)
        self._parts: Floats = np.zeros(5)
        self._drift = 1.0  # measured / predicted of the latest steps that had both decodes and prefill
        self._steps = 0
        self._fitted_at = 0
        self._since_probe = 0
        self._aim_s = 0.0  # what the latest step with a room aimed at
        # step number and prefill tokens of the latest steps with prefill (of one that took too long: what it may be)
        self._chunks: deque[tuple[int, int]] = deque(maxlen=_CHUNK_SAMPLES)

    def observe(self, shape: StepShape, prefill_tokens: int, seconds: float) -> None:
        """A step of this shape, `prefill_tokens` of its tokens not being decodes, took so long."""
        if seconds <= 0.0:
            return
        self._steps += 1
        decodes = shape.tokens - prefill_tokens
        if prefill_tokens:
            self._chunks.append((self._steps, prefill_tokens))
        if prefill_tokens <= decodes * PROBE_SHARE:
            self._decode.add(shape.features(), seconds, self._steps)
            self._since_probe = 0
            return
        self._prefill.add(shape.features(), seconds, self._steps)
        if decodes:
            self._since_probe += 1
            if seconds > OVERSHOOT * self._aim_s:
                self._chunks.clear()
                self._chunks.append((self._steps, int(CHUNK_SHRINKAGE / CHUNK_GROWTH * prefill_tokens)))
            predicted = self.predict(shape)
            ratio = min(_MOST_DRIFT, max(_LEAST_DRIFT, seconds / predicted)) if predicted > 0.0 else 1.0
            self._drift += _DRIFT_GAIN * (ratio - self._drift)

    @property
    def probe_due(self) -> bool:
        """The next step should carry decodes only."""
        return self._since_probe >= PROBE_STEPS and not self._target_s

    def predict(self, shape: StepShape) -> float:
        """Seconds of a step, from the latest fit; 0 before the first."""
        return float(np.dot(self._parts, shape.features()))

    def room(self, decodes: StepShape, prompts: int) -> Room:
        """What prefill may add to a step that carries these decodes, while so many prompts are not computed yet."""
        self._refit()
        alone = self.predict(decodes)
        gap = self._decode_gap(decodes, alone)
        factor = min(GAP_UNDER_PRESSURE, GAP_FACTOR + GAP_PER_PROMPT * (prompts - 1))
        aim = self._target_s * TARGET_MARGIN if self._target_s else max(SMOOTH_GAP_S, factor * gap)
        self._aim_s = max(aim, alone * self._drift)
        _, per_token, per_sequence, per_context, per_pair = self._parts.tolist()
        return Room(
            seconds=max(0.0, aim / self._drift - alone),
            reserve_s=max(0.0, GAP_LEAST_CHUNK * gap / self._drift - max(alone, aim / self._drift)),
            tokens=self._most_tokens(),
            per_token=per_token,
            per_sequence=per_sequence,
            per_context=per_context,
            per_pair=per_pair,
        )

    def _decode_gap(self, decodes: StepShape, predicted: float) -> float:
        """Seconds of a step with these decodes only.

        As predicted, corrected by the latest such steps; or, if that is less, by all of them not long ago, so that a
        moment of other load is not taken for the rule. At most GAP_GROWTH times what those with about so many
        sequences took, since that is the gap that their streams are used to.
        """
        features, seconds = self._decode.since(self._steps - RECENT_STEPS)
        if not len(seconds):
            return predicted
        ratio = seconds / np.maximum(features @ self._parts, 1e-12)
        gap = predicted * min(_median(ratio), _median(ratio[-_CORRECTION_SAMPLES:]))
        alike = seconds[np.abs(features[:, 2] - decodes.sequences) <= decodes.sequences / 4]
        return min(gap, GAP_GROWTH * _median(alike)) if len(alike) else gap

    def _most_tokens(self) -> int:
        """Prefill tokens that the next step may have, after those that the latest ones had."""
        largest = max((tokens for _, tokens in self._chunks), default=0)
        if self._chunks and self._chunks[-1][0] > self._steps - _CHUNK_SAMPLES:
            return max(MIN_CHUNK, int(CHUNK_GROWTH * largest) + 1)
        return max(FIRST_CHUNK, largest)

    def _refit(self) -> None:
        """Fit again when enough steps have come since; more often while there are few."""
        if self._steps - self._fitted_at < min(8, 1 + self._prefill.count // 8):
            return
        self._fitted_at = self._steps
        decodes, decode_s = self._decode.since()
        prefills, prefill_s = self._prefill.since()
        features = np.concatenate([decodes[::4], prefills])
        seconds = np.concatenate([decode_s[::4], prefill_s])
        parts = _fit(features, seconds, self._parts)
        ratio = seconds / np.maximum(features @ parts, 1e-12)
        usual = ratio <= 2 * _median(ratio)  # the others: the machine was busy with something else
        self._parts = parts if usual.all() else _fit(features[usual], seconds[usual], self._parts)


class _Samples:
    """The latest `size` measured steps: what they did, how long they took, and when they were.

    They lie one after another, so that a look at them is a view; when the arrays are full, the latest move to the
    front.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._features: Floats = np.zeros((4 * size, 5))
        self._seconds: Floats = np.zeros(4 * size)
        self._step: npt.NDArray[np.int64] = np.zeros(4 * size, np.int64)
        self._end = 0

    @property
    def count(self) -> int:
        return min(self._end, self._size)

    def add(self, features: tuple[float, ...], seconds: float, step: int) -> None:
        at = self._end
        if at == len(self._step):
            at = self._size - 1
            for column in (self._features, self._seconds, self._step):
                column[:at] = column[-at:]
        self._features[at] = features
        self._seconds[at] = seconds
        self._step[at] = step
        self._end = at + 1

    def since(self, step: int = 0) -> tuple[Floats, Floats]:
        """Features [n, 5] and seconds [n] of the samples after this step, the latest last; views."""
        first = self._end - self.count
        first += int(self._step[first : self._end].searchsorted(step, "right"))
        return self._features[first : self._end], self._seconds[first : self._end]


def _median(values: Floats) -> float:
    """As np.median, at a fraction of its overhead; `values` is not empty."""
    ordered, middle = np.sort(values), len(values) // 2
    return float(ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def _fit(features: Floats, seconds: Floats, before: Floats) -> Floats:
    """Non-negative least squares of the relative errors, by leaving out the parts that would be negative.

    What the samples don't tell (or tell only by their noise) stays as it was in the fit `before`.
    """
    rows = features / seconds[:, None]
    scale = np.sqrt((rows * rows).mean(axis=0)) + 1e-300
    rows = rows / scale
    gram, goal = rows.T @ rows, rows.sum(axis=0)
    gram.flat[:: len(gram) + 1] += _INERTIA * len(rows)
    goal += _INERTIA * len(rows) * before * scale
    equations = [[*line, value] for line, value in zip(gram.tolist(), goal.tolist(), strict=True)]
    used = list(range(len(goal)))
    parts: Floats = np.zeros(len(goal))
    while used:
        solution = _solve([[equations[i][j] for j in (*used, -1)] for i in used])
        least = min(solution)
        if least >= 0.0:
            parts[used] = solution / scale[used]
            break
        used.pop(solution.index(least))
    return parts


def _solve(equations: list[list[float]]) -> list[float]:
    """n equations, each with n factors and a value, by elimination; positive definite, so no pivot is near zero.

    For five unknowns this takes a fraction of what calling a library for it does.
    """
    n = len(equations)
    for i, pivot in enumerate(equations):
        for line in equations[i + 1 :]:
            factor = line[i] / pivot[i]
            for j in range(i, n + 1):
                line[j] -= factor * pivot[j]
    solution: list[float] = []
    for i in reversed(range(n)):
        known = sum(factor * value for factor, value in zip(equations[i][i + 1 : n], reversed(solution), strict=True))
        solution.append((equations[i][n] - known) / equations[i][i])
    return solution[::-1]
