"""Collects what one step changes and computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.engine.block_table import PageWrites
from octavo.engine.step import SequenceStart, Step

Ints = npt.NDArray[np.int32]
_NO_INTS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step under way: what `apply` needs to know when its result comes. Columns as in Step."""

    step_id: int
    slots: Ints
    epochs: Ints
    num_tokens: Ints
    sample: npt.NDArray[np.bool_]


class StepBuilder:
    """Rows are added decodes first, then chunks; `build` concatenates them."""

    def __init__(self) -> None:
        self._starts: list[SequenceStart] = []
        self._append_slots: list[int] = []
        self._append_pages: list[int] = []
        self._copies: list[tuple[int, int, int, int]] = []
        self._decodes = _NO_INTS
        self._decodes_at = _NO_INTS
        self._chunks: list[tuple[int, int, int, bool]] = []

    @property
    def empty(self) -> bool:
        return not self._chunks and not len(self._decodes)

    def start(self, start: SequenceStart) -> None:
        self._starts.append(start)

    def writes(self, slot: int, writes: PageWrites) -> None:
        for page in writes.appended:
            self._append_slots.append(slot)
            self._append_pages.append(page)
        if writes.copy is not None:
            self._copies.append((slot, *writes.copy))

    def decodes(self, slots: Ints, computed: Ints) -> None:
        """One token of each of these slots, from which the next one is drawn."""
        self._decodes, self._decodes_at = slots, computed

    def chunk(self, slot: int, num_tokens: int, computed: int, sample: bool) -> None:
        self._chunks.append((slot, num_tokens, computed, sample))

    def build(self, step_id: int, released: tuple[int, ...]) -> Step:
        slots, computed = self._decodes, self._decodes_at
        num_tokens = np.ones(len(slots), np.int32)
        sample = np.ones(len(slots), np.bool_)
        if self._chunks:
            chunks = np.array(self._chunks, np.int32)
            slots = np.concatenate([slots, chunks[:, 0]])
            num_tokens = np.concatenate([num_tokens, chunks[:, 1]])
            computed = np.concatenate([computed, chunks[:, 2]])
            sample = np.concatenate([sample, chunks[:, 3] != 0])
        return Step(
            step_id=step_id,
            released=released,
            starts=tuple(self._starts),
            append_slots=np.array(self._append_slots, np.int32),
            append_pages=np.array(self._append_pages, np.int32),
            copies=np.array(self._copies, np.int32).reshape(-1, 4),
            slots=slots,
            num_tokens=num_tokens,
            num_computed=computed,
            sample=sample,
            num_tokens_total=int(num_tokens.sum()),
        )
