"""Who is next: the order of waiting sequences, and with it who is preempted last."""

from __future__ import annotations

import heapq

from octavo.engine.request import Request
from octavo.engine.sequence import Rank, Sequence


class WaitingQueue:
    """Waiting sequences by rank. push and pop are O(log n); removing one is O(1), its entry is dropped later."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Sequence]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        sequence.queued = True
        self._count += 1
        heapq.heappush(self._heap, (sequence.rank, sequence))

    def pop(self) -> Sequence | None:
        """Remove and return the first; None when nobody waits."""
        while self._heap:
            _, sequence = heapq.heappop(self._heap)
            if sequence.queued:
                sequence.queued = False
                self._count -= 1
                return sequence
        return None

    def remove(self, sequence: Sequence) -> None:
        sequence.queued = False
        self._count -= 1


def rank_of(policy: str, request: Request, serial: int, ageing_s: float) -> Rank:
    """fcfs: by arrival. priority: a step of priority counts like `ageing_s` of arrival, so nobody waits for ever."""
    if policy == "priority":
        return (request.arrival_s + request.priority * ageing_s, serial)
    return (request.arrival_s, serial)
