"""`octavo pull NAME`: fetch a model or data set now, so that nothing has to be fetched later."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from octavo.cli.options import show_size
from octavo.config import ConfigError

_REDRAW_S = 0.1
_BAR_WIDTH = 28


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "octavo pull NAME | octavo pull --list"
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from the list, or a hub id such as org/model")
    parser.add_argument("--list", action="store_true", help="show what the catalogue holds and what is here already")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        print(catalogue_table())
        return 0
    if arguments.name is None:
        raise ConfigError("name what to pull; `octavo pull --list` shows the catalogue.")
    print(pull(arguments.name))
    return 0


def pull(name: str) -> Path:
    """The file or folder of that name, fetched with a progress bar on stderr."""
    from octavo.formats.catalogue import find
    from octavo.formats.resolve import resolve, resolve_dataset

    bar = Bar()
    try:
        if find(name, "dataset") is not None:
            return resolve_dataset(name, bar.show)
        return resolve(name, bar.show).path
    finally:
        bar.end()


def catalogue_table() -> str:
    """Name, kind, size, whether it is here, and what it is."""
    from octavo.formats.catalogue import CATALOGUE, cache_folder

    folder = cache_folder()
    rows = [("NAME", "KIND", "SIZE", "HERE", "WHAT")]
    for entry in CATALOGUE:
        here = "yes" if entry.cached_path(folder).is_file() else "no"
        rows.append((entry.name, entry.kind, rounded_size(entry.file_bytes), here, entry.about))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    return "\n".join([*lines, "", f"kept in {folder} (change with OCTAVO_CACHE)"])


def rounded_size(size: int) -> str:
    """98362432 -> 93.8MiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f}{unit}"
    return show_size(size)


class Bar:
    """A progress bar on a terminal's stderr; elsewhere one line for each thing that is done."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._what = ""
        self._drawn_s = 0.0

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

    def end(self) -> None:
        if self._terminal and self._what:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def draw(what: str, done: int, total: int) -> str:
    """`what [#####.....] 50% of 93.8MiB`."""
    share = min(1.0, done / total) if total else 0.0
    filled = round(share * _BAR_WIDTH)
    return f"{what} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%} of {rounded_size(total)}"
