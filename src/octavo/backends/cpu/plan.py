"""A recorded model on the CPU: a thin hand over the native plan, and the arrays its results lie in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo import _native
from octavo.backends.ops import Batch, Dry, Ints, OpTime, PlanLimits, Sampled, SlotParams


class CpuPlan:
    """See ops.Plan. One thread at a time may use it; `run` releases the GIL."""

    def __init__(self, native: _native.Plan, limits: PlanLimits) -> None:
        self._native = native
        self._vocab = limits.vocab
        rows = max(limits.max_tokens, limits.max_seqs)
        self._tokens = np.zeros(rows, np.int32)
        self._logprobs = np.zeros(rows, np.float32)
        self._top_ids = np.zeros((rows, _native.MAX_LOGPROBS), np.int32)
        self._top_logprobs = np.zeros((rows, _native.MAX_LOGPROBS), np.float32)

    @property
    def pool_bytes(self) -> int:
        """Size of the page pool."""
        return self._native.pool_bytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        return self._native.weight_bytes

    @property
    def workspace_bytes(self) -> int:
        """Memory of row buffers, scratch and logits at the limits."""
        return self._native.workspace_bytes

    def set_slot(self, slot: int, params: SlotParams, tokens: Ints, prompt_len: int) -> None:
        """See ops.Plan. Raises ValueError for a slot, id or parameter out of its limits."""
        settings = _native.SlotSettings(
            seed=params.seed % 2**64,
            choice=params.choice % 2**32,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition=params.repetition,
            presence=params.presence,
            frequency=params.frequency,
            xtc_probability=params.xtc_probability,
            xtc_threshold=params.xtc_threshold,
            logprobs=params.logprobs,
            processed_logprobs=params.processed_logprobs,
            min_tokens=params.min_tokens,
            eos_ids=list(params.eos_ids),
            bias_ids=list(params.logit_bias),
            bias_values=list(params.logit_bias.values()),
            allowed_ids=None if params.allowed_ids is None else list(params.allowed_ids),
            bad_ids=_singles(params.bad_words),
            bad_sequences=_longer(params.bad_words),
            dry=None if params.dry is None else _dry_settings(params.dry),
            prompt_logprobs=params.prompt_logprobs,
        )
        self._native.set_slot(slot, settings, np.ascontiguousarray(tokens, np.int32), prompt_len)

    def copy_pages(self, pairs: Ints) -> None:
        self._native.copy_pages(np.ascontiguousarray(pairs, np.int32))

    def run(self, batch: Batch) -> Sampled:
        """See ops.Plan. Raises ValueError, and computes nothing, if an entry of the batch is out of its limits."""
        count = batch.num_outputs
        logits = np.empty((count, self._vocab), np.float32) if batch.capture_logits else None
        width = self._native.run(
            batch.num_tokens,
            batch.num_seqs,
            count,
            batch.tokens,
            batch.positions,
            batch.token_seq,
            batch.query_start,
            batch.context_len,
            batch.block_table,
            batch.output_rows,
            batch.output_slots,
            batch.output_targets,
            self._tokens,
            self._logprobs,
            self._top_ids,
            self._top_logprobs,
            logits,
        )
        sampled = Sampled(self._tokens[:count], logits=logits)
        if width >= 0:
            sampled.logprobs = self._logprobs[:count]
            sampled.top_ids = self._top_ids[:count, :width]
            sampled.top_logprobs = self._top_logprobs[:count, :width]
        return sampled

    def set_profiling(self, on: bool) -> None:
        """Time every op from now on (about 25 ns each), or stop."""
        self._native.set_profiling(on)

    def profile(self) -> list[OpTime]:
        """Where `run` spent its time while profiling was on, one line for each kind of op."""
        return [OpTime(*line) for line in self._native.profile()]

    def profile_ops(self) -> list[OpTime]:
        """The same for each recorded op: several lines where one is made of several kinds of stages."""
        return [OpTime(*line) for line in self._native.profile_ops()]


def _dry_settings(dry: Dry) -> _native.DrySettings:
    return _native.DrySettings(
        multiplier=dry.multiplier,
        base=dry.base,
        allowed_length=dry.allowed_length,
        last_n=dry.last_n,
        breaker_ids=_singles(dry.breakers),
        breaker_sequences=_longer(dry.breakers),
    )


def _singles(sequences: Sequence[tuple[int, ...]]) -> list[int]:
    return [sequence[0] for sequence in sequences if len(sequence) == 1]


def _longer(sequences: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [list(sequence) for sequence in sequences if len(sequence) > 1]
