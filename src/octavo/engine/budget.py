"""What one step may still carry. Candidates are offered one after another and take what fits."""

from __future__ import annotations


class StepBudget:
    """Tokens, sequences and pages left in the step that is being filled."""

    __slots__ = ("pages", "sequences", "tokens")

    def __init__(self, tokens: int, sequences: int, pages: int) -> None:
        self.tokens = tokens
        self.sequences = sequences
        self.pages = pages

    def chunk(self, wanted: int, open_slots: int, page_size: int) -> int:
        """Tokens of a prefill chunk that fit: at most `wanted`, with `open_slots` free in pages already there."""
        if self.sequences < 1:
            return 0
        return max(0, min(wanted, self.tokens, open_slots + self.pages * page_size))

    def spend(self, tokens: int, pages: int, sequences: int = 1) -> None:
        self.tokens -= tokens
        self.pages -= pages
        self.sequences -= sequences
