"""Steps in, tokens out: the executor owns the arrays that steps change, and the plan that runs over them."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from octavo.backends.ops import Batch, Dry, Ints, OpTime, Plan, PlanLimits, Sampled, SlotParams
from octavo.engine.params import ParamError, SamplingParams, Word
from octavo.engine.step import PromptScores, SequenceStart, Step, StepResult
from octavo.runtime.batch import BatchArrays


class StepError(RuntimeError):
    """A forward pass failed; the pages it was to write hold nothing usable."""


@dataclass(frozen=True, slots=True)
class StepHandle:
    """A submitted step. The CPU has finished it by then; a GPU executor's `result` waits."""

    _result: StepResult

    def result(self) -> StepResult:
        return self._result


class Executor:
    """Applies steps to one plan. Per slot it keeps the token row, the block table rows and the sampler's state.

    eos_ids: ends of turn, which `min_tokens` bans. processed_logprobs: of the distribution that tokens are drawn from,
    instead of the untouched logits. capture_logits: results carry `outputs["logits"]` (tests). groups: of KV.
    """

    def __init__(
        self,
        plan: Plan,
        limits: PlanLimits,
        max_model_len: int,
        eos_ids: Iterable[int],
        processed_logprobs: bool = False,
    ) -> None:
        self.capture_logits = False
        self._processed_logprobs = processed_logprobs
        self._plan = plan
        self._eos_ids = frozenset(eos_ids)
        self._arrays = BatchArrays(limits)
        # np.zeros maps pages on first touch: long rows cost memory only as sequences grow.
        self._token_rows = np.zeros((limits.max_seqs, max_model_len + 1), np.int32)
        self._token_counts = np.zeros(limits.max_seqs, np.int32)
        self.groups = limits.groups
        self._block_rows = np.zeros((limits.groups, limits.max_seqs, limits.max_blocks), np.int32)
        self._block_counts = np.zeros(limits.max_seqs, np.int32)
        self._scored = np.zeros((limits.max_seqs, 2), np.int32)  # positions that report the token after them: from, to
        self._ones = np.ones(limits.max_seqs, np.int32)
        self._ones.flags.writeable = False

    def submit(self, step: Step) -> StepHandle:
        """Run one step. Raises StepError if the pass failed; slots keep the tokens they had.

        A sequence that the sampler doesn't take is in the result's `refused`, and nobody else is the worse for it.
        """
        began = time.perf_counter()
        try:
            refused = self._apply_changes(step)
            batch = self._arrays.fill(step, self._token_rows, self._block_rows, self._block_counts, self._scored)
            batch.capture_logits = self.capture_logits
            forward = time.perf_counter()
            sampled = self._plan.run(batch)
            forward_s = time.perf_counter() - forward
        except Exception as error:
            raise StepError(f"step {step.step_id} failed: {type(error).__name__}: {error}") from error
        draws = int(np.count_nonzero(step.sample))
        slots = batch.output_slots[:draws]
        at = self._token_counts[slots]
        self._token_rows[slots, at] = sampled.tokens[:draws]
        self._token_counts[slots] = at + 1
        result = _result(step, sampled, self._ones[:draws], refused, forward_s, time.perf_counter() - began)
        if draws < batch.num_outputs:
            result = replace(result, prompt=_prompt_scores(batch, sampled, draws))
        return StepHandle(result)

    def set_profiling(self, on: bool) -> None:
        """See ops.Plan."""
        self._plan.set_profiling(on)

    def profile(self) -> list[OpTime]:
        """See ops.Plan."""
        return self._plan.profile()

    def _apply_changes(self, step: Step) -> dict[int, str]:
        """Starts, appended pages and copies, in that order. A released slot needs nothing: its rows are overwritten.

        Returns StepResult.refused.
        """
        refused: dict[int, str] = {}
        for start in step.starts:
            try:
                self._start(start)
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                refused[start.slot] = f"The sampler did not take this request: {type(error).__name__}: {error}."
                self._start_nothing(start)
        if len(step.append_slots):
            self._append(step.append_slots.tolist(), step.append_pages.reshape(-1, self.groups).T)
        if len(step.copies):
            slots, blocks, _, targets = step.copies.T
            self._plan.copy_pages(np.ascontiguousarray(step.copies[:, 2:]))
            self._block_rows[np.arange(len(slots)) % self.groups, slots, blocks] = targets
        return refused

    def _append(self, slots: list[int], pages: Ints) -> None:
        """pages int32 [G, A]: block j of them comes behind the others of slot j."""
        at = []
        for slot in slots:
            at.append(self._block_counts[slot])
            self._block_counts[slot] += 1
        for group, own in enumerate(pages):
            self._block_rows[group, slots, at] = own

    def _start_nothing(self, start: SequenceStart) -> None:
        """The slot's rows go through this step as something harmless: whatever was wrong may be in its tokens."""
        self._token_rows[start.slot, : len(start.tokens)] = 0
        self._scored[start.slot] = 0
        self._plan.set_slot(start.slot, SlotParams(seed=0, temperature=0.0), np.zeros(1, np.int32), 1)

    def _start(self, start: SequenceStart) -> None:
        slot, tokens, pages = start.slot, start.tokens, start.pages.reshape(-1, self.groups).T
        self._token_rows[slot, : len(tokens)] = tokens
        self._token_counts[slot] = len(tokens)
        self._block_rows[:, slot, : pages.shape[1]] = pages
        self._block_counts[slot] = pages.shape[1]
        self._scored[slot] = (start.score_from, start.prompt_len - 1) if start.score_from >= 0 else (0, 0)
        params = slot_params(start.params, start.seed, start.choice, self._eos_ids, self._processed_logprobs)
        self._plan.set_slot(slot, params, tokens, start.prompt_len)


