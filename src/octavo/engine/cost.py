"""How long a step takes, learned from steps that were measured, and what prefill may add to one.

A step's time is fitted as a sum of non-negative parts: a constant (weights are read once), tokens (matrix products),
sequences (head and sampling), context tokens (K and V are read once for each sequence) and query-key pairs (attention
arithmetic). The latest decode-only steps and the latest steps with prefill are kept apart, so that a long run of the
one kind doesn't make the model forget the other; the fit is least squares of relative errors.
"""

from __future__ import annotations

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
#: A given target is a limit, so the step aims a little below it.
TARGET_MARGIN = 0.9
#: Before any prefill was measured a chunk beside decodes has so many tokens; after, it at most doubles the largest.
FIRST_CHUNK = 32

#: While prefill goes on, one in so many steps carries decodes only, so that their time stays known.
PROBE_STEPS = 32

_DECODE_SAMPLES = 64
_PREFILL_SAMPLES = 192
_CORRECTION_SAMPLES = 15
_DRIFT_GAIN = 0.25


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

    reserve_s: further seconds, for a least chunk only.
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


class _Samples:
    """A ring of the latest measured steps."""

    def __init__(self, size: int) -> None:
        self.features: Floats = np.zeros((size, 5))
        self.seconds: Floats = np.zeros(size)
        self.prefill_tokens = np.zeros(size, np.int64)
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, len(self.seconds))

    def latest(self, count: int) -> tuple[Floats, Floats]:
        """Features and seconds of the latest `count` steps, or of all if there were fewer."""
        at = np.arange(max(0, self.count - count), self.count) % len(self.seconds)
        return self.features[at], self.seconds[at]

    def add(self, features: tuple[float, ...], seconds: float, prefill_tokens: int) -> None:
        at = self.count % len(self.seconds)
        self.features[at] = features
        self.seconds[at] = seconds
        self.prefill_tokens[at] = prefill_tokens
        self.count += 1


class CostModel:
    """Fed with every step's time; asked for the room that prefill has beside running decodes.

    target_s: longest step that prefill may cause, in seconds; 0: GAP_FACTOR times the step without it.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._decode = _Samples(_DECODE_SAMPLES)
        self._prefill = _Samples(_PREFILL_SAMPLES)
        self._parts: Floats = np.zeros(5)
        self._fitted_at = 0
        self._since_probe = 0
        self._drift = 1.0  # measured / predicted of the latest steps that had both decodes and prefill

    def observe(self, shape: StepShape, prefill_tokens: int, seconds: float) -> None:
        """A step of this shape, `prefill_tokens` of its tokens not being decodes, took so long."""
        if seconds <= 0.0:
            return
        features = shape.features()
        if prefill_tokens == 0:
            self._decode.add(features, seconds, 0)
            self._since_probe = 0
            return
        self._prefill.add(features, seconds, prefill_tokens)
        if shape.tokens > prefill_tokens:
            self._since_probe += 1
            predicted = self.predict(shape)
            ratio = min(2.0, max(0.5, seconds / predicted)) if predicted > 0.0 else 1.0
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
        gap = alone * self._correction()
        factor = min(GAP_UNDER_PRESSURE, GAP_FACTOR + GAP_PER_PROMPT * (prompts - 1))
        aim = self._target_s * TARGET_MARGIN if self._target_s else factor * gap
        largest = int(self._prefill.prefill_tokens.max())
        _, per_token, per_sequence, per_context, per_pair = self._parts.tolist()
        return Room(
            seconds=max(0.0, aim / self._drift - alone),
            reserve_s=max(0.0, GAP_LEAST_CHUNK * gap / self._drift - max(alone, aim / self._drift)),
            tokens=max(FIRST_CHUNK, 2 * largest),
            per_token=per_token,
            per_sequence=per_sequence,
            per_context=per_context,
            per_pair=per_pair,
        )

    def _correction(self) -> float:
        """Measured / predicted seconds of the latest decode-only steps; 1 when there were none."""
        features, seconds = self._decode.latest(_CORRECTION_SAMPLES)
        if not len(seconds):
            return 1.0
        return float(np.median(seconds / np.maximum(features @ self._parts, 1e-12)))

    def _refit(self) -> None:
        """Fit again when enough steps have come since; more often while there are few."""
        count = self._decode.count + self._prefill.count
        if count - self._fitted_at < min(8, 1 + len(self._prefill) // 8):
            return
        self._fitted_at = count
        features = np.concatenate([s.features[: len(s)] for s in (self._decode, self._prefill)])
        seconds = np.concatenate([s.seconds[: len(s)] for s in (self._decode, self._prefill)])
        parts = _fit(features, seconds)
        ratio = seconds / np.maximum(features @ parts, 1e-12)
        usual = ratio <= 2 * np.median(ratio)  # steps during which the machine was busy with something else
        self._parts = _fit(features[usual], seconds[usual])


def _fit(features: Floats, seconds: Floats) -> Floats:
    """Non-negative least squares of the relative errors, by leaving out the parts that would be negative."""
    rows = features / seconds[:, None]
    scale = np.sqrt((rows * rows).mean(axis=0)) + 1e-300
    rows = rows / scale
    gram = rows.T @ rows
    gram.flat[:: len(gram) + 1] += 1e-6 * len(rows)  # columns may be proportional: keep the system solvable
    goal = rows.sum(axis=0)
    used = list(range(len(goal)))
    parts: Floats = np.zeros(len(goal))
    while used:
        solution = np.linalg.solve(gram[np.ix_(used, used)], goal[used])
        if solution.min() >= 0.0:
            parts[used] = solution / scale[used]
            break
        used.pop(int(solution.argmin()))
    return parts
