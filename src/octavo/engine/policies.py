"""Who is next among the waiting, and, by the same rank, who is preempted last."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from octavo.engine.request import Request
from octavo.engine.sequence import Rank, Sequence

POLICIES = ("fcfs", "priority", "fair")
#: How KV memory is given out: by pages, or (engine/historical) in one piece for each sequence.
KV_POLICIES = ("paged", "contiguous", "contiguous-limit", "buddy")
#: Who may enter when: anybody after every step, or (engine/historical) nobody until the whole batch has finished.
BATCH_POLICIES = ("continuous", "static")


class WaitingQueue(Protocol):
    """Waiting sequences. No operation's time grows with their number by more than a logarithm."""

    def __len__(self) -> int: ...

    def push(self, sequence: Sequence) -> None:
        """Add a sequence: a new one, or one that has lost its slot."""

    def put_back(self, sequence: Sequence) -> None:
        """Undo `pop`."""

    def pop(self) -> Sequence | None:
        """Remove and return the next one; None when nobody waits."""

    def remove(self, sequence: Sequence) -> None:
        """A queued sequence has ended."""

    def served(self, work: Iterable[tuple[Sequence, int]]) -> None:
        """These sequences have been given so many tokens of work by a step."""

    counts_service: bool


def make_queue(policy: str) -> WaitingQueue:
    return FairQueue() if policy == "fair" else RankQueue()


def rank_of(policy: str, request: Request, serial: int, ageing_s: float) -> Rank:
    """By arrival. Under the priority policy a step of priority weighs as much as `ageing_s` of waiting.

    So the order of two sequences never changes, and nobody waits for ever.
    """
    if policy == "priority":
        return (request.arrival_s + request.priority * ageing_s, serial)
    return (request.arrival_s, serial)


class RankQueue:
    """The smallest rank first."""

    counts_service = False

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Sequence]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        sequence.queued = True
        self._count += 1
        heapq.heappush(self._heap, (sequence.rank, sequence))

    put_back = push

    def pop(self) -> Sequence | None:
        while self._heap:
            _, sequence = heapq.heappop(self._heap)
            if sequence.queued:
                sequence.queued = False
                self._count -= 1
                return sequence
        return None

    def first_rank(self) -> Rank:
        """The smallest rank, or a smaller one of a sequence that has ended lately. Raises IndexError when empty."""
        return self._heap[0][0]

    def remove(self, sequence: Sequence) -> None:
        """Its entry stays until it is popped, or until such entries are in the majority."""
        sequence.queued = False
        self._count -= 1
        if len(self._heap) > 2 * self._count + 16:
            self._heap = [item for item in self._heap if item[1].queued]
            heapq.heapify(self._heap)

    def served(self, work: Iterable[tuple[Sequence, int]]) -> None:
        pass


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    counter: float
    waiting: RankQueue = field(default_factory=RankQueue)
    ordered: bool = False  # has an entry in FairQueue._order


class FairQueue:
    """The tenant that was given the least work first; within a tenant, the smallest rank.

    Virtual token counters after Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), section 4. A
    tenant that comes back from idleness starts at the virtual time, so it can't save up service. That time is the one
    of weighted fair queueing: it advances by the work done divided by the number of tenants that wait, so it passes
    every waiting tenant's counter in the end and no stream of new tenants can keep an old one waiting for ever.
    """

    counts_service = True

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._order: list[tuple[float, Rank, str]] = []  # counter when pushed: counters only grow
        self._count = 0
        self._virtual_time = 0.0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        tenant = self._tenant(tenant_of(sequence))
        if not len(tenant.waiting):
            tenant.counter = max(tenant.counter, self._virtual_time)
        self._add(tenant, sequence)

    def put_back(self, sequence: Sequence) -> None:
        self._add(self._tenant(tenant_of(sequence)), sequence)

    def pop(self) -> Sequence | None:
        while self._order:
            counter, _, name = heapq.heappop(self._order)
            tenant = self._tenants[name]
            tenant.ordered = False
            if not len(tenant.waiting):
                continue
            if counter < tenant.counter:
                self._place(tenant)
                continue
            sequence = tenant.waiting.pop()
            self._count -= 1
            self._place(tenant)
            return sequence
        return None

    def remove(self, sequence: Sequence) -> None:
        self._tenants[tenant_of(sequence)].waiting.remove(sequence)
        self._count -= 1

    def served(self, work: Iterable[tuple[Sequence, int]]) -> None:
        total = 0
        for sequence, tokens in work:
            self._tenant(tenant_of(sequence)).counter += tokens
            total += tokens
        self._virtual_time += total / max(1, len(self._order))

    def _add(self, tenant: _Tenant, sequence: Sequence) -> None:
        tenant.waiting.push(sequence)
        self._count += 1
        self._place(tenant)

    def _place(self, tenant: _Tenant) -> None:
        if not tenant.ordered and len(tenant.waiting):
            tenant.ordered = True
            heapq.heappush(self._order, (tenant.counter, tenant.waiting.first_rank(), tenant.name))

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= 2 * len(self._order) + 1024:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant(name, self._virtual_time)
        return tenant

    def _forget_idle(self) -> None:
        """Tenants without a memory worth keeping: they would start at the virtual time anyway."""
        keep = {n: t for n, t in self._tenants.items() if t.ordered or t.counter > self._virtual_time}
        self._tenants = keep


def tenant_of(sequence: Sequence) -> str:
    """The value that the request's salt gives for "tenant"; all without one are one tenant."""
    return next((value for kind, value in sequence.request.salt if kind == "tenant"), "")
