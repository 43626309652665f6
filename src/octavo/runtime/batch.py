"""The arrays of a step, allocated once and filled from the executor's per-slot state without a Python loop."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import Batch, Ints, PlanLimits
from octavo.engine.step import Step


class BatchArrays:
    """Owns one Batch at the limits; `fill` updates it in place and returns it."""

    def __init__(self, limits: PlanLimits) -> None:
        tokens, seqs = limits.max_tokens, limits.max_seqs
        self._counting = np.arange(max(tokens, seqs) + 1, dtype=np.int32)
        self._batch = Batch(
            num_tokens=0,
            num_seqs=0,
            num_outputs=0,
            tokens=np.zeros(tokens, np.int32),
            positions=np.zeros((1, tokens), np.int32),
            token_seq=np.zeros(tokens, np.int32),
            query_start=np.zeros(seqs + 1, np.int32),
            context_len=np.zeros(seqs, np.int32),
            block_table=np.zeros((limits.groups, seqs, limits.max_blocks), np.int32),
            output_rows=np.zeros(max(tokens, seqs), np.int32),
            output_slots=np.zeros(max(tokens, seqs), np.int32),
            output_targets=np.full(max(tokens, seqs), -1, np.int32),
        )

    def fill(self, step: Step, token_rows: Ints, block_rows: Ints, block_counts: Ints, scored: Ints) -> Batch:
        """The batch of `step`. token_rows int32 [slots, max_model_len + 1], block_rows int32 [G, slots, max_blocks],
        block_counts int32 [slots] and scored int32 [slots, 2] are the executor's state after the step's changes.

        Rows that tokens are drawn from come first, then those of positions scored[slot, 0] .. scored[slot, 1] - 1:
        they report the token after them.
        """
        batch, slots, total = self._batch, step.slots, step.num_tokens_total
        seqs = len(slots)
        batch.num_tokens, batch.num_seqs = total, seqs
        np.add(step.num_computed, step.num_tokens, out=batch.context_len[:seqs])
        if total == seqs:  # pure decode: one token each
            positions, token_slots = step.num_computed, slots
            batch.query_start[: seqs + 1] = self._counting[: seqs + 1]
            batch.token_seq[:seqs] = self._counting[:seqs]
        else:
            step.num_tokens.cumsum(out=batch.query_start[1 : seqs + 1])
            token_seq = self._counting[:seqs].repeat(step.num_tokens)
            first = step.num_computed - batch.query_start[:seqs]
            positions, token_slots = self._counting[:total] + first[token_seq], slots[token_seq]
            batch.token_seq[:total] = token_seq
        batch.positions[0, :total] = positions
        batch.tokens[:total] = token_rows[token_slots, positions]
        blocks = int(block_counts[slots].max())
        for group, rows in enumerate(block_rows):
            batch.block_table[group, :seqs, :blocks] = rows[slots, :blocks]
        sampled = step.sample.nonzero()[0]
        batch.num_outputs = outputs = len(sampled)
        batch.output_rows[:outputs] = batch.query_start[sampled + 1] - 1
        batch.output_slots[:outputs] = slots[sampled]
        batch.output_targets[:outputs] = -1
        first = np.maximum(step.num_computed, scored[slots, 0])
        last = np.minimum(batch.context_len[:seqs], scored[slots, 1])
        for row in (first < last).nonzero()[0].tolist():
            self._score(row, int(slots[row]), int(first[row]), int(last[row]), token_rows)
        return batch

    def _score(self, sequence: int, slot: int, first: int, last: int, token_rows: Ints) -> None:
        """Ask the rows of positions first .. last - 1 of a sequence for the log-probability of the token after them."""
        batch = self._batch
        at = slice(batch.num_outputs, batch.num_outputs + last - first)
        begin = int(batch.query_start[sequence + 1]) - int(batch.context_len[sequence])  # row of position 0
        batch.output_rows[at] = self._counting[: last - first] + (begin + first)
        batch.output_slots[at] = slot
        batch.output_targets[at] = token_rows[slot, first + 1 : last + 1]
        batch.num_outputs += last - first
