"""The plan of a run, and its execution: engines take turns, one at a time, and every result is kept at once."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peers.engine import PORT, Engine, Launch
from peers.errors import PeerError

from sidebyside import memory
from sidebyside.measure import MeasurementError, measure, offline
from sidebyside.results import OURS, Results
from sidebyside.workloads import Texts, Work

OFFLINE = "W2-32-offline"
# Salts that one measurement may use: the goodput search takes one for each rate.
_SALTS_EACH = 32


@dataclass(frozen=True)
class Visit:
    """One start of an engine, for the workloads that its settings fit."""

    turn: int
    engine: Engine
    launch: Launch
    works: tuple[Work, ...]


def visits(turn: int, engines: Sequence[Engine], works: Sequence[Work]) -> list[Visit]:
    """One round. Workload by workload all engines take turns; each round begins with another engine.

    An engine that takes long to start is started once for all workloads that share its settings. An engine that is
    measured on some workloads only is left out of the others.
    """
    first = turn % len(engines)
    order = [*engines[first:], *engines[:first]]
    planned: list[Visit] = []
    for work in works:
        for engine in order:
            fitting = [other for other in works if not engine.only or other.name in engine.only]
            done = any(visit.engine is engine and work in visit.works for visit in planned)
            if done or work not in fitting:
                continue
            launch = engine.launch(work.need)
            sharing = [other for other in fitting if engine.launch(other.need) == launch]
            planned.append(Visit(turn, engine, launch, tuple(sharing) if engine.slow_start else (work,)))
    return planned


def prepared(factories: dict[str, Callable[[], Engine]], names: Sequence[str], results: Results) -> list[Engine]:
    """The engines that can be had; the others are noted under `failed` and said in one sentence each."""
    found = []
    for name in names:
        engine = factories[name]()
        try:
            engine.prepare()
        except PeerError as error:
            results.content["failed"][name] = str(error)
            print(f"error: {error}", file=sys.stderr)
            continue
        results.content["failed"].pop(name, None)
        found.append(engine)
        results.content["engines"][name] = {
            "label": engine.label, "settings": engine.settings, "factor": engine.factor, **engine.facts,
        }  # fmt: skip
    results.save()
    return found


class Runner:
    """Measures what a plan asks for and `results` does not hold yet."""

    def __init__(self, results: Results, texts: Texts, model: str, first_salt: int) -> None:
        self._results = results
        self._texts = texts
        self._model = model
        self._salt = first_salt
        self._done = self._total = 0
        self._begin_s = time.monotonic()

    def run(self, plan: Sequence[Visit]) -> bool:
        """Carry out the plan; True if nothing failed. KeyboardInterrupt passes, after the server has been stopped."""
        self._total = sum(len(visit.works) for visit in plan)
        good = True
        for visit in plan:
            missing = [work for work in visit.works if not self._has(visit, work.name)]
            self._done += len(visit.works) - len(missing)
            self._skip_salts(len(visit.works) - len(missing))
            if missing:
                good &= self._visit(visit, missing)
            good &= self._offline(visit)
        return good

    def _visit(self, visit: Visit, works: Sequence[Work]) -> bool:
        try:
            with visit.engine.server(visit.launch) as server:
                self._results.add("starts", self._start(visit, works, server.ready_s, server.pid))
                measured = [self._measure(visit, work, server) for work in works]
            return all(measured)
        except (RuntimeError, OSError) as error:  # it did not start, or died
            for work in works:
                self._done += 1
                self._fail(visit, work.name, str(error))
            return False

    def _start(self, visit: Visit, works: Sequence[Work], ready_s: float, pid: int) -> dict[str, Any]:
        return {
            "engine": visit.engine.name,
            "round": visit.turn,
            "workloads": [work.name for work in works],
            "ready_s": round(ready_s, 3),
            "idle_mib": round(memory.resident_mib(pid)),
            "environment": {key: value for key, value in visit.launch.environment if key != "PATH"},
            "command": shlex.join(visit.launch.command).replace(shlex.quote(PORT), "PORT"),
        }

    def _measure(self, visit: Visit, work: Work, server: Any) -> bool:
        self._done += 1
        begin = time.monotonic()
        try:
            values = measure(server, work, self._texts, self._next_salt(), seed=visit.turn)
        except (MeasurementError, OSError) as error:
            self._fail(visit, work.name, str(error))
            return False
        self._keep(visit, work.name, values, time.monotonic() - begin)
        return True

    def _offline(self, visit: Visit) -> bool:
        """The engine without its server, right after it was measured through it."""
        for work in visit.works:
            if visit.engine.name == OURS and work.name == "W2-32" and not self._has(visit, OFFLINE):
                begin = time.monotonic()
                try:
                    values = offline(self._model, work.requests.count, work.in_flight, self._next_salt())
                except MeasurementError as error:
                    self._fail(visit, OFFLINE, str(error))
                    return False
                self._keep(visit, OFFLINE, values, time.monotonic() - begin)
        return True

    def _has(self, visit: Visit, workload: str) -> bool:
        return self._results.has(visit.engine.name, workload, visit.turn)

    def _keep(self, visit: Visit, workload: str, values: dict[str, Any], took_s: float) -> None:
        self._results.content["failed"].pop(self._failure(visit, workload), None)
        entry = {"engine": visit.engine.name, "workload": workload, "round": visit.turn}
        self._results.add("measurements", {**entry, "took_s": round(took_s, 1), "figures": values})
        shown = (
            "rate",
            "output_tokens_per_s",
            "decode_tokens_per_s",
            "prefill_tokens_per_s",
            "ttft_p50_ms",
            "tpot_p50_ms",
        )
        text = ", ".join(f"{key.removesuffix('_ms')} {values[key]:.1f}" for key in shown if values.get(key) is not None)
        self._say(f"round {visit.turn + 1} {workload:<13} {visit.engine.label:<25} {text}")

    def _fail(self, visit: Visit, workload: str, reason: str) -> None:
        self._results.content["failed"][self._failure(visit, workload)] = reason
        self._results.save()
        self._say(f"round {visit.turn + 1} {workload} {visit.engine.label} FAILED: {reason}")

    @staticmethod
    def _failure(visit: Visit, workload: str) -> str:
        return f"{visit.engine.name} {workload} round {visit.turn + 1}"

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begin_s:5.0f} s, {self._done}/{self._total}] {text}", flush=True)

    def _next_salt(self) -> int:
        self._salt += _SALTS_EACH
        return self._salt

    def _skip_salts(self, count: int) -> None:
        self._salt += count * _SALTS_EACH
