"""How far fetching or converting a model is, on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_REDRAW_S = 0.1
_BAR_WIDTH = 28


class Bar:
    """A progress bar on a terminal's stderr; elsewhere one line for each thing that is done.

    `with Bar() as bar:` clears it at the end.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._drawn_s = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal and self._what:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, what: str, done: int, total: int) -> None:
        """Draw `done` of `total` bytes; called as often as the worker likes."""
        if not self._terminal:
            if what != self._what:
                self._what = what
                print(f"{what} ({rounded_size(total)})", file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if what == self._what and now - self._drawn_s < _REDRAW_S and done < total:
            return
        self._what, self._drawn_s = what, now
        print("\r\x1b[K" + draw(what, done, total), end="", file=sys.stderr, flush=True)


def draw(what: str, done: int, total: int) -> str:
    """`what [#####.....] 50% of 93.8MiB`."""
    share = min(1.0, done / total) if total else 0.0
    filled = round(share * _BAR_WIDTH)
    return f"{what} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%} of {rounded_size(total)}"


def rounded_size(size: int) -> str:
    """98362432 -> 93.8MiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f}{unit}"
    return str(size)
