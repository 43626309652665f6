"""Octavo and its peers on the same work, taking turns: JSON, a table, plots and docs/performance.md.

    python benchmarks/side_by_side.py --json side.json [--workloads W1,W2] [--peers llamacpp-q4_0,vllm-w8a8]
                                      [--rounds 3] [--quick] [--native | --llama-server PATH] [--resume]
    python benchmarks/side_by_side.py --json side.json --page docs/performance.md --only-page

Peers are installed from packages on first use, each into an environment of its own in Octavo's cache folder. One engine
runs at a time, the load generator shares the machine with it, and every measurement sends text that no other one sends.
A peer that can't be installed is left out, said in one sentence, and makes the exit status 1. The JSON file is written
after every measurement; an interrupted run is marked there, and --resume measures what is missing.

--quick sends fewer requests. llama.cpp comes from the `xllamacpp` wheel, which knows AVX2 only, so ratios to it are
divided by 1.4; --native builds llama-server from source for this CPU first, --llama-server takes one that is there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

from geometries import FORMATS, GEOMETRIES, geometry_file
from peers.errors import PeerError
from peers.llamacpp_build import built_path, native_server
from peers.registry import DEFAULT, engines
from sidebyside.accuracy import measure_perplexity
from sidebyside.machine import describe
from sidebyside.page import table, write_page
from sidebyside.results import OURS, Results
from sidebyside.run import Runner, Visit, prepared, visits
from sidebyside.workloads import Texts, Work, select

from octavo.bench.workload import tokenizer_of
from octavo.config import EngineConfig
from octavo.formats.errors import ModelFileError, ModelNotFoundError
from octavo.formats.resolve import resolve


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="results; kept up to date during the run")
    parser.add_argument("--workloads", default="W1,W2,W3,W3-goodput,W4,W5", help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(DEFAULT[1:]), help="default: %(default)s; none: Octavo alone")
    parser.add_argument("--rounds", type=int, default=1, help="default: 1; three for a claim")
    parser.add_argument("--quick", action="store_true", help="fewer requests, for a first look")
    parser.add_argument("--requests", type=int, help="requests of each W2 and W3 load (default: 128 and 60)")
    parser.add_argument(
        "--model",
        default=EngineConfig().model,
        help=f"GGUF file or catalogue name, or random weights: {', '.join(GEOMETRIES)} with :{', :'.join(FORMATS)}",
    )
    parser.add_argument("--native", action="store_true", help="build llama-server here with native flags")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="a natively built llama-server")
    parser.add_argument("--salt", type=int, default=1, help="another one gives other text (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --json")
    parser.add_argument("--perplexity", type=int, metavar="TOKENS", help="also score each engine's weights on text")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page there, plots beside it")
    parser.add_argument("--only-page", action="store_true", help="measure nothing, write the page of --json")
    return parser


def main() -> int:
    arguments = parser().parse_args()
    # A time limit around a run ends it with SIGTERM: servers must be stopped then, too.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _main(arguments)
    except (ValueError, PeerError, ModelNotFoundError, ModelFileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _main(arguments: argparse.Namespace) -> int:
    if arguments.only_page:
        return _report(Results.read(arguments.json), arguments.page, 0)
    if arguments.rounds < 1:
        raise ValueError(f"--rounds is {arguments.rounds}; it must be at least 1.")
    works = select(arguments.workloads, arguments.quick)
    if arguments.requests is not None:
        works = [work.with_count(arguments.requests) if work.name.startswith(("W2", "W3")) else work for work in works]
    if arguments.native:
        arguments.llama_server = native_server(len(os.sched_getaffinity(0)))
    elif arguments.llama_server is None and built_path().exists():
        arguments.llama_server = built_path()
    model = str(geometry_file(arguments.model)) if ":" in arguments.model else arguments.model
    factories = engines(model, lambda: resolve(model).path, arguments.llama_server)
    names = _names(arguments.peers, factories)
    facts = _facts(arguments, works)
    results = Results.read(arguments.json) if arguments.resume else Results.new(arguments.json, facts)
    if arguments.resume:
        results.go_on(facts)
    chosen = prepared(factories, names, results)
    if arguments.perplexity is not None:
        measure_perplexity(results, chosen, model, arguments.perplexity)
    plan = [visit for turn in range(arguments.rounds) for visit in visits(turn, chosen, works)]
    status = _measure(results, Texts(tokenizer_of(model)), model, arguments.salt, plan)
    return _report(results, arguments.page, status)


def _names(peers: str, known: Collection[str]) -> list[str]:
    names = [OURS, *(part.strip() for part in peers.split(",") if part.strip() not in ("", "none", OURS))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--peers has {unknown[0]!r}; known are {', '.join(known)}.")
    return names


def _measure(results: Results, texts: Texts, model: str, salt: int, plan: Sequence[Visit]) -> int:
    results.content["complete"] = False
    try:
        good = Runner(results, texts, model, salt).run(plan)
    except KeyboardInterrupt:
        results.content["interrupted"] = True
        results.save()
        kept = len(results.content["measurements"])
        print(f"interrupted: {kept} measurements kept, marked incomplete; --resume measures the rest.", file=sys.stderr)
        return 130
    results.content.pop("interrupted", None)
    results.content["complete"] = good and not results.content["failed"]
    results.save()
    return 0 if results.content["complete"] else 1


def _report(results: Results, page: Path | None, status: int) -> int:
    print(table(results))
    if page is not None:
        write_page(results, page)
        print(f"written: {page}", file=sys.stderr)
    return status


def _facts(arguments: argparse.Namespace, works: Sequence[Work]) -> dict[str, object]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commands": ["python benchmarks/side_by_side.py " + " ".join(_told(sys.argv[1:]))],
        "model": arguments.model,
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "machine": describe(),
        "workloads": {
            work.name: {"title": work.title, "requests": work.requests.count, **work.requests.to_json()}
            for work in works
        },
    }


def _told(words: Sequence[str]) -> list[str]:
    """The command line without this machine's folders."""
    return [Path(word).name if word.startswith("/") else word for word in words]


if __name__ == "__main__":
    sys.exit(main())
