"""What one step may still carry. Candidates are offered one after another and take what fits."""

from __future__ import annotations

from octavo.engine.cost import MIN_CHUNK, Room


class StepBudget:
    """Tokens and sequences left in the step that is being filled, and seconds left for prefill.

    room: what prefill may cost (cost.Room); None: as much as fits, since nobody decodes.
    """

    __slots__ = ("_room", "sequences", "started", "tokens")

    def __init__(self, tokens: int, sequences: int, room: Room | None = None) -> None:
        self.tokens = tokens
        self.sequences = sequences
        self.started = False
        self._room = room

    @property
    def open(self) -> bool:
        """Some further prefill may fit."""
        if self.tokens < 1 or self.sequences < 1:
            return False
        return self._room is None or not self.started or self._room.tokens_at(0) > 0

    def chunk(self, wanted: int, start: int, slots: int) -> int:
        """Tokens for a prefill that wants `wanted`, from position `start` on, and has room for `slots`."""
        fits = min(wanted, self.tokens, slots)
        if self.sequences < 1:
            return 0
        if self._room is None:
            return fits
        allowed = self._room.tokens_at(start)
        if not self.started:
            least = max(1, min(MIN_CHUNK, self._room.tokens_at(start, reserve=True)))
            return min(fits, max(allowed, least))
        return min(fits, allowed) if allowed >= min(fits, MIN_CHUNK) else 0

    def half(self) -> StepBudget:
        """A budget of half of what is left, to be accounted for by `absorb`."""
        lane = StepBudget(self.tokens // 2, self.sequences, self._room.half() if self._room else None)
        lane.started = True
        return lane

    def absorb(self, lane: StepBudget) -> None:
        """What was spent from `lane`, which is half of this budget, is spent."""
        self.tokens -= self.tokens // 2 - lane.tokens
        self.sequences = lane.sequences
        if self._room is not None and lane._room is not None:
            self._room.absorb(lane._room)

    def spend_chunk(self, tokens: int, start: int) -> None:
        self.tokens -= tokens
        self.sequences -= 1
        self.started = True
        if self._room is not None:
            self._room.spend(tokens, start)
