"""An engine process without a model: the real worker loop around sequences that say their own prompt again.

Output token i of a sequence is prompt[i % P]: a test decides by its prompt what comes out. It ends with STOP at EOS or
at one of stop_token_ids, and with LENGTH at max_tokens. Its log-probability is -0.5; with a temperature of 2 it is
-(choice + 1) / 8 instead. That of prompt token p is -p / 64, and the alternatives to it are the ids after it. Some
seeds are hooks, applied when the sequence is about to get its token number `HOOK_AT` (or its first one).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace

import numpy as np

from octavo import ipc
from octavo.config import EngineConfig
from octavo.engine.request import Finish, PromptLogprobs, Request, StepOutputs
from octavo.runtime import worker

HOOK_AT = 3
DIE = -101  # SIGKILL itself at token HOOK_AT
DIE_FIRST = -102  # ... before the first token
RAISE = -103  # an exception inside the step
HANG = -104  # the step never returns
ERROR = -105  # this sequence ends with Finish.ERROR
ERROR_FIRST = -106
STOP = -107  # SIGSTOP itself
REFUSE = -108  # engine.add raises


@dataclass
class Sequence:
    request: Request
    choice: int
    output: list[int] = field(default_factory=list)


class FakeEngine:
    def __init__(self, config: EngineConfig, options: argparse.Namespace) -> None:
        self._options = options
        self._max_num_seqs = config.max_num_seqs
        self._max_model_len = config.max_model_len or 512
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._seen: set[bytes] = set()
        self._cached: dict[int, int] = {}
        self._counts = dict.fromkeys(("steps", "prompt", "cached", "generated", "aborted"), 0)
        self._forward_s = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        if request.seed == REFUSE:
            raise ValueError("the engine refuses this request")
        key = repr((request.salt, request.prompt.tolist())).encode()
        self._cached[request.request_id] = len(request.prompt) - 1 if key in self._seen else 0
        self._seen.add(key)
        self._counts["prompt"] += len(request.prompt)
        self._counts["cached"] += self._cached[request.request_id]
        for choice in range(request.params.sequences):
            self._waiting.append(Sequence(request, request.choice + choice))

    def abort(self, request_id: int, choice: int = -1) -> None:
        def gone(sequence: Sequence) -> bool:
            return sequence.request.request_id == request_id and choice in (-1, sequence.choice)

        for group in (self._waiting, self._running):
            self._counts["aborted"] += sum(map(gone, group))
            group[:] = [sequence for sequence in group if not gone(sequence)]

    def step(self) -> StepOutputs | None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            self._running.append(self._waiting.pop(0))
        started = time.monotonic()
        time.sleep(self._options.step_ms / 1000)
        prompt = self._prompt_logprobs()
        rows = [self._advance(sequence) for sequence in self._running]
        self._running = [s for s, row in zip(self._running, rows, strict=True) if row[1] == Finish.RUNNING]
        self._forward_s += time.monotonic() - started
        self._counts["steps"] += 1
        self._counts["generated"] += len(rows)
        return replace(self._outputs(rows), prompt=prompt)

    def _advance(self, sequence: Sequence) -> tuple[int, Finish, Sequence]:
        self._hook(sequence)
        request, output = sequence.request, sequence.output
        if (request.seed == ERROR and len(output) == HOOK_AT) or request.seed == ERROR_FIRST:
            return -1, Finish.ERROR, sequence
        token = int(request.prompt[len(output) % len(request.prompt)])
        output.append(token)
        params = request.params
        ends = token in params.stop_token_ids or (token == self._options.eos and not params.ignore_eos)
        if ends and len(output) > params.min_tokens:
            return token, Finish.STOP, sequence
        full = len(request.prompt) + len(output) >= self._max_model_len
        if full or len(output) == params.max_tokens:
            return token, Finish.LENGTH, sequence
        return token, Finish.RUNNING, sequence

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        """Of requests whose first choice is about to draw its first token."""
        asked = [
            s for s in self._running if s.choice == 0 and not s.output and s.request.params.prompt_logprobs is not None
        ]
        if not asked:
            return None
        width = max(s.request.params.prompt_logprobs or 0 for s in asked)
        ids = [
            (s.request.request_id, p, int(s.request.prompt[p])) for s in asked for p in range(1, len(s.request.prompt))
        ]
        positions = np.array([p for _, p, _ in ids], np.int32)
        tokens = np.array([token for _, _, token in ids], np.int32)
        return PromptLogprobs(
            request_ids=np.array([request_id for request_id, _, _ in ids], np.int64),
            positions=positions,
            logprobs=(-positions / 64).astype(np.float32),
            top_ids=tokens[:, None] + np.arange(1, width + 1, dtype=np.int32),
            top_logprobs=np.repeat((-positions / 64).astype(np.float32)[:, None] - 1, width, 1),
        )

    def _hook(self, sequence: Sequence) -> None:
        seed, length = sequence.request.seed, len(sequence.output)
        if (seed == DIE and length == HOOK_AT) or seed == DIE_FIRST:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == RAISE and length == HOOK_AT:
            raise RuntimeError("a step failed on purpose")
        if seed == HANG and length == HOOK_AT:
            time.sleep(1e6)
        if seed == STOP and length == HOOK_AT:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _outputs(self, rows: list[tuple[int, Finish, Sequence]]) -> StepOutputs:
        width = max((s.request.params.logprobs or 0 for _, _, s in rows), default=0)
        asked = any(s.request.params.logprobs is not None for _, _, s in rows)
        tokens = np.array([token for token, _, _ in rows], np.int32)
        return StepOutputs(
            request_ids=np.array([s.request.request_id for _, _, s in rows], np.int64),
            choices=np.array([s.choice for _, _, s in rows], np.int32),
            tokens=tokens,
            finish=np.array([finish for _, finish, _ in rows], np.uint8),
            cached_tokens=np.array([self._cached[s.request.request_id] for _, _, s in rows], np.int32),
            queued_s=np.full(len(rows), 0.25, np.float32),
            logprobs=np.array([self._logprob(s) for _, _, s in rows], np.float32) if asked else None,
            top_ids=np.repeat(tokens[:, None], width, 1) + np.arange(width, dtype=np.int32) if asked else None,
            top_logprobs=-0.5 - np.tile(np.arange(width, dtype=np.float32), (len(rows), 1)) if asked else None,
        )

    @staticmethod
    def _logprob(sequence: Sequence) -> float:
        return -(sequence.choice + 1) / 8 if sequence.request.params.temperature == 2 else -0.5

    def ready(self, generation: int) -> ipc.Ready:
        return ipc.Ready(generation, self._max_model_len, 1 << 20, 1000, 8, 64, "fp_fake", {"backend": "fake"})

    def stats(self, generation: int) -> ipc.Stats:
        counts = self._counts
        held = len(self._running)
        return ipc.Stats(
            generation=generation,
            running=held,
            waiting=len(self._waiting),
            pages_total=1000,
            pages_held=held,
            pages_cached=0,
            slots_held=8 * held,
            slots_filled=7 * held,
            waste_ratio_mean=0.125,
            steps=counts["steps"],
            preemptions=0,
            prompt_tokens=counts["prompt"],
            cached_tokens=counts["cached"],
            computed_tokens=counts["prompt"] - counts["cached"],
            generated_tokens=counts["generated"],
            aborted=counts["aborted"],
            forward_s=self._forward_s,
            step_overhead_s=0.0,
            busy_s=self._forward_s,
            step_tokens=[counts["steps"], *[0] * len(ipc.STEP_TOKENS_BOUNDS)],
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--eos", type=int, default=0)
    parser.add_argument("--fail-load", default="", help="a sentence to fail with")
    parser.add_argument("--die-from", type=int, default=0, help="generations from this one on die while loading")
    options = parser.parse_args()
    worker.belong_to_the_front()

    def build(config: EngineConfig, on_phase: worker.OnPhase) -> FakeEngine:
        on_phase("resolve", 0.0)
        if options.fail_load:
            raise ValueError(options.fail_load)
        if 0 < options.die_from <= options.generation:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(options.load_s)
        on_phase("pack", options.load_s)
        return FakeEngine(config, options)

    sys.exit(worker.serve(worker.Channel(socket.socket(fileno=options.fd), options.generation), build))


if __name__ == "__main__":
    main()
