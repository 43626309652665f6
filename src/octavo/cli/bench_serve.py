"""`octavo bench serve --base-url URL`: load a server and print latencies, throughput and goodput."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from octavo.cli.bench import add_workload, workload
from octavo.cli.options import at_least
from octavo.cli.pull import pull
from octavo.config import ConfigError, EngineConfig

#: Only there $OPENAI_API_KEY is sent without being asked for: a real key must not go to whatever --base-url names.
_OPENAI = "https://api.openai.com"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--base-url", default="http://127.0.0.1:8000", metavar="URL", help="default: http://127.0.0.1:8000"
    )
    group.add_argument("--model", default="", metavar="NAME", help="default: the first that /v1/models lists")
    group.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions", help="default: completions"
    )
    group.add_argument("--api-key", metavar="KEY", help=f"default: none; for {_OPENAI}, $OPENAI_API_KEY")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--request-rate",
        type=at_least(1e-3, float),
        default=math.inf,
        metavar="R",
        help="mean arrivals a second, as a Poisson process; inf: all at once (default)",
    )
    group.add_argument(
        "--max-concurrency", type=at_least(1), metavar="N", help="most requests in flight (default: all)"
    )
    group.add_argument(
        "--timeout",
        type=at_least(0.1, float),
        default=600.0,
        metavar="S",
        help="seconds a request may take (default: 600)",
    )
    group.add_argument("--temperature", type=at_least(0, float), default=0.0, metavar="T", help="default: 0")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for exactly the output length (default); turn off for servers that know only OpenAI's fields",
    )
    add_workload(parser)
    parser.add_argument(
        "--tokenizer",
        default=EngineConfig().model,
        metavar="MODEL",
        help=f"whose tokens the data set is measured in (default: {EngineConfig().model})",
    )
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="LIMIT", help="limits of a good request: ttft:MS tpot:MS e2e:MS"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write settings and figures there, also if interrupted"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def run(arguments: argparse.Namespace) -> int:
    from octavo.bench.loadgen import Load
    from octavo.bench.report import text, write_json
    from octavo.bench.serve import run_serve
    from octavo.bench.stats import Limits, figures
    from octavo.bench.workload import tokenizer_of

    try:
        limits = Limits.parse(arguments.goodput)
    except ValueError as error:
        raise ConfigError(f"--goodput: {error}") from None
    pull(arguments.tokenizer)
    work = workload(arguments)
    requests, warm_up = work.build(tokenizer_of(arguments.tokenizer))
    sampling: dict[str, Any] = {"temperature": arguments.temperature}
    if arguments.ignore_eos:
        sampling["ignore_eos"] = True
    load = Load(
        endpoint=arguments.endpoint,
        model=arguments.model,
        sampling=sampling,
        rate=arguments.request_rate,
        concurrency=arguments.max_concurrency,
        seed=arguments.seed,
        timeout_s=arguments.timeout,
    )
    done = run_serve(arguments.base_url, requests, warm_up, load, _api_key(arguments))
    result = figures(done, limits)
    print(text(result, limits))
    if arguments.json is not None:
        write_json(arguments.json, _record(arguments, work.to_json(), result.to_json()))
    if not result.complete:
        return 130
    return 0 if not result.failed else 1


def _api_key(arguments: argparse.Namespace) -> str | None:
    given: str | None = arguments.api_key
    at_openai = arguments.base_url == _OPENAI or arguments.base_url.startswith(_OPENAI + "/")
    return given or (os.environ.get("OPENAI_API_KEY") if at_openai else None)


def _record(arguments: argparse.Namespace, work: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """What goes into the JSON file: enough to run the same again."""
    import datetime

    from octavo import __version__

    load = {
        "endpoint": arguments.endpoint,
        "request_rate": arguments.request_rate if math.isfinite(arguments.request_rate) else None,
        "max_concurrency": arguments.max_concurrency,
        "temperature": arguments.temperature,
        "ignore_eos": arguments.ignore_eos,
    }
    return {
        "octavo": __version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "base_url": arguments.base_url,
        "model": arguments.model or None,
        "load": load,
        "workload": work,
        "figures": result,
    }
