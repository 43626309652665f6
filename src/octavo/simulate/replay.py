"""Replays a recording through the real scheduler: step for step as it was, or with other settings ("what if")."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.request import Finish, Request
from octavo.engine.scheduler import Scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.engine.step import Step, StepResult
from octavo.runtime.record import NO_MARK, delta
from octavo.simulate.calibrate import CalibratedCost, Shape, fit_shapes
from octavo.simulate.fields import FileError
from octavo.simulate.load import Load
from octavo.simulate.machine import LoopTime, VirtualMachine
from octavo.simulate.recording import (
    END_TOKEN,
    Segment,
    columns,
    is_choice,
    is_count,
    is_counts,
    is_number,
    read,
    request_at,
)
from octavo.simulate.replica import Timeline

OnProgress = Callable[[int, int], None]


class ReplayError(RuntimeError):
    """The scheduler decided otherwise than when the run was recorded."""


@dataclass(slots=True)
class Exact:
    """What an exact replay found: so many steps alike, requests, tokens and preemptions."""

    steps: int = 0
    requests: int = 0
    tokens: int = 0
    preemptions: int = 0


def replay_exactly(path: Path, segments: list[Segment], progress: OnProgress) -> Exact:
    """Give the scheduler every input again and compare every step. Raises ReplayError, FileError."""
    found, done = Exact(), 0
    total = sum(len(segment.events) for segment in segments)
    for segment in segments:
        scheduler = make_scheduler(segment.config)
        flights: list[Step] = []
        for number, event in segment.events:
            _replay(path, number, event, scheduler, flights, found)
            done += 1
            progress(done, total)
        found.preemptions += scheduler.stats().preemptions
    return found


def _replay(
    path: Path, number: int, event: dict[str, Any], scheduler: Scheduler, flights: list[Step], found: Exact
) -> None:
    if "add" in event:
        request = request_at(path, number, event)
        try:
            scheduler.add(request)
        except ValueError as error:
            raise FileError(f"{path}, line {number}: {error}") from error
        found.requests += 1
    elif "abort" in event:
        request_id = read(path, number, event, "abort", is_count, "an integer of at least 0")
        scheduler.abort(request_id, read(path, number, event, "choice", is_choice, "an integer of at least -1"))
    elif "step" in event:
        now_s = float(read(path, number, event, "now_s", is_number, "a number"))
        step = scheduler.schedule(now_s)
        _compare(path, number, event, step)
        assert step is not None
        flights.append(step)
        found.steps += 1
    elif "applied" in event or "failed" in event:
        if not flights:
            raise FileError(f"{path}, line {number}: a result comes without a step before it.")
        step = flights.pop(0)
        if "failed" in event:
            scheduler.fail(step)
        else:
            found.tokens += _apply(path, number, event, scheduler, step)
    else:
        raise FileError(f"{path}, line {number}: there is no add, abort, step, applied or failed.")


def _compare(path: Path, number: int, event: dict[str, Any], step: Step | None) -> None:
    if step is None:
        raise ReplayError(f"{path}, line {number}: step {event['step']} was recorded; the scheduler makes none.")
    for name, value in {"step": step.step_id, **delta(step)}.items():
        if event.get(name) != value:
            raise ReplayError(
                f"{path}, line {number}: in step {event['step']}, {name} was {str(event.get(name))[:80]}; "
                f"now it is {str(value)[:80]}. Another version of Octavo may have recorded it."
            )


def _apply(path: Path, number: int, event: dict[str, Any], scheduler: Scheduler, step: Step) -> int:
    """Give the step the tokens it had: marks, and the end token where an answer had stopped. Returns how many."""

    def seconds(name: str) -> float:
        return float(read(path, number, event, name, is_number, "a number"))

    requests, choices, marks, finish = columns(path, number, event)
    refused = read(path, number, event, "refused", is_counts, "a list of integers") if "refused" in event else []
    drawn = {
        (request, choice): END_TOKEN if end == Finish.STOP else mark
        for request, choice, mark, end in zip(requests, choices, marks, finish, strict=True)
    }
    tokens = [drawn.get(owner, 1) for owner in scheduler.owners(step.slots[step.sample])]
    result = StepResult(
        step_id=step.step_id,
        tokens=np.array(tokens, np.int32).reshape(-1, 1),
        counts=np.ones(len(tokens), np.int32),
        forward_s=seconds("forward_s"),
        total_s=seconds("total_s"),
        refused=dict.fromkeys(refused, ""),
    )
    outputs = scheduler.apply(step, result, seconds("now_s"))
    got = (outputs.request_ids.tolist(), outputs.choices.tolist(), outputs.finish.tolist())
    if got != (requests, choices, finish):
        raise ReplayError(f"{path}, line {number}: the results of step {step.step_id} end otherwise than recorded.")
    return sum(mark != NO_MARK for mark in marks)


@dataclass(slots=True)
class _Answer:
    """A recorded sequence: its marks, and how it ended. gone_s: when it was aborted, inf: it was not."""

    marks: list[int] = field(default_factory=list)
    stopped: bool = False
    gone_s: float = math.inf


def what_if(
    path: Path,
    segment: Segment,
    config: SchedulerConfig,
    machine: VirtualMachine,
    progress: OnProgress,
) -> tuple[Timeline, Scheduler]:
    """The recorded requests, arriving when they did and answering what they did, under another config or machine.

    An answer that was aborted ends after as many tokens as it had. Choices of one request beyond the first are left
    out. Returns the timeline (of requests in order of arrival) and the scheduler.
    """
    requests, answers = _recorded(path, segment)
    if not requests:
        raise FileError(f"{path}: nobody asked for anything in this recording, so there is no what if.")
    arrivals = np.array([request.arrival_s for request in requests])
    order = np.argsort(arrivals, kind="stable")
    requests = [requests[i] for i in order]
    begin_s = float(arrivals.min())
    lengths = np.array([max(1, len(answers[request.request_id].marks)) for request in requests], np.int64)
    prompts = np.array([len(request.prompt) for request in requests], np.int64)
    load = Load(arrivals[order] - begin_s, prompts, lengths)
    timeline, scheduler = Timeline.of(load.arrival_s), make_scheduler(config)
    running = _Marked(scheduler, machine, timeline, [answers[request.request_id].marks for request in requests])
    for index, request in enumerate(requests):
        running.advance(float(load.arrival_s[index]))
        params = replace(request.params, n=1, max_tokens=int(lengths[index]), min_tokens=0, ignore_eos=True)
        arrival_s = float(load.arrival_s[index])
        scheduler.add(replace(request, request_id=index, params=params, arrival_s=arrival_s, output=request.output[:0]))
        progress(index + 1, len(requests))
    running.advance(math.inf)
    return timeline, scheduler


class _Marked:
    """As Replica, but tokens drawn are the recorded marks, so that later prompts find them in the prefix index."""

    def __init__(
        self, scheduler: Scheduler, machine: VirtualMachine, timeline: Timeline, marks: list[list[int]]
    ) -> None:
        self._scheduler = scheduler
        self._machine = machine
        self._timeline = timeline
        self._marks = marks

    def advance(self, until_s: float) -> None:
        scheduler, machine, line = self._scheduler, self._machine, self._timeline
        while scheduler.has_work and machine.now_s < until_s:
            step = scheduler.schedule(machine.now_s)
            if step is None:
                raise RuntimeError("the scheduler has work but no step for it; this is a bug in Octavo")
            result = machine.run(step)
            tokens = [self._next(request) for request, _ in scheduler.owners(step.slots[step.sample])]
            result = replace(result, tokens=np.array(tokens, np.int32).reshape(-1, 1))
            outputs = scheduler.apply(step, result, machine.now_s)
            ids = outputs.request_ids
            line.tokens[ids] += 1
            line.first_s[ids[line.tokens[ids] == 1]] = machine.now_s
            line.finish_s[ids[outputs.finish != 0]] = machine.now_s
        if machine.now_s < until_s < math.inf:
            machine.wait(until_s)

    def _next(self, index: int) -> int:
        if index < 0:
            return 1
        marks, drawn = self._marks[index], int(self._timeline.tokens[index])
        return marks[drawn] if drawn < len(marks) else 1


_MOST_STEPS = 4000


def recorded_cost(path: Path, segment: Segment) -> tuple[CalibratedCost, LoopTime]:
    """The cost model of the machine that was recorded, fitted to its steps, and what its loop took around them.

    Raises ValueError when there are too few steps.
    """

    def seconds_of(number: int, event: dict[str, Any], name: str) -> float:
        return float(read(path, number, event, name, is_number, "a number"))

    shapes, seconds, rests = [], [], []
    steps: dict[int, tuple[int, dict[str, Any]]] = {}
    for number, event in segment.events:
        if "step" in event:
            steps[read(path, number, event, "step", is_count, "an integer of at least 0")] = (number, event)
        if "applied" not in event:
            continue
        applied = read(path, number, event, "applied", is_count, "an integer of at least 0")
        if applied not in steps:
            continue
        at, step = steps[applied]
        count, start, sample = (
            np.array(read(path, at, step, name, is_counts, "a list of integers"), np.int64)
            for name in ("tokens", "at", "sample")
        )
        took_s = seconds_of(number, event, "total_s")
        if took_s <= 0.0 or not len(count) == len(start) == len(sample):
            continue
        pairs = int((count * start + count * (count + 1) // 2).sum())
        shapes.append(Shape(int(count.sum()), len(count), int((count + start).sum()), pairs, int(sample.sum())))
        seconds.append(took_s)
        rests.append(seconds_of(number, event, "now_s") - seconds_of(at, step, "now_s") - took_s)
    every = max(1, len(shapes) // _MOST_STEPS)
    return fit_shapes(shapes[::every], seconds[::every]), LoopTime(max(0.0, float(np.median(rests))) if rests else 0.0)


def _recorded(path: Path, segment: Segment) -> tuple[list[Request], dict[int, _Answer]]:
    """Requests as they were added, with new ids (a server's may repeat), and their first choices' answers."""
    requests: list[Request] = []
    answers: dict[int, _Answer] = {}
    live: dict[int, int] = {}
    for number, event in segment.events:
        if "add" in event:
            request = request_at(path, number, event)
            live[request.request_id] = len(requests)
            answers[len(requests)] = _Answer(request.output.tolist())
            requests.append(replace(request, request_id=len(requests)))
        elif "applied" in event:
            for request_id, choice, mark, _ in zip(*columns(path, number, event), strict=True):
                if request_id in live:
                    index = live[request_id]
                    if choice == requests[index].choice and mark != NO_MARK:
                        answers[index].marks.append(mark)
    return requests, answers
