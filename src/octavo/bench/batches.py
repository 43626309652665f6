"""The arrays of a step of any shape, without an engine: what a plan is measured with."""

from __future__ import annotations

import numpy as np

from octavo.backends.ops import Batch, Ints
from octavo.backends.work import StepLoad


def batch_of(load: StepLoad, page_size: int, pages: Ints, vocab: int) -> Batch:
    """A batch with the chunks of `load`, tokens 7, 108, 209, ... below `vocab`, and no page shared.

    pages int32 [P] are handed out in order; row r of the outputs is the last token of sequence r, sampled in slot r.
    """
    new = np.array([chunk.new for chunk in load.chunks], np.int32)
    context = np.array([chunk.context for chunk in load.chunks], np.int32)
    total, seqs = int(new.sum()), len(new)
    query_start = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    token_seq = np.repeat(np.arange(seqs, dtype=np.int32), new)
    positions = np.arange(total, dtype=np.int32) + (context - new - query_start[:-1])[token_seq]
    return Batch(
        num_tokens=total,
        num_seqs=seqs,
        num_outputs=load.outputs,
        tokens=(np.arange(total, dtype=np.int32) * 101 + 7) % vocab,
        positions=positions.astype(np.int32)[None],
        token_seq=token_seq,
        query_start=query_start,
        context_len=context,
        block_table=_block_table(context, page_size, pages),
        output_rows=query_start[1 : load.outputs + 1] - 1,
        output_slots=np.arange(load.outputs, dtype=np.int32),
        output_targets=np.full(load.outputs, -1, np.int32),
    )


def _block_table(context: Ints, page_size: int, pages: Ints) -> Ints:
    blocks = -(-context // page_size)
    table = np.full((1, len(context), int(blocks.max())), -1, np.int32)
    ends = np.cumsum(blocks)
    for row, (end, count) in enumerate(zip(ends.tolist(), blocks.tolist(), strict=True)):
        table[0, row, :count] = pages[end - count : end]
    return table
