"""`octavo simulate`: the real scheduler under a virtual clock."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.options import Sources, add_settings, at_least
from octavo.cli.scenario import ProgressBar, add_engine, add_traffic, engine, traffic
from octavo.config import ConfigError, EngineConfig, ServerConfig

if TYPE_CHECKING:
    from octavo.simulate.scenario import Machine

_MEASURED = ("model", "threads", "isa", "activations", "kv_cache_dtype", "kv_cache_memory_bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="measure this machine's executor (two minutes) and write FILE"
    )
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help="simulate the machine that FILE was measured on"
    )
    group.add_argument(
        "--device", default="a100-80g", metavar="NAME", help="a100-80g, h100, h200, l4, mi300x, cpu, or a .json file"
    )
    group.add_argument(
        "--spec", default="llama-3-8b", metavar="NAME", help="the simulated model: a shipped name, or a .json file"
    )
    group.add_argument("--tensor-parallel", type=at_least(1), default=1, metavar="N", help="devices (default: 1)")
    group.add_argument("--type", default="bf16", metavar="TYPE", help="type of the products (default: bf16)")
    group.add_argument(
        "--weight-bytes",
        type=at_least(0.25, float, most=8),
        default=2.0,
        metavar="X",
        help="of one weight (default: 2)",
    )
    group.add_argument("--kv-type", default="bf16", metavar="TYPE", help="of stored K and V (default: bf16)")
    group.add_argument("--replicas", type=at_least(1, most=10_000), default=1, metavar="N", help="default: 1")
    group.add_argument("--router", choices=("round-robin", "least-loaded", "prefix-affine"), default="round-robin")
    group = parser.add_argument_group("replay")
    group.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="reproduce what `octavo serve --record FILE` has written, step for step",
    )
    group.add_argument(
        "--what-if",
        action="store_true",
        help="with --replay: the recorded requests under the engine settings given here (others as recorded), on the "
        "machine that was recorded or the one of --calibration",
    )
    group.add_argument(
        "--kv-tokens", type=at_least(1, most=1e9), metavar="N", help="with --what-if: size of the KV memory"
    )
    add_traffic(parser)
    add_engine(parser)
    parser.add_argument(
        "--max-num-batched-tokens", type=at_least(1), metavar="N", help="token budget (default: 2048, or as calibrated)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="settings and figures, also if interrupted")
    add_settings(parser, EngineConfig, only=_MEASURED)
    add_settings(parser, ServerConfig, only=("log_level",))


def run(arguments: argparse.Namespace) -> int:
    if arguments.calibrate is not None:
        return _calibrate(arguments)
    if arguments.what_if and arguments.replay is None:
        raise ConfigError("--what-if asks about a recording; give one with --replay FILE.")
    if arguments.replay is not None:
        return _what_if(arguments) if arguments.what_if else _replay(arguments)
    return _simulate(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    from octavo.bench.report import write_json
    from octavo.simulate.fleet import Fleet, make_router
    from octavo.simulate.report import Outcome, text

    machine = _machine(arguments)
    config = machine.config(engine(arguments, arguments.max_num_batched_tokens))
    work = traffic(arguments).build(config.max_model_len)
    fleet = Fleet(arguments.replicas, config, machine.virtual, work.load)
    router = make_router(arguments.router, fleet.replicas, work.prefix_of)
    bar, complete, began_s = ProgressBar("simulating"), True, time.perf_counter()
    try:
        fleet.run(router, work.prompt, bar)
    except KeyboardInterrupt:
        complete = False
    bar.end()
    outcome = Outcome.of(fleet, complete, time.perf_counter() - began_s)
    print(f"{machine.name}, {arguments.replicas} replicas; {len(work.load)} requests, {work.rate:.3g} a second")
    if work.clipped:
        print(f"{work.clipped} requests were longer than the context of {config.max_model_len} tokens and are clipped")
    print(text(outcome))
    if arguments.json is not None:
        content = {"complete": complete, "settings": _settings(arguments, machine), "figures": outcome.to_json()}
        write_json(arguments.json, content)
    return 0 if complete else 130


def _replay(arguments: argparse.Namespace) -> int:
    from octavo.simulate.recording import read_recording
    from octavo.simulate.replay import replay_exactly

    bar = ProgressBar("replaying")
    found = replay_exactly(arguments.replay, read_recording(arguments.replay), bar)
    bar.end()
    print(
        f"{found.steps} steps reproduced exactly: {found.requests} requests, {found.tokens} tokens, "
        f"{found.preemptions} preemptions"
    )
    return 0


def _what_if(arguments: argparse.Namespace) -> int:
    """The longest segment of the recording, as it was on the recorded machine, and as it would be."""
    from octavo.bench.report import write_json
    from octavo.simulate.figures import Latencies, plain
    from octavo.simulate.machine import VirtualMachine
    from octavo.simulate.recording import read_recording
    from octavo.simulate.replay import recorded_cost, what_if
    from octavo.simulate.scenario import calibrated_machine

    segment = max(read_recording(arguments.replay), key=lambda one: len(one.events))
    if arguments.calibration is not None:
        virtual = calibrated_machine(arguments.calibration).virtual
    else:
        cost, loop = recorded_cost(arguments.replay, segment)

        def virtual(seed: int) -> VirtualMachine:
            return VirtualMachine(cost, loop, seed=seed)

    changed = engine(arguments, arguments.max_num_batched_tokens).change(segment.config, arguments.kv_tokens)
    content: dict[str, Any] = {"complete": False}
    bar = ProgressBar("simulating")
    print(f"{'milliseconds':<24}{'TTFT p50':>12}{'p99':>12}{'TPOT p50':>12}{'p99':>12}{'E2E p50':>12}{'tokens/s':>12}")
    for name, config in (("as recorded, simulated", segment.config), ("what if", changed)):
        try:
            line, scheduler = what_if(arguments.replay, segment, config, virtual(0), bar)
        except KeyboardInterrupt:
            bar.end()
            print(f"{name:<24}INTERRUPTED")
            break
        found = Latencies.of(line)
        rate = float(line.tokens.sum()) / float(line.finish_s.max())
        cells = (found.ttft_ms.p50, found.ttft_ms.p99, found.tpot_ms.p50, found.tpot_ms.p99, found.e2e_ms.p50, rate)
        bar.end()
        print(f"{name:<24}" + "".join(f"{cell:>12,.1f}" for cell in cells))
        stats = {"preemptions": scheduler.stats().preemptions, "steps": scheduler.stats().steps}
        content[name] = {"latencies": plain(found), "output_tokens_per_s": rate, **stats}
    else:
        content["complete"] = True
    if arguments.json is not None:
        write_json(arguments.json, content)
    return 0 if content["complete"] else 130


def _machine(arguments: argparse.Namespace) -> Machine:
    from octavo.simulate.scenario import analytic_machine, calibrated_machine

    if arguments.calibration is not None:
        return calibrated_machine(arguments.calibration)
    return analytic_machine(
        arguments.device,
        arguments.spec,
        arguments.tensor_parallel,
        arguments.type,
        arguments.weight_bytes,
        arguments.kv_type,
    )


def _settings(arguments: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    given = {name: value for name, value in vars(arguments).items() if name != "json"}
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return {"machine": machine.name, **shown}


def _calibrate(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    config = Sources.read(argparse.Namespace(**given), os.environ).build(EngineConfig)
    if not arguments.calibrate.parent.is_dir():
        raise ConfigError(f"--calibrate {arguments.calibrate}: there is no folder {arguments.calibrate.parent}.")
    from octavo.runtime.build import build_engine
    from octavo.simulate.measure import calibrate

    bar = ProgressBar("measuring")
    found = calibrate(build_engine(config), config, bar)
    bar.end()
    found.write(arguments.calibrate)
    per_token = found.cost.seconds(1, 1, 128, 128, 1) * 1e3
    print(f"{arguments.calibrate}: a decode takes {per_token:.2f} ms alone, the loop {found.loop.step_s * 1e6:.0f} us")
    return 0
