"""Stop strings in a growing text: found wherever they are cut, and never sent by mistake."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string that a growing text completes, and holds back what may become one.

    The outcome does not depend on how the text is cut into pieces: the text ends at the first character that completes
    a stop string (the longest one, if several end there). Each character costs amortised constant time for each stop
    string (Knuth, Morris and Pratt, 1977), however long the strings are.

    Attributes: found, the stop string, or None so far.
    """

    __slots__ = ("_automata", "_first_chars", "_held", "_include", "found")

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        self._automata = [_Automaton(text) for text in stop]
        self._first_chars = frozenset(text[0] for text in stop)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """More text; returns what may be sent: all up to the stop string, or up to what may become one."""
        if self.found is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text
        for index, char in enumerate(text):
            complete = [automaton.text for automaton in self._automata if automaton.step(char)]
            if complete:
                self.found = max(complete, key=len)
                whole = self._held + text[: index + 1]
                self._held = ""
                return whole if self._include else whole[: len(whole) - len(self.found)]
        whole = self._held + text
        sure = len(whole) - max(automaton.matched for automaton in self._automata)
        self._held = whole[sure:]
        return whole[:sure]

    def end(self) -> str:
        """The text is over: what was held back."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How much of one stop string the text's end matches. The failure table grows only as far as it is needed."""

    __slots__ = ("_failure", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._failure = [0]

    def step(self, char: str) -> bool:
        """One more character; returns whether the string is complete."""
        text = self.text
        matched = self._longest(self.matched, char)
        if matched == len(text):
            return True
        while len(self._failure) < matched:
            at = len(self._failure)
            self._failure.append(self._longest(self._failure[at - 1], text[at]))
        self.matched = matched
        return False

    def _longest(self, matched: int, char: str) -> int:
        """Length of the longest prefix that ends with the `matched` characters and `char`."""
        while matched and self.text[matched] != char:
            matched = self._failure[matched - 1]
        return matched + 1 if self.text[matched] == char else 0
