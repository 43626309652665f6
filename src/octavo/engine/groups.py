"""KV groups: layers that keep K and V of the same tokens, and what a sequence holds in each.

All groups take pages from one pool, and a page has the same number of token slots in each, so a sequence's block is one
page of every group. A group with a sliding window gives back the pages that no token to come can see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Stands in a block table where a group has given its page back, or never had it.
NO_PAGE = -1


def first_seen(window: int, position: int, page_size: int) -> int:
    """The first block that holds something for the token at `position`, and for all after it."""
    return max(0, position + 1 - window) // page_size


@dataclass(frozen=True, slots=True)
class KvGroups:
    """The groups of one pool, in the order in which their pages stand in a block.

    windows: for each group, how many tokens one of its layers sees, the token itself included; 0: all up to it.
    chunk: most tokens of a sequence in one step. sliding: each window that there is, and its groups.
    """

    page_size: int
    windows: tuple[int, ...] = (0,)
    chunk: int = 1
    count: int = field(init=False)
    sliding: tuple[tuple[int, tuple[int, ...]], ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.windows or min(self.windows) < 0:
            raise ValueError(f"windows are {self.windows}; there must be one for each KV group, none negative")
        members = {w: tuple(g for g, own in enumerate(self.windows) if own == w) for w in sorted(set(self.windows))}
        members.pop(0, None)
        object.__setattr__(self, "count", len(self.windows))
        object.__setattr__(self, "sliding", tuple(members.items()))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def pages_between(self, start: int, end: int) -> int:
        """Most pages that a sequence takes from `start` computed tokens to `end`, beyond those that it holds then."""
        blocks = self.blocks(end) - self.blocks(start)
        pages = self.count * blocks
        for window, groups in self.sliding:
            held = self.blocks(start) - first_seen(window, start, self.page_size)
            pages -= len(groups) * max(0, blocks - max(0, self._most_blocks(window, self.chunk) - held))
        return pages

    def pages_for(self, tokens: int, chunk: int | None = None) -> int:
        """Most pages that a sequence of so many tokens holds at once, computed in chunks of at most `chunk`."""
        blocks, chunk = self.blocks(tokens), self.chunk if chunk is None else chunk
        pages = self.count * blocks
        for window, groups in self.sliding:
            pages -= len(groups) * max(0, blocks - self._most_blocks(window, chunk))
        return pages

    def longest(self, pages: int, most: int) -> int:
        """The longest sequence, of at most `most` tokens, that so many pages hold."""
        low, high = 0, self.blocks(most)
        while low < high:
            middle = (low + high + 1) // 2
            if self.pages_for(middle * self.page_size) <= pages:
                low = middle
            else:
                high = middle - 1
        return min(most, low * self.page_size)

    def _most_blocks(self, window: int, chunk: int) -> int:
        """Blocks that the tokens of a chunk, and those that they see, lie in at most."""
        return (window - 1 + chunk + self.page_size - 2) // self.page_size + 1
