"""How a token is drawn from logits: the exact rule that every backend follows (DESIGN section 8).

For one output row with untouched logits `l` (float32 [vocab]; NaN counts as minus infinity), all steps in float32
unless a step says otherwise:

1. Masks. `l[id] = -inf` for all but the allowed ids, if the slot has any, and for banned ids: the slot's eos ids while
   fewer than `min_tokens` tokens have been drawn, and the last token of each bad word whose other tokens are the last
   ones of prompt and output. If nothing finite is left, the token is the greedy one of the untouched logits, among the
   allowed ids if there are any.
2. Bias. `l[id] += bias`; a masked id stays masked.
3. Penalties, over the ids the sequence has seen. Repetition `r` (ids in prompt or output): `l = l / r` if `l > 0` else
   `l * r`. Then, for ids in the output, `l = (l - frequency * count) - presence`.
   Then `l = l - penalty` for the repetitions of dry.py.
4. Temperature `T`. `T < 1e-5` is greedy: the largest `l`, ties to the lower id, and nothing below applies.
5. Order. Ids are ranked by `l` descending, ties to the lower id. `w[id] = exp((l[id] - max(l)) / T)`; the largest is 1.
6. Top-k. Keep the first k ranks (k = 0: all; k >= vocab: all).
7. Top-p (`p < 1`). Of what is left, keep the shortest run of ranks whose summed `w` reaches `p` times the sum of all
   `w` left (the id that crosses it included). Sums in float64.
8. Min-p. Of what is left, keep ids with `w >= min_p`. The first rank always stays.
9. Exclude top choices. With probability `xtc_probability`, if at least two ids that are left have `w > 0` and
   `w >= xtc_threshold * total`, all of these but the last in rank go (total: the sum of all `w` left, in float64).
   Source: the sampler of that name by p-e-w (text-generation-webui, pull request 6335), with llama.cpp's parameters.
10. Draw. `u` is a float64 in [0, 1) of 53 bits: with the Philox4x32-10 output words r0..r3,
   `u = ((r0 >> 5) * 2**26 + (r1 >> 6)) / 2**53`. Philox's key is (low, high) 32 bits of the seed modulo 2**64, its
   counter (low, high) 32 bits of the absolute position of the token to draw, then the choice index, then 0 (1 for the
   number that decides step 9, which applies if that is less than `xtc_probability`).
   The token is the smallest kept id at which the running sum of kept `w`, by increasing id, in float64, exceeds
   `u * total`; total is the last running sum. Ids with `w == 0` are never drawn.

Nothing depends on how the ranks were found, so an implementation may select before it sorts; float64 sums may be taken
in any order that depends only on the ids. Log-probabilities are `(l - max(l)) - log(sum(exp(l - max(l))))` of the
untouched logits, sum and log in float64; the top list is in rank order of the untouched logits. With
`processed_logprobs` they are those of the distribution that is drawn from: of `(l - max(l)) / T` for the ids that are
left after step 9, minus infinity for others; greedy rows: of `l` after step 3.

Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.backends.ops import Floats, Ints, SlotParams
from octavo.backends.reference import dry

GREEDY_BELOW = 1e-5

_MASK = 0xFFFFFFFF
_PHILOX_M = (0xD2511F53, 0xCD9E8D57)
_PHILOX_W = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32; every number is an unsigned 32-bit integer."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = _PHILOX_M[0] * c0, _PHILOX_M[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _PHILOX_W[0]) & _MASK, (k1 + _PHILOX_W[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int, purpose: int = 0) -> float:
    """The random number of one (seed, choice) at one absolute position for one purpose: float64 in [0, 1)."""
    seed %= 1 << 64
    counter = (position & _MASK, (position >> 32) & _MASK, choice & _MASK, purpose)
    r0, r1, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return float((r0 >> 5) * (1 << 26) + (r1 >> 6)) / float(1 << 53)


@dataclass(slots=True)
class SamplerSlot:
    """The sampling state of one sequence: its parameters and which tokens it has seen.

    seen bool [vocab]: in the prompt or the output. output_counts int32 [vocab]. history: all tokens. drawn: tokens in
    the output. processed float32 [vocab]: logits of the distribution that the last draw was from.
    """

    params: SlotParams
    seen: npt.NDArray[np.bool_]
    output_counts: Ints
    history: list[int]
    drawn: int = field(default=0)
    processed: Floats = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def start(cls, params: SlotParams, tokens: Ints, prompt_len: int, vocab: int) -> SamplerSlot:
        """The state after `tokens` int32 [n], of which the first `prompt_len` are the prompt."""
        seen = np.zeros(vocab, np.bool_)
        seen[tokens] = True
        output = tokens[prompt_len:]
        counts = np.bincount(output, minlength=vocab).astype(np.int32)
        return cls(params, seen, counts, tokens.tolist(), len(output))

    def draw(self, logits: Floats, position: int) -> int:
        """Draw the token at `position` from untouched logits float32 [vocab] (not modified), and count it."""
        token = self._choose(logits, position)
        self.seen[token] = True
        self.output_counts[token] += 1
        self.history.append(token)
        self.drawn += 1
        return token

    def _choose(self, logits: Floats, position: int) -> int:
        params = self.params
        adjusted = self.processed = self._adjust(logits)
        largest = adjusted.max()
        if not np.isfinite(largest):
            self.processed = self._allowed(without_nan(logits))
            return int(np.argmax(self.processed))
        if params.temperature < GREEDY_BELOW:
            return int(np.argmax(adjusted))
        scaled = (adjusted - largest) / np.float32(params.temperature)
        with np.errstate(under="ignore"):
            weights = np.exp(scaled)
        weights[~keep(adjusted, weights, params.top_k, params.top_p, params.min_p)] = 0
        if uniform(params.seed, params.choice, position, purpose=1) < np.float32(params.xtc_probability):
            exclude_top(adjusted, weights, params.xtc_threshold)
        self.processed = np.where(weights > 0, scaled, np.float32(-np.inf))
        running = np.cumsum(weights, dtype=np.float64)
        target = uniform(params.seed, params.choice, position) * running[-1]
        return int(np.searchsorted(running, target, side="right"))

    def _allowed(self, logits: Floats) -> Floats:
        """`logits` themselves, with minus infinity for ids that are not allowed; an allowed one stays finite."""
        ids = self.params.allowed_ids
        if ids is None:
            return logits
        lowest = np.full_like(logits, -np.inf)
        lowest[list(ids)] = np.maximum(logits[list(ids)], np.finfo(np.float32).min)
        return lowest

    def _banned(self) -> list[int]:
        banned = list(self.params.eos_ids) if self.drawn < self.params.min_tokens else []
        for *before, last in self.params.bad_words:
            if self.history[len(self.history) - len(before) :] == before:
                banned.append(last)
        return banned

    def _adjust(self, logits: Floats) -> Floats:
        """Steps 1 to 3 of the rule on a copy."""
        params = self.params
        adjusted = without_nan(logits)
        if params.allowed_ids is not None:
            banned = np.ones(len(adjusted), np.bool_)
            banned[list(params.allowed_ids)] = False
            adjusted[banned] = -np.inf
        adjusted[self._banned()] = -np.inf
        for token, bias in params.logit_bias.items():
            adjusted[token] += np.float32(bias)
        if params.repetition != 1.0:
            factor = np.float32(params.repetition)
            seen = adjusted[self.seen]
            adjusted[self.seen] = np.where(seen > 0, seen / factor, seen * factor)
        if params.presence != 0.0 or params.frequency != 0.0:
            output = self.output_counts > 0
            counts = self.output_counts[output].astype(np.float32)
            adjusted[output] = adjusted[output] - np.float32(params.frequency) * counts - np.float32(params.presence)
        if params.dry is not None:
            for token, penalty in dry.penalties(self.history, params.dry).items():
                adjusted[token] -= np.float32(penalty)
        return adjusted


def without_nan(logits: Floats) -> Floats:
    """A copy float32 [vocab] in which NaN is minus infinity and nothing else is different."""
    result: Floats = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    return result


def keep(logits: Floats, weights: Floats, top_k: int, top_p: float, min_p: float) -> npt.NDArray[np.bool_]:
    """Steps 6 to 8 of the rule: bool [vocab], which ids may be drawn. logits and weights float32 [vocab]."""
    ranked = np.argsort(-logits, kind="stable")
    if top_k > 0:
        ranked = ranked[:top_k]
    if top_p < 1.0:
        mass = np.cumsum(weights[ranked], dtype=np.float64)
        crossing = int(np.searchsorted(mass, float(np.float32(top_p)) * mass[-1], side="left"))
        ranked = ranked[: crossing + 1]
    if min_p > 0.0:
        first, rest = ranked[:1], ranked[1:]
        ranked = np.concatenate([first, rest[weights[rest] >= np.float32(min_p)]])
    kept = np.zeros(len(logits), np.bool_)
    kept[ranked] = True
    return kept


def exclude_top(logits: Floats, weights: Floats, threshold: float) -> None:
    """Step 9 of the rule: sets weights float32 [vocab] to 0. logits float32 [vocab]."""
    bound = float(np.float32(threshold)) * weights.sum(dtype=np.float64)
    top = np.flatnonzero((weights > 0) & (weights.astype(np.float64) >= bound))
    if len(top) >= 2:
        last = top[np.argsort(-logits[top], kind="stable")[-1]]
        weights[top[top != last]] = 0


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities float32 [vocab] of untouched logits float32 [vocab]. Never NaN."""
    logits = without_nan(logits)
    largest = logits.max()
    if largest == -np.inf:
        return logits
    below = logits - largest
    with np.errstate(under="ignore"):
        total = np.exp(below).sum(dtype=np.float64)
    result: Floats = below - np.float32(np.log(total))
    return result


def top(logprobs: Floats, count: int) -> tuple[Ints, Floats]:
    """The `count` most likely ids int32 [count] and their log-probabilities float32 [count], ties to the lower id."""
    ids = np.argsort(-logprobs, kind="stable")[:count].astype(np.int32)
    return ids, logprobs[ids]
