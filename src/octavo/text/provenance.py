"""Telling a template's own text from what users wrote, after rendering.

The conversation is rendered a second time with the users' characters replaced by private ones, one for one, so that
lengths, spaces and all the template's own text stay as they are; what is private in that output came from a user. Only
characters that control tokens consist of need replacing, and some must not be: those of texts that the template itself
mentions (`'</think>' in content`), or it would take another path. A complete control token's text always is replaced.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

#: Roles that every template knows; some build control tokens from them ('<|' + role + '|>').
KNOWN_ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function", "ipython", "model"])

_PRIVATE_BEGIN = 0x100000
_PRIVATE_END = 0x10FFFE
_ESCAPED_IN_JSON = frozenset("\"'\\")


class Marker:
    """Knows what has to be marked for one template.

    control: texts of the control tokens. literals: texts that the template's expressions mention. names: keys and
    attributes that it reads.
    """

    def __init__(self, control: Collection[str], literals: Collection[str], names: Collection[str]) -> None:
        chars = {char for text in control for char in text if not (char.isspace() or char in _ESCAPED_IN_JSON)}
        # A token of nothing but such characters could not be told apart without them.
        chars.update(char for text in control if chars.isdisjoint(text) for char in text)
        self.chars = np.array(sorted(map(ord, chars)), np.uint32)
        self.names = frozenset(names)
        self._control = _any_of(control)
        self._kept = _any_of([text for text in literals if not chars.isdisjoint(text)])

    def start(self, given: Any) -> Marking:
        """A fresh marking; its private characters are unguessable and occur nowhere in `given`."""
        while True:
            base = _PRIVATE_BEGIN + secrets.randbelow(_PRIVATE_END - _PRIVATE_BEGIN - len(self.chars))
            marking = Marking(self, base)
            if not marking.occurs_in(given):
                return marking

    def mentions_control(self, given: Any) -> bool:
        """Whether a text of JSON-like data holds a complete control token's text."""
        return self._control is not None and any(map(self._control.search, _texts_in(given)))

    def kept_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Stretches (begin, end) of a user's text that must stay: what the template mentions, outside control texts."""
        if self._kept is None:
            return
        done = 0
        for match in self._control.finditer(text) if self._control else ():
            yield from (kept.span() for kept in self._kept.finditer(text, done, match.start()))
            done = match.end()
        yield from (kept.span() for kept in self._kept.finditer(text, done))


class Marking:
    """The private characters of one rendering: the character of `marker.chars[i]` becomes `base + i`."""

    def __init__(self, marker: Marker, base: int) -> None:
        self._marker = marker
        self._base = base
        count = len(marker.chars)
        self._table = np.arange(int(marker.chars.max(initial=0)) + 1, dtype=np.uint32)
        self._table[marker.chars] = base + np.arange(count, dtype=np.uint32)

    def occurs_in(self, given: Any) -> bool:
        """Whether a text of JSON-like data holds one of the private characters."""
        # Most texts have no character that high; looking closer is slower.
        high = (text for text in _texts_in(given) if not text.isascii() and max(text) >= chr(self._base))
        return any(self._is_private(_chars_of(text)).any() for text in high)

    def mark(self, value: Any, key: str = "") -> Any:
        """A copy of JSON-like data with its texts marked; keys too, unless the template reads them."""
        if isinstance(value, str):
            return value if key == "role" and value in KNOWN_ROLES else self._mark_text(value)
        if isinstance(value, dict):
            names = self._marker.names
            return {
                name if name in names or not isinstance(name, str) else self._mark_text(name): self.mark(part, name)
                for name, part in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.mark(part) for part in value]
        return value

    def unmark(self, text: str) -> str:
        """The text with each private character turned back."""
        chars = _chars_of(text).copy()
        private = self._is_private(chars)
        chars[private] = self._marker.chars[chars[private] - self._base]
        return _text_of(chars)

    def _is_private(self, chars: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        return (chars >= self._base) & (chars < self._base + len(self._marker.chars))

    def _mark_text(self, text: str) -> str:
        chars = _chars_of(text)
        marked = self._table[np.minimum(chars, len(self._table) - 1)]
        outside = chars >= len(self._table)
        marked[outside] = chars[outside]
        for begin, end in self._marker.kept_spans(text):
            marked[begin:end] = chars[begin:end]
        return _text_of(marked)


def _texts_in(value: Any) -> Iterator[str]:
    """All texts of JSON-like data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _texts_in(name)
            yield from _texts_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts_in(part)


def _chars_of(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _text_of(chars: npt.NDArray[np.uint32]) -> str:
    return chars.tobytes().decode("utf-32-le", "surrogatepass")


def _any_of(texts: Collection[str]) -> re.Pattern[str] | None:
    """Finds any of the texts, the longest first."""
    if not texts:
        return None
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
