"""What rendering a template may cost, counted in steps and characters: a bound that does not depend on the machine."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

#: Characters that are as cheap to copy as one step of the interpreter is to take.
_CHARS_PER_STEP = 32


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """steps: of loops, calls and operations, weighted by what they cost. chars: of any one text."""

    steps: int = 1_000_000
    chars: int = 8 << 20


class TemplateLimitError(TemplateRuntimeError):
    """A template wants more than its limits."""


class Budget:
    """What is left of the limits in one rendering."""

    __slots__ = ("limits", "steps_left")

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self.steps_left = limits.steps

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            # Stay exhausted, so that nothing that swallows errors can go on.
            self.steps_left = -1
            raise TemplateLimitError(f"it takes more than the limit of {self.limits.steps} steps")

    def text(self, chars: int) -> None:
        """A text of so many characters is about to be made or read."""
        if chars > self.limits.chars:
            raise TemplateLimitError(f"it makes a text of {chars} characters; the limit is {self.limits.chars}")
        self.spend(1 + chars // _CHARS_PER_STEP)

    def items(self, iterable: Any) -> Any:
        """An iterable that is about to be gone through; generators become lists, so that they can be counted."""
        try:
            length = len(iterable)
        except TypeError:
            if not isinstance(iterable, Iterator):
                return iterable
            iterable = list(islice(iterable, self.steps_left + 1))
            length = len(iterable)
        self.spend(1 + length)
        return iterable

    def shown(self, value: Any) -> int:
        """A value is about to be turned into text; returns about how many characters that takes.

        Counted along all references: a list that holds one long text a thousand times is shown a thousand times.
        """
        if isinstance(value, str):
            self.text(len(value))
            return len(value)
        chars = 0
        stack: list[Any] = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                chars += len(item)
            elif isinstance(item, dict):
                stack.extend(item)
                stack.extend(item.values())
            elif isinstance(item, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)):
                stack.extend(item)
            elif isinstance(item, int):
                chars += item.bit_length() // 3
            elif isinstance(item, Namespace):
                raise TemplateLimitError("it shows a namespace as text")
            chars += 8
            self.spend(1)
            if chars > self.limits.chars:
                break
        self.text(chars)
        return chars

    def joined(self, pieces: Iterable[str]) -> str:
        """The pieces as one text, stopped as soon as it is too long."""
        kept: list[str] = []
        chars = 0
        for piece in pieces:
            chars += len(piece)
            if chars > self.limits.chars:
                self.text(chars)
            kept.append(piece)
        self.text(chars)
        return "".join(kept)