def slot_params(
    params: SamplingParams, seed: int, choice: int, eos_ids: frozenset[int], processed_logprobs: bool = False
) -> SlotParams:
    """A request's parameters in the sampler's terms; `min_tokens` bans every id that would end the request.

    Raises ParamError for words that are still text.
    """
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else eos_ids)
    logprobs, temperature = params.logprobs, params.temperature
    if params.use_beam_search:  # offers are the likeliest tokens, after masks, bias and penalties
        logprobs, temperature, processed_logprobs = max(2 * params.width, logprobs or 0), 0.0, True
    return SlotParams(
        seed=seed,
        choice=choice,
        temperature=temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        logprobs=-1 if logprobs is None else logprobs,
        min_tokens=params.min_tokens,
        eos_ids=tuple(sorted(ends)) if params.min_tokens else (),
        logit_bias=params.logit_bias,
        allowed_ids=params.allowed_token_ids,
        bad_words=_ids("bad_words", params.bad_words),
        dry=_dry(params) if params.dry_multiplier else None,
        xtc_probability=params.xtc_probability,
        xtc_threshold=params.xtc_threshold,
        processed_logprobs=processed_logprobs,
        prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
    )


def _dry(params: SamplingParams) -> Dry:
    return Dry(
        multiplier=params.dry_multiplier,
        base=params.dry_base,
        allowed_length=params.dry_allowed_length,
        last_n=params.dry_penalty_last_n,
        breakers=_ids("dry_sequence_breakers", params.dry_sequence_breakers),
    )


def _ids(name: str, words: tuple[Word, ...]) -> tuple[tuple[int, ...], ...]:
    found = []
    for word in words:
        if isinstance(word, str):
            raise ParamError(name, f"{name} holds the text {word!r}; the engine knows token ids only.")
        found.append(word)
    return tuple(found)


def _result(
    step: Step, sampled: Sampled, counts: Ints, refused: dict[int, str], forward_s: float, total_s: float
) -> StepResult:
    """Copies, because a plan's arrays are valid only until its next run; of the rows that were drawn from."""
    draws = len(counts)
    top_ids, top_logprobs = sampled.top_ids, sampled.top_logprobs
    return StepResult(
        step_id=step.step_id,
        tokens=sampled.tokens[:draws].reshape(-1, 1).copy(),
        counts=counts,
        forward_s=forward_s,
        total_s=total_s,
        logprobs=None if sampled.logprobs is None else sampled.logprobs[:draws].reshape(-1, 1).copy(),
        top_ids=None if top_ids is None else top_ids[:draws, None, :].copy(),
        top_logprobs=None if top_logprobs is None else top_logprobs[:draws, None, :].copy(),
        outputs=None if sampled.logits is None else {"logits": sampled.logits[:draws].copy()},
        refused=refused,
    )


def _prompt_scores(batch: Batch, sampled: Sampled, draws: int) -> PromptScores:
    """Of the rows behind those that were drawn from; copies."""
    assert sampled.logprobs is not None
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    rows = slice(draws, batch.num_outputs)
    return PromptScores(
        slots=batch.output_slots[rows].copy(),
        positions=batch.positions[0, batch.output_rows[rows]] + 1,
        logprobs=sampled.logprobs[rows].copy(),
        top_ids=sampled.top_ids[rows].copy(),
        top_logprobs=sampled.top_logprobs[rows].copy(),
    )
