"""`octavo bench policies`: paging and continuous batching beside what engines did before, on this machine."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.bench import add_workload, workload
from octavo.cli.options import Sources, add_settings, at_least
from octavo.cli.pull import pull
from octavo.config import EngineConfig, ServerConfig

if TYPE_CHECKING:
    from octavo.bench.policies.report import Comparison
    from octavo.bench.policies.run import Outcome
    from octavo.simulate.scenario import Machine

PAGE_SIZES = (4, 8, 16, 32, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_workload(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--request-rate",
        type=at_least(1e-3, float),
        default=math.inf,
        metavar="R",
        help="mean arrivals a second, as a Poisson process; a trace is stretched to it; inf: all at once (default)",
    )
    group.add_argument(
        "--kv-sequences",
        type=at_least(1),
        default=8,
        metavar="N",
        help="KV memory, in sequences of max-model-len tokens (default: 8)",
    )
    group.add_argument(
        "--max-tokens",
        type=at_least(1),
        default=256,
        metavar="N",
        help="what every request asks for at most, though its answer ends earlier (default: 256)",
    )
    group.add_argument(
        "--combinations",
        nargs="+",
        default=[],
        metavar="KV/BATCH",
        help="such as paged/continuous or contiguous/static-dropped (default: eight of them)",
    )
    group.add_argument(
        "--rounds",
        type=at_least(1),
        default=1,
        metavar="N",
        help="times through all combinations; three for a claim, as a machine drifts between runs (default: 1)",
    )
    group.add_argument(
        "--simulated",
        nargs="*",
        default=["a100-80g/llama-3-8b"],
        metavar="DEVICE/SPEC",
        help="also simulate the same on these (default: a100-80g/llama-3-8b; nothing after the flag: none)",
    )
    group.add_argument("--no-page-sizes", action="store_true", help="leave out the waste over page sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="settings and figures, also if interrupted")
    parser.add_argument("--report", type=Path, metavar="FILE", help="one HTML page with plots (needs `octavo[bench]`)")
    add_settings(parser, EngineConfig)
    add_settings(parser, ServerConfig, only=("log_level",))


def run(arguments: argparse.Namespace) -> int:
    config = Sources.read(arguments, os.environ).build(EngineConfig)
    from octavo.bench.policies.report import Comparison, text
    from octavo.bench.policies.run import ALL, Combination
    from octavo.bench.report import write_json

    combinations = [Combination.parse(one) for one in arguments.combinations] or list(ALL)
    machines = [_simulated(one) for one in arguments.simulated]
    if arguments.report is not None:
        from octavo.bench.document import need_plots

        need_plots()
    comparison = Comparison(settings={})

    def save() -> None:
        if arguments.json is not None:
            write_json(arguments.json, comparison.to_json())

    try:
        _measure(arguments, config, combinations, machines, comparison, save)
        every = [one for found in (*comparison.rounds, *comparison.simulated.values()) for one in found]
        comparison.complete = all(outcome.complete for outcome in every)
    except KeyboardInterrupt:
        pass
    _clear()
    print(text(comparison))
    save()
    if arguments.report is not None and comparison.outcomes:
        from octavo.bench.policies.page import write_page

        write_page(arguments.report, comparison)
    return 0 if comparison.complete else 130


def _measure(
    arguments: argparse.Namespace,
    config: EngineConfig,
    combinations: list[Any],
    machines: list[Machine],
    comparison: Comparison,
    save: Callable[[], None],
) -> None:
    from octavo.bench.policies.run import run_combination
    from octavo.bench.policies.workload import build
    from octavo.runtime.build import build_engine
    from octavo.simulate.machine import RealMachine, VirtualMachine

    pull(config.model)
    # Comparable: in contiguous memory all layers are one KV group, whatever windows they have.
    engine = build_engine(replace(config, kv_policy="contiguous"))
    facts = engine.facts
    pages = arguments.kv_sequences * -(-facts.max_model_len // facts.page_size)
    if pages > facts.num_pages:
        raise ValueError(
            f"--kv-sequences {arguments.kv_sequences} of {facts.max_model_len} tokens need {pages} pages; this machine "
            f"has room for {facts.num_pages}. Lower --kv-sequences or --max-model-len."
        )
    base = replace(engine.scheduler.config, num_pages=pages, eos_ids=frozenset())
    work = build(workload(arguments), config.model, facts.vocab, facts.max_model_len, arguments.request_rate)
    comparison.settings = {
        "model": config.model,
        "workload": work.text,
        "max_tokens": arguments.max_tokens,
        "kv_tokens": pages * facts.page_size,
        "kv_bytes": pages * facts.page_size * facts.kv_bytes_per_token,
        "max_model_len": facts.max_model_len,
        "page_size": facts.page_size,
        "max_num_seqs": base.max_num_seqs,
        "max_num_batched_tokens": base.max_num_batched_tokens,
        "engine": facts.texts,
    }
    for _ in range(arguments.rounds):
        outcomes: list[Outcome] = []
        comparison.rounds.append(outcomes)
        for combination in combinations:
            outcome = run_combination(
                combination,
                base,
                lambda: RealMachine(engine.executor),
                work.load,
                work.prompt,
                arguments.max_tokens,
                _show,
            )
            outcomes.append(outcome)
            save()
            if not outcome.complete:
                return
    for machine in machines:
        found = comparison.simulated[machine.name] = []
        for combination in combinations:
            machine_of = partial(VirtualMachine, machine.cost)
            found.append(
                run_combination(combination, base, machine_of, work.load, work.prompt, arguments.max_tokens, _show)
            )
            save()
            if not found[-1].complete:
                return
    if not arguments.no_page_sizes:
        from octavo.bench.policies.page_sizes import waste_by_page_size

        comparison.page_sizes = waste_by_page_size(base, work, arguments.max_tokens, PAGE_SIZES)


def _simulated(text: str) -> Machine:
    from octavo.simulate.scenario import analytic_machine

    device, _, spec = text.partition("/")
    return analytic_machine(device, spec or "llama-3-8b", 1, "bf16", 2.0)


def _show(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{name}: {done}/{total} requests", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
