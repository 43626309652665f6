"""Runs in transformers' environment: MODEL PORT BATCH THREADS.

Static batches, as `generate` makes them: what waits when a batch begins runs together, left-padded, until all have
ended. The decode loop is written out because `generate` streams single sequences only; rows that have ended are dropped
from the batch's output, not from its computation.
"""

from __future__ import annotations

import sys
import time

import torch
from sse_server import Emit, Inbox, Job, Piece, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

GATHER_S = 0.02  # so that requests which were sent together are a batch


class Batches:
    """At most `batch` jobs at a time."""

    def __init__(self, folder: str, batch: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._batch = batch

    def run(self, inbox: Inbox[Job], emit: Emit) -> None:
        while True:
            jobs = [inbox.get()]
            if self._batch > 1:
                time.sleep(GATHER_S)
            while len(jobs) < self._batch and not inbox.empty():
                jobs.append(inbox.get())
            self._generate(jobs, emit)

    @torch.inference_mode()
    def _generate(self, jobs: list[Job], emit: Emit) -> None:
        inputs = self._tokenizer([job.prompt for job in jobs], return_tensors="pt", padding=True)
        tokens, mask = inputs.input_ids, inputs.attention_mask
        for job, count in zip(jobs, mask.sum(dim=1).tolist(), strict=True):
            job.prompt_tokens = count
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = None
        for step in range(1, max(job.max_tokens for job in jobs) + 1):
            output = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            tokens = output.logits[:, -1:].argmax(dim=-1)
            mask = torch.cat([mask, mask.new_ones(len(jobs), 1)], dim=1)
            positions = positions[:, -1:] + 1
            texts = self._tokenizer.batch_decode(tokens)
            emit(
                Piece(job, text or " ", 1, step == job.max_tokens)
                for job, text in zip(jobs, texts, strict=True)
                if step <= job.max_tokens
            )


def main() -> None:
    folder, port, batch, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    serve(int(port), Batches(folder, int(batch)).run)


if __name__ == "__main__":
    main()
