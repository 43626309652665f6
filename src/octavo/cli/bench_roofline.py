"""`octavo bench roofline`: this machine's limits, and how near each op of a model comes to them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from octavo.cli.options import Sources, add_settings, at_least
from octavo.cli.pull import pull
from octavo.config import ConfigError, EngineConfig, ServerConfig

_SETTINGS = ("model", "backend", "page_size", "kv_cache_dtype", "activations", "threads", "isa")
_MOST_ROWS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=at_least(1),
        nargs="+",
        metavar="N",
        help="tokens of the steps that are measured (default: 1 8 32 128 512)",
    )
    parser.add_argument(
        "--formats", action="store_true", help="also measure matrices of one shape in every format of weights"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write settings and figures there, also if interrupted"
    )
    add_settings(parser, EngineConfig, only=_SETTINGS)
    add_settings(parser, ServerConfig, only=("log_level",))


def run(arguments: argparse.Namespace) -> int:
    config = Sources.read(arguments, os.environ).build(EngineConfig)
    from octavo.bench.report import write_json
    from octavo.bench.roofline import ROWS, run_roofline
    from octavo.bench.roofline_report import text

    rows = sorted(set(arguments.rows or ROWS))
    if rows[-1] > _MOST_ROWS:
        raise ConfigError(f"--rows is {rows[-1]}; it must be at most {_MOST_ROWS}.")
    pull(config.model)
    terminal = sys.stderr.isatty()

    def show(what: str) -> None:
        print(f"\r\x1b[K{what}" if terminal else what, end="" if terminal else "\n", file=sys.stderr, flush=True)

    result = run_roofline(config, rows, show, arguments.formats)
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(text(result))
    if arguments.json is not None:
        write_json(arguments.json, result.to_json())
    return 0 if result.complete else 130
