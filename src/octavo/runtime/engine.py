"""The engine: one model's scheduler and executor, and the time that passes in and around its forward passes."""

from __future__ import annotations

import sys
import time
import traceback
from bisect import bisect_left
from dataclasses import replace

from octavo import ipc
from octavo.engine.pages import MemoryReport
from octavo.engine.request import Request, StepOutputs
from octavo.engine.scheduler import Scheduler
from octavo.engine.stats import EngineStats
from octavo.runtime.executor import Executor, StepError
from octavo.runtime.facts import EngineFacts
from octavo.runtime.record import RecordingScheduler


class Engine:
    """Requests in, tokens out, one step at a time, on the calling thread.

    facts: what was built (sizes, fingerprint, model). An engine is busy while some sequence has not ended; the part of
    that time outside `plan.run` is the step overhead.
    """

    def __init__(self, scheduler: Scheduler | RecordingScheduler, executor: Executor, facts: EngineFacts) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.facts = facts
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._step_tokens = [0] * (len(ipc.STEP_TOKENS_BOUNDS) + 1)

    @property
    def busy(self) -> bool:
        """Some sequence waits or runs."""
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError (ParamError) for one that can't be served.

        What K and V are stored as is a part of the salt: a page is found only by those who would read it alike.
        """
        self.scheduler.add(replace(request, salt=(*request.salt, ("kv", self.facts.kv_dtype))))
        self._account()

    def abort(self, request_id: int, choice: int = -1) -> None:
        """End a request, or one choice of it, without further output; unknown ids are ignored."""
        self.scheduler.abort(request_id, choice)
        self._account()

    def step(self) -> StepOutputs | None:
        """One forward pass; None when there was nothing to run or it brought nobody anything.

        A pass that fails ends the sequences it carried with Finish.ERROR; the others go on. The outputs' message says
        why, and the traceback is on standard error.
        """
        step = self.scheduler.schedule(time.monotonic())
        if step is None:
            if self.busy:  # the caller would turn in circles for ever
                raise RuntimeError("the scheduler has work but no step for it; this is a bug in Octavo")
            return None
        self._step_tokens[bisect_left(ipc.STEP_TOKENS_BOUNDS, step.num_tokens_total)] += 1
        try:
            result = self.executor.submit(step).result()
        except StepError as error:
            traceback.print_exc(file=sys.stderr)
            outputs = self.scheduler.fail(step, f"A forward pass failed, and this request with it: {error}.")
        except BaseException:  # Ctrl-C: the step can't be taken up again, but the engine goes on
            self.scheduler.fail(step)
            raise
        else:
            outputs = self.scheduler.apply(step, result, time.monotonic())
        self._account()
        return None if outputs.empty else outputs

    def stats(self, generation: int = 0) -> ipc.Stats:
        """Gauges of this moment and totals since start."""
        self._account()
        stats: EngineStats = self.scheduler.stats()
        return ipc.Stats(
            generation=generation,
            running=stats.running,
            waiting=stats.waiting,
            pages_total=stats.pages_total,
            pages_held=stats.pages_held,
            pages_cached=stats.pages_cached,
            slots_held=stats.slots_held,
            slots_filled=stats.slots_filled,
            waste_ratio_mean=stats.waste_ratio_mean,
            steps=stats.steps,
            preemptions=stats.preemptions,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            computed_tokens=stats.computed_tokens,
            generated_tokens=stats.generated_tokens,
            aborted=stats.aborted,
            forward_s=stats.forward_s,
            step_overhead_s=max(0.0, self._busy_s - stats.forward_s),
            busy_s=self._busy_s,
            step_tokens=list(self._step_tokens),
        )

    def ready(self, generation: int) -> ipc.Ready:
        """What the front process is told once the engine can serve."""
        facts = self.facts
        return ipc.Ready(
            generation=generation,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab,
            num_pages=facts.num_pages,
            page_size=facts.page_size,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            fingerprint=facts.fingerprint,
            kv_groups=facts.kv_groups,
            facts=facts.texts,
            sampling_defaults=facts.defaults.given,
            sampling_source=facts.defaults.source,
        )

    def memory_report(self) -> MemoryReport:
        """Every page at this moment (Scheduler.memory_report)."""
        return self.scheduler.memory_report()

    def _account(self) -> None:
        """Add the time since the last call to `busy_s` if work was there all along."""
        now = time.perf_counter()
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
        self._busy_since = now if self.busy else None
