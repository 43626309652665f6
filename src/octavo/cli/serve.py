"""`octavo serve [MODEL]`: the HTTP server."""

from __future__ import annotations

import argparse
import os

from octavo.cli.options import Sources, add_settings
from octavo.config import EngineConfig, ServerConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "octavo serve [MODEL] [flags]"
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="the same as --model")
    add_settings(parser, EngineConfig, ServerConfig)


def run(arguments: argparse.Namespace) -> int:
    if arguments.positional_model is not None:
        arguments.model = arguments.positional_model
    sources = Sources.read(arguments, os.environ)
    engine_config, server_config = sources.build(EngineConfig), sources.build(ServerConfig)
    from octavo.server.main import serve

    return serve(engine_config, server_config)
