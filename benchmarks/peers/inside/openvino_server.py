"""Runs in OpenVINO GenAI's environment: MODEL PORT BATCHED_TOKENS PREFIX_CACHING CACHE_GIB."""

from __future__ import annotations

import sys
from functools import lru_cache

import openvino_genai
from sse_server import Emit, Inbox, Job, Piece, serve


class Pipeline:
    """Steps the pipeline while it has requests, and waits for jobs while it has none."""

    def __init__(self, model: str, batched_tokens: int, prefix_caching: bool, cache_gib: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = batched_tokens
        scheduler.enable_prefix_caching = prefix_caching
        scheduler.cache_size = cache_gib
        scheduler.max_num_seqs = 256
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._tokenizer = self._pipeline.get_tokenizer()
        self._running: list[tuple[Job, openvino_genai.GenerationHandle]] = []
        self._ids = 0

    def run(self, inbox: Inbox[Job], emit: Emit) -> None:
        while True:
            while not self._running or not inbox.empty():
                self._admit(inbox.get())
            self._pipeline.step()
            pieces = [piece for job, handle in self._running for piece in self._read(job, handle)]
            ended = {id(piece.job) for piece in pieces if piece.last}
            self._running = [entry for entry in self._running if id(entry[0]) not in ended]
            emit(pieces)

    def _admit(self, job: Job) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = job.max_tokens
        config.ignore_eos = True
        config.do_sample = False
        prompt = self._tokenizer.encode(job.prompt, add_special_tokens=True).input_ids
        job.prompt_tokens = prompt.shape[1]
        self._ids += 1
        self._running.append((job, self._pipeline.add_request(self._ids, prompt, config)))

    def _read(self, job: Job, handle: openvino_genai.GenerationHandle) -> list[Piece]:
        if not handle.can_read():
            return []
        (output,) = handle.read().values()
        ids = output.generated_ids
        last = output.finish_reason != openvino_genai.GenerationFinishReason.NONE
        return [Piece(job, "".join(map(self._text, ids)), len(ids), last)]

    @lru_cache(maxsize=1 << 17)  # noqa: B019 - there is one pipeline
    def _text(self, token: int) -> str:
        """A token's own text, or a space: each piece must carry some."""
        return str(self._tokenizer.decode([token])) or " "


def main() -> None:
    model, port, batched_tokens, prefix_caching, cache_gib = sys.argv[1:]
    pipeline = Pipeline(model, int(batched_tokens), bool(int(prefix_caching)), int(cache_gib))
    serve(int(port), pipeline.run)


if __name__ == "__main__":
    main()
