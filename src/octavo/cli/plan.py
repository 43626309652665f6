"""`octavo plan`: the fewest replicas, and the best device, that serve a trace within limits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.options import add_settings, at_least
from octavo.cli.scenario import ProgressBar, add_engine, add_traffic, engine, traffic
from octavo.config import ServerConfig

if TYPE_CHECKING:
    from octavo.simulate.plan import Asked, LoadPoint, Option, Trial

_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    positive = at_least(1e-3, float)
    group = parser.add_argument_group("service level")
    group.add_argument("--ttft-p99-ms", type=positive, required=True, metavar="MS", help="most for the first token")
    group.add_argument("--tpot-p99-ms", type=positive, required=True, metavar="MS", help="most for each further one")
    group = parser.add_argument_group("options")
    group.add_argument(
        "--devices", nargs="+", default=["a100-80g", "h100"], metavar="NAME", help="default: a100-80g h100"
    )
    group.add_argument(
        "--spec", default="llama-3-8b", metavar="NAME", help="the model: a shipped name, or a .json file"
    )
    group.add_argument("--tensor-parallel", nargs="+", type=at_least(1), default=[1], metavar="N", help="default: 1")
    group.add_argument("--budgets", nargs="+", type=at_least(1), default=[2048], metavar="N", help="default: 2048")
    group.add_argument("--type", default="bf16", metavar="TYPE", help="type of the products (default: bf16)")
    group.add_argument(
        "--weight-bytes", type=at_least(0.25, float, most=8), default=2.0, metavar="X", help="default: 2"
    )
    group.add_argument("--kv-type", default="bf16", metavar="TYPE", help="of stored K and V (default: bf16)")
    group.add_argument("--router", choices=("round-robin", "least-loaded", "prefix-affine"), default="least-loaded")
    group.add_argument("--max-replicas", type=at_least(1, most=10_000), default=64, metavar="N", help="default: 64")
    group.add_argument(
        "--prices",
        type=Path,
        metavar="FILE.json",
        help='such as {"currency": "USD", "per_hour": {"h100": 3.0}}; without, device-hours are compared',
    )
    add_traffic(parser)
    add_engine(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all trials, also if interrupted")
    parser.add_argument("--report", type=Path, metavar="FILE", help="one HTML page with plots (needs `octavo[bench]`)")
    parser.add_argument(
        "--sweep-requests", type=at_least(16), default=4000, metavar="N", help="for the plots over load (default: 4000)"
    )
    add_settings(parser, ServerConfig, only=("log_level",))


def run(arguments: argparse.Namespace) -> int:
    from octavo.bench.document import need_plots
    from octavo.bench.report import write_json
    from octavo.simulate.plan import best

    if arguments.report is not None:
        need_plots()
    asked = _asked(arguments)
    options, skipped = _options(arguments)
    trials: list[Trial] = []
    points: list[LoadPoint] = []
    complete = True
    try:
        _try_all(asked, options, trials)
        chosen = best(trials)
        if arguments.report is not None and chosen is not None:
            _sweep(asked, chosen, arguments.sweep_requests, points)
    except KeyboardInterrupt:
        complete = False
        chosen = best(trials)
    lines = skipped + _summary(asked, trials, chosen, complete)
    print("\n".join(lines))
    if arguments.json is not None:
        write_json(
            arguments.json, {"complete": complete, "summary": lines, "trials": [made.to_json() for made in trials]}
        )
    if arguments.report is not None:
        from octavo.bench.plan_page import page
        from octavo.formats.whole_file import write_whole

        write_whole(arguments.report, page(lines, trials, points, asked.level))
    return 130 if not complete else 0 if chosen is not None else 1


def _asked(arguments: argparse.Namespace) -> Asked:
    from octavo.simulate.plan import Asked, Level, Prices

    return Asked(
        work=traffic(arguments).build,
        level=Level(arguments.ttft_p99_ms, arguments.tpot_p99_ms),
        router=arguments.router,
        prices=Prices.read(arguments.prices, arguments.devices),
        max_replicas=arguments.max_replicas,
    )


def _options(arguments: argparse.Namespace) -> tuple[list[Option], list[str]]:
    """All combinations that can be, and a sentence for each setup that can't. Raises FileError."""
    from octavo.simulate.fields import FileError
    from octavo.simulate.plan import Option
    from octavo.simulate.scenario import analytic_machine

    found: list[Option] = []
    skipped: list[str] = []
    for device in arguments.devices:
        for degree in arguments.tensor_parallel:
            try:
                machine = analytic_machine(
                    device, arguments.spec, degree, arguments.type, arguments.weight_bytes, arguments.kv_type
                )
                for budget in arguments.budgets:
                    choice = engine(arguments, budget)
                    machine.config(choice)
                    found.append(Option(device, degree, budget, machine, choice))
            except FileError:
                raise
            except ValueError as error:
                skipped.append(f"{device} x {degree} is left out: {error}")
    if not found:
        raise ValueError("nothing that was asked for can serve this model: " + " ".join(skipped))
    return found, skipped


def _try_all(asked: Asked, options: list[Option], trials: list[Trial]) -> None:
    from octavo.simulate.plan import fewest

    for option in options:
        bar = ProgressBar(option.name)
        try:
            for made in fewest(asked, option, bar):
                trials.append(made)  # one by one: an interrupt keeps those that were made
        finally:
            bar.end()


def _sweep(asked: Asked, chosen: Trial, most_requests: int, points: list[LoadPoint]) -> None:
    from octavo.simulate.plan import sweep

    bar = ProgressBar("over load")
    try:
        for point in sweep(asked, chosen, _FACTORS, most_requests, bar):
            points.append(point)
    finally:
        bar.end()


def _summary(asked: Asked, trials: list[Trial], chosen: Trial | None, complete: bool) -> list[str]:
    from octavo.simulate.plan import Bill, next_cheaper

    level, lines = asked.level, []
    if not complete:
        lines.append("INTERRUPTED: what follows is the best of what had been tried.")
    limits = f"TTFT p99 {level.ttft_p99_ms:g} ms and TPOT p99 {level.tpot_p99_ms:g} ms"
    if chosen is None or chosen.latencies is None:
        reasons = {made.option.name: made for made in trials}
        lines.append(f"Nothing with at most {asked.max_replicas} replicas was found that meets {limits}.")
        lines += [f"{name}: {made.replicas} replicas fail: {made.reason}." for name, made in reasons.items()]
        return lines
    load = asked.work(chosen.option.machine.config(chosen.option.choice).max_model_len).load
    bill, currency = Bill.of(chosen, load), asked.prices.currency
    found = chosen.latencies
    lines += [
        f"{chosen.replicas} replicas of {chosen.option.name} ({chosen.devices} devices) meet {limits}: "
        f"TTFT p99 {found.ttft_ms.p99:.0f} ms, TPOT p99 {found.tpot_ms.p99:.1f} ms.",
        f"The trace lasts {bill.hours:.2f} h: {bill.device_hours:.2f} device-hours, {bill.price:.2f} {currency}, "
        f"{bill.per_million_output:.3f} {currency} per million output tokens, {bill.per_million_total:.3f} per million "
        "tokens in and out.",
    ]
    cheaper = next_cheaper(trials, chosen)
    if cheaper is not None:
        lines.append(f"Next cheaper, {cheaper.replicas} replicas of {cheaper.option.name}, fail: {cheaper.reason}.")
    else:
        lines.append("Nothing that was asked for is cheaper.")
    return lines
