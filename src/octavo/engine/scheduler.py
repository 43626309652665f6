"""Requests in, steps out: which sequences the next forward pass carries, and what its result means for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from octavo.engine.block_table import BlockTable
from octavo.engine.budget import StepBudget
from octavo.engine.pages import MemoryReport, PagePool
from octavo.engine.params import ParamError
from octavo.engine.policies import WaitingQueue, rank_of
from octavo.engine.request import Finish, Request, StepOutputs
from octavo.engine.sequence import Sequence
from octavo.engine.slots import Bools, Ints, SlotTable
from octavo.engine.stats import Counters, EngineStats
from octavo.engine.step import SequenceStart, Step, StepResult
from octavo.engine.step_builder import Flight, StepBuilder


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes in tokens unless named otherwise; see config.EngineConfig for their meaning.

    target_itl_s: longest gap between two tokens of a running stream that prefill may cause; 0: relative to the gap
    without prefill. prefix_key: 16 to 64 secret bytes for the prefix index; None draws fresh ones. ageing_s: under the
    priority policy one step of priority weighs as much as so many seconds of waiting.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    num_pages: int
    eos_ids: frozenset[int] = frozenset()
    prefix_caching: bool = True
    policy: str = "fcfs"
    target_itl_s: float = 0.0
    prefix_key: bytes | None = None
    ageing_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "page_size", "num_pages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.policy not in ("fcfs", "priority", "fair"):
            raise ValueError(f"policy is {self.policy!r}; it must be fcfs, priority or fair")
        if self.num_pages * self.page_size < self.max_model_len:
            raise ValueError(
                f"the pool holds {self.num_pages * self.page_size} tokens, less than one sequence of max_model_len "
                f"{self.max_model_len}; lower max_model_len or give the pool more memory"
            )


class Scheduler:
    """Decides step after step. A deterministic function of what it is told: it has no clock and no random numbers.

    Every sequence that can decode does so in every step; what is left of the step's budget goes to chunks of running
    prefills, then to waiting sequences. `schedule` may be called again before the last step's result is applied.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = PagePool(config.num_pages, config.page_size)
        # One token of every step is left for a prefill, so that it can't be starved by decodes.
        self._max_running = min(config.max_num_seqs, max(1, config.max_num_batched_tokens - 1))
        self._slots = SlotTable(config.max_num_seqs, config.max_model_len, config.eos_ids)
        self._waiting = WaitingQueue()
        self._requests: dict[int, dict[int, Sequence]] = {}
        self._released: list[int] = []
        self._flights: deque[Flight] = deque()
        self._counters = Counters()
        self._step_id = 0
        self._serial = 0

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises ParamError when its prompt (and output so far) leaves no room for a token."""
        known = len(request.prompt) + len(request.output)
        if len(request.prompt) < 1:
            raise ParamError("prompt", "the prompt is empty; it must have at least 1 token.")
        if len(request.prompt) >= self.config.max_model_len:
            raise ParamError(
                "prompt",
                f"the prompt has {len(request.prompt)} tokens; with a context of {self.config.max_model_len} it can "
                f"have at most {self.config.max_model_len - 1}. Shorten it.",
            )
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        params = request.params
        limit = self.config.max_model_len
        if params.max_tokens is not None:
            limit = min(limit, len(request.prompt) + params.max_tokens)
        if known >= limit:
            raise ParamError("output", f"{len(request.output)} tokens of output are its limit already; nothing to do.")
        if len(request.output) and params.n != 1:
            raise ValueError(f"a request with output so far must have n = 1, not {params.n}")
        choices = {}
        for choice in range(request.choice, request.choice + params.n):
            choices[choice] = sequence = Sequence(
                request=request,
                choice=choice,
                rank=rank_of(self.config.policy, request, self._serial, self.config.ageing_s),
                tokens=np.concatenate([request.prompt, request.output]).astype(np.int32, copy=False),
                table=BlockTable(self.pool),
                limit=limit,
                min_tokens_at=len(request.prompt) + params.min_tokens,
                stop_ids=frozenset(params.stop_token_ids),
            )
            self._serial += 1
            self._waiting.push(sequence)
        self._requests[request.request_id] = choices

    def abort(self, request_id: int, choice: int = -1) -> int:
        """End a request, or one choice of it, without further output. Returns how many sequences that ended."""
        choices = self._requests.get(request_id, {})
        ended = [s for s in choices.values() if choice in (-1, s.choice)]
        for sequence in ended:
            self._end(sequence)
        self._counters.aborted += len(ended)
        return len(ended)

    @property
    def has_work(self) -> bool:
        """Some sequence has not ended yet."""
        return bool(self._requests)

    # The next step

    def schedule(self, now_s: float) -> Step | None:
        """The next step, or None when there is nothing to run before a step under way has ended."""
        self.pool.now = self._step_id
        self._make_room()
        builder = StepBuilder()
        budget = StepBudget(self.config.max_num_batched_tokens, self._max_running, self.pool.available)
        self._decode(builder, budget)
        self._continue_prefills(builder, budget)
        self._admit(builder, budget)
        if builder.empty:
            return None
        step = builder.build(self._step_id, tuple(self._released))
        self._released.clear()
        self._step_id += 1
        self._slots.scheduled[step.slots] += step.num_tokens
        self._slots.drawn[step.slots] += step.sample
        self._flights.append(
            Flight(step.step_id, step.slots, self._slots.epoch[step.slots], step.num_tokens, step.sample)
        )
        return step

    def _make_room(self) -> None:
        """Preempt, last in rank first, until all decodes and the first prefill can have their next page."""
        while self._pages_wanted() > self.pool.available:
            self._preempt(self._slots.running()[-1])

    def _pages_wanted(self) -> int:
        """Pages without which some decode, or the first of the prefills, could not go on."""
        slots, to_feed = self._slots, self._slots.to_feed()
        decodes = np.flatnonzero(to_feed == 1).astype(np.int32)
        at_end = slots.scheduled[decodes] == slots.capacity[decodes]
        shared = ~at_end & self._tail_shared(decodes)
        wanted = int(at_end.sum() + shared.sum())
        prefill = self._prefills(to_feed)[:1]
        for sequence in prefill:
            start = int(slots.scheduled[sequence.slot])
            wanted += sequence.table.cost(start, start + 1)
        return wanted

    def _tail_shared(self, slots: Ints) -> Bools:
        tail = self._slots.tail[slots]
        shared: Bools = (self.pool.holders[tail] > 1) | self.pool.kept[tail]
        return shared

    def _prefills(self, to_feed: Ints) -> list[Sequence]:
        found = [self._slots.sequences[slot] for slot in np.flatnonzero(to_feed > 1).tolist()]
        return sorted((s for s in found if s is not None), key=lambda s: s.rank)

    def _decode(self, builder: StepBuilder, budget: StepBudget) -> None:
        slots = self._slots
        decodes = np.flatnonzero(slots.to_feed() == 1).astype(np.int32)
        if not len(decodes):
            return
        start = slots.scheduled[decodes]
        slow = (start == slots.capacity[decodes]) | self._tail_shared(decodes)
        self.pool.fill_next(slots.tail[decodes[~slow]])
        for slot in decodes[slow].tolist():
            self._write(builder, budget, slot, int(slots.scheduled[slot]), 1)
        builder.decodes(decodes, start)
        budget.spend(len(decodes), 0, len(decodes))

    def _write(self, builder: StepBuilder, budget: StepBudget, slot: int, start: int, count: int) -> None:
        sequence = self._slots.sequences[slot]
        assert sequence is not None
        before = self.pool.available
        writes = sequence.table.write(start, start + count)
        assert writes is not None, "the step budget let through more pages than there are"
        budget.spend(0, before - self.pool.available, 0)
        builder.writes(slot, writes)
        self._slots.update_table(sequence)

    def _continue_prefills(self, builder: StepBuilder, budget: StepBudget) -> None:
        for sequence in self._prefills(self._slots.to_feed()):
            self._chunk(builder, budget, sequence)

    def _chunk(self, builder: StepBuilder, budget: StepBudget, sequence: Sequence) -> None:
        slots, slot = self._slots, sequence.slot
        start, end = int(slots.scheduled[slot]), int(slots.known[slot] + slots.drawn[slot])
        count = budget.chunk(end - start, int(slots.capacity[slot]) - start, self.config.page_size)
        if count < 1:
            return
        self._write(builder, budget, slot, start, count)
        builder.chunk(slot, count, start, start + count == end)
        budget.spend(count, 0)

    def _admit(self, builder: StepBuilder, budget: StepBudget) -> None:
        while self._slots.count < self._max_running and budget.tokens > 0 and budget.sequences > 0:
            sequence = self._waiting.pop()
            if sequence is None:
                return
            needed = -(-len(sequence.tokens) // self.config.page_size)
            reserve = self._slots.count << sequence.preemptions  # each preemption doubles the caution
            if self._slots.count and budget.pages < needed + reserve:
                self._waiting.push(sequence)
                return
            self._start(builder, sequence)
            self._chunk(builder, budget, sequence)

    def _start(self, builder: StepBuilder, sequence: Sequence) -> None:
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = 0
            self._counters.prompt_tokens += sequence.prompt_len
        slot = self._slots.enter(sequence, 0)
        builder.start(
            SequenceStart(
                slot=slot,
                tokens=sequence.tokens,
                prompt_len=sequence.prompt_len,
                pages=np.array(sequence.table.pages, np.int32),
                params=sequence.request.params,
                seed=sequence.request.seed,
                choice=sequence.choice,
            )
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Take the sequence's pages and let it wait; it will be computed again from its tokens."""
        self._vacate(sequence)
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self._waiting.push(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        self._released.append(sequence.slot)
        self._slots.leave(sequence)
        sequence.table.free()

    def _end(self, sequence: Sequence) -> None:
        if sequence.queued:
            self._waiting.remove(sequence)
        else:
            self._vacate(sequence)
        choices = self._requests[sequence.request.request_id]
        del choices[sequence.choice]
        if not choices:
            del self._requests[sequence.request.request_id]

    # Its result

    def apply(self, step: Step, result: StepResult, now_s: float) -> StepOutputs:
        """Take in a step's result, in the order of scheduling. Sequences that have gone meanwhile are passed over."""
        if not self._flights or self._flights[0].step_id != step.step_id or result.step_id != step.step_id:
            raise ValueError(f"step {step.step_id} with result {result.step_id} is not the oldest step under way")
        flight = self._flights.popleft()
        slots = self._slots
        alive = slots.epoch[flight.slots] == flight.epochs
        slots.computed[flight.slots[alive]] += flight.num_tokens[alive]
        drawing = flight.sample & alive
        drawn = flight.slots[drawing]
        tokens = result.tokens[alive[flight.sample], 0]
        finish = slots.append(drawn, tokens)
        outputs = self._outputs(result, alive[flight.sample], drawn, tokens, finish)
        for slot in drawn[finish != Finish.RUNNING].tolist():
            sequence = slots.sequences[slot]
            assert sequence is not None
            self._end(sequence)
        self._count(flight, result, len(tokens))
        return outputs

    def fail(self, step: Step) -> StepOutputs:
        """The step brought nothing but an error: end all it carried with Finish.ERROR; their pages are given back."""
        if not self._flights or self._flights[0].step_id != step.step_id:
            raise ValueError(f"step {step.step_id} is not the oldest step under way")
        flight, table = self._flights.popleft(), self._slots
        slots = flight.slots[table.epoch[flight.slots] == flight.epochs]
        outputs = StepOutputs(
            request_ids=table.request_id[slots],
            choices=table.choice[slots],
            tokens=np.full(len(slots), -1, np.int32),
            finish=np.full(len(slots), Finish.ERROR, np.uint8),
            cached_tokens=table.cached_tokens[slots],
        )
        for slot in slots.tolist():
            sequence = table.sequences[slot]
            assert sequence is not None
            self._end(sequence)
        return outputs

    def _outputs(
        self,
        result: StepResult,
        rows: Bools,
        slots: Ints,
        tokens: Ints,
        finish: np.typing.NDArray[np.uint8],
    ) -> StepOutputs:
        table = self._slots
        return StepOutputs(
            request_ids=table.request_id[slots],
            choices=table.choice[slots],
            tokens=tokens,
            finish=finish,
            cached_tokens=table.cached_tokens[slots],
            logprobs=None if result.logprobs is None else result.logprobs[rows, 0],
            top_ids=None if result.top_ids is None else result.top_ids[rows, 0],
            top_logprobs=None if result.top_logprobs is None else result.top_logprobs[rows, 0],
        )

    def _count(self, flight: Flight, result: StepResult, generated: int) -> None:
        counters = self._counters
        counters.steps += 1
        counters.computed_tokens += int(flight.num_tokens.sum())
        counters.generated_tokens += generated
        counters.forward_s += result.forward_s
        counters.executor_s += result.total_s
        if self.pool.pages_held:
            counters.waste_sum += 1.0 - self.pool.slots_filled / self.pool.slots_held
            counters.waste_samples += 1

    # What it holds

    def stats(self) -> EngineStats:
        counters, pool = self._counters, self.pool
        return EngineStats(
            running=self._slots.count,
            waiting=len(self._waiting),
            pages_total=pool.num_pages,
            pages_held=pool.pages_held,
            pages_cached=pool.pages_cached,
            slots_held=pool.slots_held,
            slots_filled=pool.slots_filled,
            waste_ratio_mean=counters.waste_sum / max(1, counters.waste_samples),
            steps=counters.steps,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            aborted=counters.aborted,
            forward_s=counters.forward_s,
            executor_s=counters.executor_s,
        )

    def memory_report(self) -> MemoryReport:
        """Every page at this moment. O(pages); for a dashboard, not for every step."""
        return self.pool.report()
