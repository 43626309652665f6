"""Rows of a static batch that have finished: they keep their slot and memory, and are computed as padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.engine.cost import StepShape
from octavo.engine.pages import PagePool
from octavo.engine.sequence import Sequence
from octavo.engine.slots import Bools, Index, SlotTable
from octavo.engine.step_builder import Flight


@dataclass(slots=True)
class _Row:
    sequence: Sequence
    position: int  # of the last token that was fed: it is fed again and again
    draws: int  # tokens that the executor's row of the slot still has room for


class FinishedRows:
    """A finished row is a decode whose result nobody reads: its last token once more, at the same position.

    So it costs a step what a decode of its length costs, but doesn't grow, which is kinder than what padding did.
    """

    def __init__(self, slots: SlotTable, pool: PagePool, max_len: int) -> None:
        self._slots = slots
        self._pool = pool
        self._max_len = max_len
        self._rows: dict[int, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held_slots(self) -> int:
        return sum(int(self._slots.capacity[slot]) for slot in self._rows)

    def park(self, sequence: Sequence) -> None:
        """The sequence has ended. It keeps slot and memory; the scheduler sees an idle row."""
        slot, table = sequence.slot, self._slots
        position = max(0, int(table.scheduled[slot]) - 1)
        room = self._max_len + 1 - int(table.reach[slot])
        table.idle(slot)
        self._rows[slot] = _Row(sequence, position, max(0, room))

    def take(self) -> Sequence:
        """The one that finished last; it is parked no longer."""
        return self._rows.popitem()[1].sequence

    def join(self, flight: Flight) -> Flight:
        """The step with a row for each of them, behind its decodes. Their results are dropped when they come."""
        fed = [(slot, row) for slot, row in self._rows.items() if self._slots.capacity[slot]]
        if not fed:
            return flight
        slots = np.array([slot for slot, _ in fed], np.intp)
        positions = np.array([row.position for _, row in fed], np.intp)
        sample = np.array([row.draws > 0 for _, row in fed], np.bool_)
        for _, row in fed:
            row.draws -= 1
        return _joined(flight, slots, positions, sample)


def _joined(flight: Flight, slots: Index, positions: Index, sample: Bools) -> Flight:
    step, count = flight.step, len(slots)
    context = int(positions.sum()) + count
    tokens, sequences, contexts, pairs = flight.shape
    return replace(
        flight,
        step=replace(
            step,
            slots=np.concatenate([step.slots, slots]),
            num_tokens=np.concatenate([step.num_tokens, np.ones(count, np.intp)]),
            num_computed=np.concatenate([step.num_computed, positions]),
            sample=np.concatenate([step.sample, sample]),
            num_tokens_total=step.num_tokens_total + count,
        ),
        epochs=np.concatenate([flight.epochs, np.full(count, -1, np.intp)]),
        vacated=-1,
        num_decodes=flight.num_decodes + count,
        shape=StepShape(tokens + count, sequences + count, contexts + context, pairs + context),
        sampled=np.concatenate([flight.sampled, slots[sample]]),
        after=np.concatenate([flight.after, positions + 1]),
    )
