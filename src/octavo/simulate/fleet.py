"""Several replicas behind a router, on one virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.historical.scheduler import make_scheduler
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.simulate.load import Ints, Load
from octavo.simulate.machine import VirtualMachine
from octavo.simulate.replica import MakePrompt, OnProgress, Replica, Timeline, request_of

ROUTERS = ("round-robin", "least-loaded", "prefix-affine")
#: A prefix's home replica is passed over when it has so many times the mean work of all, and some to speak of.
_OVERLOAD = 1.5
_LEAST_TOKENS = 4096


class Router(Protocol):
    """Says which replica a request goes to. needs_load: it looks at what replicas hold at that moment."""

    needs_load: bool

    def choose(self, index: int) -> int: ...


class RoundRobin:
    needs_load = False

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._count = len(replicas)

    def choose(self, index: int) -> int:
        return index % self._count


class LeastLoaded:
    """The replica with the fewest tokens, prompts and answers, of requests that have not ended."""

    needs_load = True

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas

    def choose(self, index: int) -> int:
        loads = [replica.open_tokens for replica in self._replicas]
        return loads.index(min(loads))


class PrefixAffine:
    """Requests with one prefix go to one replica, unless that is overloaded; those without, to the least loaded."""

    needs_load = True

    def __init__(self, replicas: Sequence[Replica], prefix_of: Ints) -> None:
        self._replicas = replicas
        self._prefix_of = prefix_of
        self._least = LeastLoaded(replicas)

    def choose(self, index: int) -> int:
        prefix = int(self._prefix_of[index])
        if prefix < 0:
            return self._least.choose(index)
        home = (prefix * 2654435761 >> 8) % len(self._replicas)
        loads = [replica.open_tokens for replica in self._replicas]
        limit = max(_LEAST_TOKENS, _OVERLOAD * sum(loads) / len(loads))
        return home if loads[home] <= limit else loads.index(min(loads))


def make_router(name: str, replicas: Sequence[Replica], prefix_of: Ints) -> Router:
    """`prefix_of` int64 [N]: which prefix a request begins with; -1: its own."""
    if name == "prefix-affine":
        return PrefixAffine(replicas, prefix_of)
    return LeastLoaded(replicas) if name == "least-loaded" else RoundRobin(replicas)


class Fleet:
    """Equal replicas of one setup; machine(i) makes that of number i."""

    def __init__(
        self, count: int, config: SchedulerConfig, machine: Callable[[int], VirtualMachine], load: Load
    ) -> None:
        self.timeline = Timeline.of(load.arrival_s)
        self.replicas = [Replica(make_scheduler(config), machine(i), self.timeline, load) for i in range(count)]
        self._load = load

    def run(
        self,
        router: Router,
        prompt: MakePrompt,
        progress: OnProgress | None = None,
        stop: Callable[[Timeline], bool] | None = None,
    ) -> bool:
        """Serve the whole load. stop: asked now and then with the timeline; True ends it early, and gives False."""
        replicas, load = self.replicas, self._load
        for index, arrival_s in enumerate(load.arrival_s.tolist()):
            if router.needs_load:
                for replica in replicas:
                    if replica.machine.now_s < arrival_s:
                        replica.advance(arrival_s)
            chosen = replicas[router.choose(index)]
            chosen.advance(arrival_s)
            chosen.add(request_of(index, arrival_s, prompt(index), int(load.output_tokens[index])))
            if index % 256 == 0:
                if progress is not None:
                    progress(index, len(load))
                if stop is not None and stop(self.timeline):
                    return False
        for replica in replicas:
            replica.advance(math.inf)
            if stop is not None and stop(self.timeline):
                return False
        return True

    @property
    def end_s(self) -> float:
        """When the last replica had done its work."""
        return max(replica.machine.now_s for replica in self.replicas)

    @property
    def steps(self) -> int:
        return sum(replica.scheduler.stats().steps for replica in self.replicas)

    @property
    def preemptions(self) -> int:
        return sum(replica.scheduler.stats().preemptions for replica in self.replicas)

    @property
    def cached_share(self) -> float:
        """Prompt tokens that came from prefix caches / all."""
        stats = [replica.scheduler.stats() for replica in self.replicas]
        return sum(one.cached_tokens for one in stats) / max(1, sum(one.prompt_tokens for one in stats))

    @property
    def busy_share(self) -> float:
        """Time inside forward passes / time of all replicas until the end."""
        return sum(replica.forward_s for replica in self.replicas) / (len(self.replicas) * self.end_s or 1.0)
