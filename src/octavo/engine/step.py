"""A step is a delta: what the executor must change and compute for one forward pass. The executor owns the arrays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from octavo.engine.params import SamplingParams

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence takes an executor slot (first admission, or again after preemption).

    slot: executor row, 0 <= slot < max_num_seqs.
    tokens: int32 [n]; all tokens known so far, prompt then output; n > prompt_len only for resumed ones.
    pages: int32 [b * G]; the block table's head: pages that already hold K and V (prefix hits, forks), for each block
        one of every KV group; NO_PAGE where a group's window has passed. A partly filled last block is shared until the
        step's `copies` replaces it.
    seed, choice: key of the sequence's random numbers.
    score_from: from this position on, each prompt token's log-probability is asked for by the row before it; -1: none.
    """

    slot: int
    tokens: Ints
    prompt_len: int
    pages: Ints
    params: SamplingParams
    seed: int
    choice: int
    score_from: int = -1


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass. Applied in this order: released, starts, appended pages, copies, then the pass itself.

    Pages that a group's window has passed are given to others without a word: block tables keep their numbers, and no
    pass looks there.

    released: slots whose sequence is gone (finished, aborted or preempted) since the last step.
    append_slots int32 [A], append_pages int32 [A * G]; block j, which is pages j * G ... of the KV groups in order, is
        appended to the block table of slot j, in order.
    copies: int32 [C * G, 4] of (slot, block index, source page, target page), for each block one of every group in
        order: copy the page's bytes and let the block table point at the target (copy-on-write).
    slots/num_tokens/num_computed: intp [S]; scheduled sequences in batch order: its slot, how many of its known
        tokens are computed now, and how many were computed before. Tokens num_computed ..
        num_computed + num_tokens - 1 of the slot's token row are fed.
    sample: bool [S]; the sequence's last known token is among them, so a next token is drawn.
    num_tokens_total: sum of num_tokens.
    """

    step_id: int
    released: tuple[int, ...]
    starts: tuple[SequenceStart, ...]
    append_slots: Ints
    append_pages: Ints
    copies: Ints
    slots: Index
    num_tokens: Index
    num_computed: Index
    sample: npt.NDArray[np.bool_]
    num_tokens_total: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of prompt tokens that a step found; see request.PromptLogprobs.

    slots int32 [M], of their sequences; positions int32 [M]; logprobs float32 [M]; top_ids int32 and top_logprobs
    float32 [M, L].
    """

    slots: Ints
    positions: Ints
    logprobs: npt.NDArray[np.float32]
    top_ids: Ints
    top_logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the executor computed.

    tokens: int32 [R, K]; the tokens drawn for the sequences with `sample`, in batch order; K = 1 without speculation.
    counts: int32 [R]; how many of the K are valid.
    logprobs float32 [R, K], top_ids int32 [R, K, L], top_logprobs float32 [R, K, L]: of the untouched logits; None when
        nobody asked; unused entries are -1 / 0.
    forward_s: seconds inside plan.run. total_s: seconds inside the executor.
    outputs: named extra rows, for tests and embeddings ("logits": float32 [R, vocab]).
    refused: slot -> why the sampler did not take the sequence that starts there. Its rows were computed all the same,
        and mean nothing.
    prompt: what was asked for by SequenceStart.score_from and computed in this step.
    """

    step_id: int
    tokens: Ints
    counts: Ints
    forward_s: float
    total_s: float
    logprobs: npt.NDArray[np.float32] | None = None
    top_ids: Ints | None = None
    top_logprobs: npt.NDArray[np.float32] | None = None
    outputs: dict[str, npt.NDArray[np.float32]] | None = None
    refused: dict[int, str] = field(default_factory=dict)
    prompt: PromptScores | None = None

    def only(self, rows: npt.NDArray[np.bool_]) -> StepResult:
        """The result without the rows, bool [R], that are False; named outputs and `prompt` stay whole."""
        logprobs, top_ids, top_logprobs = self.logprobs, self.top_ids, self.top_logprobs
        return replace(
            self,
            tokens=self.tokens[rows],
            counts=self.counts[rows],
            logprobs=None if logprobs is None else logprobs[rows],
            top_ids=None if top_ids is None else top_ids[rows],
            top_logprobs=None if top_logprobs is None else top_logprobs[rows],
        )
