"""`octavo pull NAME`: fetch a model or data set now, so that nothing has to be fetched later."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.config import ConfigError
from octavo.formats.progress_bar import Bar, rounded_size


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
    from octavo.formats.resolve import resolve

    if find(name, "dataset") is not None:
        return pull_dataset(name)
    with Bar() as bar:
        return resolve(name, bar.show).path


def pull_dataset(name: str) -> Path:
    """The data set's file (a path, or a name of the catalogue), fetched with a progress bar on stderr."""
    from octavo.formats.resolve import resolve_dataset

    with Bar() as bar:
        return resolve_dataset(name, bar.show)


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
