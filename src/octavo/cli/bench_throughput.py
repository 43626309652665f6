"""`octavo bench throughput`: the engine in this process, no server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from octavo.cli.bench import add_workload, workload
from octavo.cli.options import Sources, add_settings
from octavo.cli.pull import pull
from octavo.config import EngineConfig, ServerConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write settings and figures there, also if interrupted"
    )
    add_settings(parser, EngineConfig)
    add_settings(parser, ServerConfig, only=("log_level",))


def run(arguments: argparse.Namespace) -> int:
    config = Sources.read(arguments, os.environ).build(EngineConfig)
    from octavo.bench.report import write_json
    from octavo.bench.throughput import run_throughput, text
    from octavo.bench.workload import tokenizer_of
    from octavo.runtime.build import build_engine

    pull(config.model)
    work = workload(arguments)
    tokenizer = tokenizer_of(config.model)
    requests, warm_up = work.build(tokenizer)
    engine = build_engine(config)
    terminal = sys.stderr.isatty()

    def show(done: int, total: int, elapsed_s: float) -> None:
        if terminal:
            line = f"\r\x1b[K{done}/{total} tokens, {done / elapsed_s:.0f} tokens/s"
            print(line, end="", file=sys.stderr, flush=True)

    result = run_throughput(engine, tokenizer, requests, warm_up, show)
    print("\r\x1b[K" * terminal + text(result))
    if arguments.json is not None:
        settings = {"engine": engine.facts.texts, "workload": work.to_json()}
        write_json(arguments.json, {**settings, "figures": result.to_json()})
    return 0 if result.complete else 130
