"""The errors of this room: one sentence each, ready to be shown to a user."""

from __future__ import annotations

from pathlib import Path

_MAX_SHOWN_CHARS = 600
# A problem that begins with one of these has the file as its subject.
_VERBS = frozenset(["can't", "claims", "ends", "has", "holds", "is", "lists", "must", "names", "needs", "says"])


class ModelFileError(ValueError):
    """A model file that is damaged, hostile or of a kind that Octavo can't read.

    The message names the file, the part of it that is wrong, and expected and actual values. Names that come from the
    file are cut and stripped of control characters, so that it is safe to print.
    """

    def __init__(self, path: Path, problem: str) -> None:
        shown = "".join(char if char.isprintable() else "?" for char in problem[:_MAX_SHOWN_CHARS])
        super().__init__(f"{path} {shown}" if shown.split(" ", 1)[0] in _VERBS else f"{path}: {shown}")
        self.path = path


class ModelNotFoundError(ValueError):
    """A model or data set that can't be found or fetched; the message says where was looked and what to do."""
