"""The scheduler under random arrivals, aborts and shortage, on an executor that checks every read.

Promised: budgets hold, everyone ends with the tokens that it would have got alone, the first in rank is never preempted
and always progresses, and in the end every page is free or cached.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.fake_executor import FakeExecutor, draw

from octavo.engine.groups import KvGroups
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish, Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.engine.sequence import Sequence
from octavo.engine.step import Step, StepResult

EOS = frozenset({3, 5})
MAX_LEN = 48


def next_token(tokens: np.ndarray, seed: int, choice: int) -> int:
    """Few different tokens, so that ends and equal continuations are common."""
    return draw(tokens, seed, choice) % 12


def answer(request: Request, choice: int) -> tuple[list[int], Finish]:
    """What a request gives when it is alone."""
    params, tokens = request.params, [*request.prompt.tolist(), *request.output.tolist()]
    room = min(MAX_LEN - len(request.prompt), params.max_tokens or MAX_LEN)
    made = list(request.output)
    while True:
        token = next_token(np.array(tokens, np.int64), request.seed, choice)
        if token in EOS and len(made) < params.min_tokens:
            token = next(t for t in range(token + 1, 1000) if t not in EOS)
        tokens.append(token)
        made.append(token)
        stops = token in params.stop_token_ids or (token in EOS and not params.ignore_eos)
        if stops and len(made) >= params.min_tokens:
            return made[len(request.output) :], Finish.STOP
        if len(made) >= room:
            return made[len(request.output) :], Finish.LENGTH


#: Prompts are heads of these, so that they share prefixes of any length.
BASES = [[(i * kind) % 5 % 2 for i in range(MAX_LEN)] for kind in (1, 2)]


@st.composite
def requests(draw_from: st.DrawFn) -> dict[str, object]:
    prompt = draw_from(st.sampled_from(BASES))[: draw_from(st.integers(1, 40))]
    params = draw_from(
        st.sampled_from(
            [
                {"max_tokens": 30, "ignore_eos": True},
                {"max_tokens": 30, "ignore_eos": True, "n": 3},
                {"max_tokens": None, "ignore_eos": True},
                {"max_tokens": None},
                {"max_tokens": 1, "n": 2},
                {"max_tokens": 9, "min_tokens": 7, "stop_token_ids": (8,)},
                {"max_tokens": 8, "stop_token_ids": (7, 9), "ignore_eos": True},
            ]
        )
    )
    resumed = params.get("n", 1) == 1 and params["max_tokens"] != 1 and draw_from(st.booleans())
    return {
        "prompt": np.array(prompt, np.int32),
        "output": np.array([6, 8, 9] if resumed else [], np.int32),
        "params": SamplingParams(**params),  # type: ignore[arg-type]
        "seed": draw_from(st.integers(0, 1)),
        "priority": draw_from(st.integers(0, 1)),
        "salt": (("tenant", draw_from(st.sampled_from("aab"))),),
    }


class SchedulerMachine(RuleBasedStateMachine):
    """`depth` steps may be under way at once: 1 is today's loop, 2 schedules a step before the last one's tokens."""

    @initialize(
        depth=st.integers(1, 2),
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        prefix_caching=st.sampled_from([True, True, False]),
        page_size=st.sampled_from([4, 8, 1]),
        spare_pages=st.sampled_from([2, 0, 8, 20]),
        batched_tokens=st.sampled_from([16, 7, 2]),
        windows=st.sampled_from([(0,), (0,), (9,), (0, 6), (5, 0, 5, 20), (1,)]),
        crowd=st.lists(requests(), min_size=3, max_size=8),
    )
    def start(
        self,
        depth: int,
        policy: str,
        prefix_caching: bool,
        page_size: int,
        spare_pages: int,
        batched_tokens: int,
        windows: tuple[int, ...],
        crowd: list[dict[str, object]],
    ) -> None:
        self.config = SchedulerConfig(
            max_model_len=MAX_LEN,
            max_num_seqs=5,
            max_num_batched_tokens=batched_tokens,
            page_size=page_size,
            num_pages=KvGroups(page_size, windows).pages_for(MAX_LEN) + spare_pages,
            eos_ids=EOS,
            prefix_caching=prefix_caching,
            policy=policy,
            prefix_key=b"0" * 16,
            windows=windows,
        )
        self.scheduler = Scheduler(self.config)
        self.executor = FakeExecutor(self.config.num_pages, page_size, 5, batched_tokens, EOS, next_token)
        self.executor.windows = windows
        self.depth = depth
        self.passed_over: Sequence | None = None
        self.flights: deque[tuple[Step, StepResult]] = deque()
        self.asked: dict[int, Request] = {}
        self.aborted: set[tuple[int, int]] = set()
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.finish: dict[tuple[int, int], Finish] = {}
        self.now_s = 0.0
        for fields in crowd:
            self.add_request(fields)

    def add_request(self, fields: dict[str, object]) -> None:
        request = Request(request_id=len(self.asked), arrival_s=self.now_s, **fields)  # type: ignore[arg-type]
        self.asked[request.request_id] = request
        self.scheduler.add(request)

    @rule(fields=requests(), times=st.integers(1, 3))
    def add(self, fields: dict[str, object], times: int) -> None:
        for _ in range(times):
            self.add_request(fields)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(max(0, len(self.asked) - 8), len(self.asked) - 1))
        choice = data.draw(st.integers(-1, self.asked[request_id].params.n - 1))
        self.scheduler.abort(request_id, choice)
        choices = range(self.asked[request_id].params.n) if choice < 0 else [choice]
        self.aborted |= {(request_id, c) for c in choices} - set(self.finish)

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.schedule()

    @rule()
    def schedule(self) -> None:
        if len(self.flights) == self.depth:
            self.apply()
        before = {s: s.rank for s in self.scheduler._slots.running()}
        probe = self.scheduler._cost.probe_due
        step = self.scheduler.schedule(self.now_s)
        if step is None:
            assert self.flights or not self.scheduler.has_work, "work is left but nothing is scheduled"
            return self.apply()
        kept = {s: s.rank for s in self.scheduler._slots.running() if s in before}
        lost = [rank for s, rank in before.items() if s not in kept]
        assert not lost or (kept and min(lost) > max(kept.values())), "one earlier in rank was preempted"
        if not self.flights and kept:
            first = min(kept, key=lambda s: s.rank)
            if first.slot in step.slots:
                self.passed_over = None
            else:  # only while a step of decodes is timed, and never twice running
                assert probe, "the first in rank does not progress"
                assert self.passed_over is not first, "the first in rank is passed over twice"
                assert step.num_tokens_total == len(step.slots), "a step that is timed carries more than decodes"
                self.passed_over = first
        self.flights.append((step, self.executor.execute(step)))
        self.now_s += 0.01

    @rule()
    def apply(self) -> None:
        if not self.flights:
            return
        step, result = self.flights.popleft()
        outputs = self.scheduler.apply(step, result, self.now_s)
        for request_id, choice, token, finish in zip(
            outputs.request_ids.tolist(),
            outputs.choices.tolist(),
            outputs.tokens.tolist(),
            outputs.finish.tolist(),
            strict=True,
        ):
            key = (request_id, choice)
            assert key not in self.finish, f"{key} gave a token after its end"
            assert key not in self.aborted, f"{key} gave a token after its abort"
            self.tokens.setdefault(key, []).append(token)
            if finish:
                self.finish[key] = Finish(finish)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.schedule()
        while self.flights:
            self.apply()
        assert not self.scheduler.has_work, "someone never ends"
        for request_id, request in self.asked.items():
            for choice in range(request.params.n):
                key = (request_id, choice)
                tokens, finish = answer(request, choice)
                if key in self.aborted:
                    assert self.tokens.get(key, []) == tokens[: len(self.tokens.get(key, []))]
                else:
                    assert self.tokens[key] == tokens
                    assert self.finish[key] == finish
        self.scheduler.check()
        stats = self.scheduler.stats()
        assert stats.pages_held == stats.running == stats.waiting == 0
        assert stats.generated_tokens == sum(map(len, self.tokens.values()))


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestSchedulerMachineLong(SchedulerMachine.TestCase):
    settings = settings(max_examples=2000, stateful_step_count=60, deadline=None)
