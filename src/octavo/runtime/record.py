"""Records what a scheduler was told and what it decided, so that the run can be replayed step for step. Never text.

Tokens are not written. In their place stand *marks*: the mark of position p is a keyed hash of all tokens up to p. Two
sequences have equal marks exactly as far as they begin alike, which is all that prefix sharing depends on, whatever the
page size. The key is drawn for each recording and kept nowhere. Salts are hashed with it as well.

The file is JSON, one object a line: a header for each start of the engine, then adds, aborts and steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.pages import MemoryReport, PagePool
from octavo.engine.params import ParamError
from octavo.engine.request import Request, StepOutputs
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.stats import EngineStats
from octavo.engine.step import Step, StepResult

VERSION = 1
#: Stands where a sequence ended without a token; marks are never 0.
NO_MARK = 0
_FLUSH_EVENTS = 64
_logger = logging.getLogger(__name__)


class _Marks:
    """Marks of sequences that grow: int in [1, 2^31)."""

    def __init__(self, key: bytes) -> None:
        self._base = hashlib.blake2b(key=key, digest_size=8)
        self._states: dict[tuple[int, int], Any] = {}

    def start(self, request_id: int, choices: range, tokens: list[int]) -> list[int]:
        """The marks of a request's known tokens; its choices go on from there."""
        state, marks = self._base.copy(), []
        for token in tokens:
            marks.append(self._push(state, token))
        for choice in choices:
            self._states[request_id, choice] = state.copy()
        return marks

    def next(self, request_id: int, choice: int, token: int) -> int:
        return self._push(self._states[request_id, choice], token)

    def end(self, request_id: int, choice: int) -> None:
        self._states.pop((request_id, choice), None)

    @staticmethod
    def _push(state: Any, token: int) -> int:
        state.update(token.to_bytes(4, "little", signed=True))
        return int.from_bytes(state.digest()[:4], "little") % (2**31 - 1) + 1


def delta(step: Step) -> dict[str, Any]:
    """All that a scheduler decides in a step, without tokens."""
    return {
        "slots": step.slots.tolist(),
        "tokens": step.num_tokens.tolist(),
        "at": step.num_computed.tolist(),
        "sample": step.sample.astype(int).tolist(),
        "released": list(step.released),
        "starts": [[start.slot, len(start.tokens), start.pages.tolist()] for start in step.starts],
        "appended": [step.append_slots.tolist(), step.append_pages.tolist()],
        "copies": step.copies.tolist(),
    }


class RecordingScheduler:
    """A scheduler that writes down every call. It stands where a Scheduler stands in the engine.

    path is appended to, since a restarted engine goes on with the same file. Raises OSError when it can't be opened.
    """

    def __init__(self, config: SchedulerConfig, path: Path) -> None:
        self.inner = make_scheduler(config)
        self._key = secrets.token_bytes(32)
        self._marks = _Marks(self._key)
        self._choices: dict[int, set[int]] = {}
        try:
            self._file: TextIO | None = path.open("a", encoding="utf-8")
        except OSError as error:
            raise OSError(f"record is {str(path)!r}; the file cannot be opened: {error.strerror}.") from error
        self._path = path
        self._since_flush = 0
        known = {name: value for name, value in asdict(config).items() if name not in ("eos_ids", "prefix_key")}
        self._write({"octavo_record": VERSION, "config": known}, flush=True)

    @property
    def config(self) -> SchedulerConfig:
        return self.inner.config

    @property
    def pool(self) -> PagePool:
        return self.inner.pool

    @property
    def has_work(self) -> bool:
        return self.inner.has_work

    def add(self, request: Request) -> None:
        """Raises ParamError, also for a beam search: what it does depends on log-probabilities, not on marks."""
        if request.params.use_beam_search:
            raise ParamError("use_beam_search", "use_beam_search is true, but a run with --record can't hold searches.")
        self.inner.add(request)
        params = request.params
        choices = range(request.choice, request.choice + params.sequences)
        marks = self._marks.start(request.request_id, choices, request.prompt.tolist() + request.output.tolist())
        self._choices[request.request_id] = set(choices)
        self._write(
            {
                "add": request.request_id,
                "arrival_s": request.arrival_s,
                "prompt": marks[: len(request.prompt)],
                "output": marks[len(request.prompt) :],
                "max_tokens": params.max_tokens,
                "min_tokens": params.min_tokens,
                "n": params.sequences,
                "choice": request.choice,
                "priority": request.priority,
                "salt": [[kind, self._hidden(value)] for kind, value in request.salt],
                **({} if params.prompt_logprobs is None else {"scores_prompt": True}),
            }
        )

    def abort(self, request_id: int, choice: int = -1) -> int:
        ended = self.inner.abort(request_id, choice)
        if ended:
            self._write({"abort": request_id, "choice": choice})
            self._forget(request_id, self._choices.get(request_id, set()) if choice < 0 else {choice})
        return ended

    def schedule(self, now_s: float) -> Step | None:
        step = self.inner.schedule(now_s)
        if step is not None:
            self._write({"step": step.step_id, "now_s": now_s, **delta(step)})
        return step

    def apply(self, step: Step, result: StepResult, now_s: float) -> StepOutputs:
        outputs = self.inner.apply(step, result, now_s)
        marks = []
        columns = (outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish)
        for request_id, choice, token, finish in zip(*(column.tolist() for column in columns), strict=True):
            marks.append(self._marks.next(request_id, choice, token) if token >= 0 else NO_MARK)
            if finish:
                self._forget(request_id, {choice})
        self._write(
            {
                "applied": step.step_id,
                "now_s": now_s,
                "forward_s": result.forward_s,
                "total_s": result.total_s,
                "requests": outputs.request_ids.tolist(),
                "choices": outputs.choices.tolist(),
                "marks": marks,
                "finish": outputs.finish.tolist(),
                **({"refused": sorted(result.refused)} if result.refused else {}),
            },
            flush=not self.inner.has_work,
        )
        return outputs

    def fail(self, step: Step, message: str = "") -> StepOutputs:
        outputs = self.inner.fail(step, message)
        self._write({"failed": step.step_id})
        for request_id, choice in zip(outputs.request_ids.tolist(), outputs.choices.tolist(), strict=True):
            self._forget(request_id, {choice})
        return outputs

    def stats(self) -> EngineStats:
        return self.inner.stats()

    def memory_report(self) -> MemoryReport:
        return self.inner.memory_report()

    def _forget(self, request_id: int, choices: set[int]) -> None:
        left = self._choices.get(request_id)
        if left is None:
            return
        for choice in list(choices & left):
            self._marks.end(request_id, choice)
            left.discard(choice)
        if not left:
            del self._choices[request_id]

    def _hidden(self, text: str) -> str:
        return hashlib.blake2b(text.encode(errors="surrogatepass"), key=self._key, digest_size=8).hexdigest()

    def _write(self, event: dict[str, Any], flush: bool = False) -> None:
        """A full disk ends the recording, and nothing else."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            self._since_flush += 1
            if flush or self._since_flush >= _FLUSH_EVENTS:
                self._file.flush()
                self._since_flush = 0
        except OSError as error:
            _logger.error("the recording %s has ended, it can't be written to: %s", self._path, error.strerror)
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()
