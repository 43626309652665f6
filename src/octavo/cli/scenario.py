"""Flags that `octavo simulate` and `octavo plan` share: traffic and engine settings."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.options import at_least

if TYPE_CHECKING:
    from octavo.simulate.scenario import EngineChoice, Traffic


def add_traffic(parser: argparse.ArgumentParser) -> None:
    length, zero = at_least(1, most=1e7), at_least(0, most=1e6)
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.csv",
        help="arrivals and lengths: Azure's columns (TIMESTAMP, ContextTokens, GeneratedTokens), or arrival_s, "
        "prompt_tokens and output_tokens; default: made-up requests",
    )
    group.add_argument(
        "--num-requests",
        type=at_least(1, most=1e8),
        metavar="N",
        help="default: the whole trace, or 1000; more than it has: it is repeated",
    )
    group.add_argument(
        "--request-rate",
        type=at_least(1e-3, float),
        metavar="R",
        help="mean arrivals a second; a trace is stretched to it (default: as in the trace, or 1)",
    )
    group.add_argument("--input-len", type=length, default=512, metavar="N", help="made-up: mean prompt (default: 512)")
    group.add_argument(
        "--output-len", type=length, default=128, metavar="N", help="made-up: mean answer (default: 128)"
    )
    group.add_argument(
        "--prefix-groups", type=zero, default=0, metavar="N", help="so many shared prefixes before the prompts"
    )
    group.add_argument(
        "--prefix-len", type=length, default=512, metavar="N", help="tokens of a shared prefix (default: 512)"
    )
    group.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="of all that is random (default: 0)")


def add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument("--max-model-len", type=at_least(1, most=1e7), metavar="N", help="default: the model's context")
    group.add_argument(
        "--max-num-seqs", type=at_least(1, most=1 << 16), metavar="N", help="default: 256, or as calibrated"
    )
    group.add_argument(
        "--page-size", type=at_least(1, most=1 << 16), metavar="N", help="tokens a page (default: 16, or as calibrated)"
    )
    group.add_argument("--kv-policy", choices=("paged", "contiguous", "contiguous-limit", "buddy"), default="paged")
    group.add_argument("--batch-policy", choices=("continuous", "static"), default="continuous")
    group.add_argument("--static-padding", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("--scheduling-policy", choices=("fcfs", "priority", "fair"), default="fcfs")
    group.add_argument(
        "--target-itl-ms", type=at_least(0, float), default=0.0, metavar="MS", help="as `octavo serve` has it"
    )


def traffic(arguments: argparse.Namespace) -> Traffic:
    from octavo.simulate.scenario import Traffic

    return Traffic(
        trace=arguments.trace,
        count=arguments.num_requests or 0,
        rate=arguments.request_rate or 0.0,
        prompt_tokens=arguments.input_len,
        output_tokens=arguments.output_len,
        prefix_groups=arguments.prefix_groups,
        prefix_tokens=arguments.prefix_len,
        seed=arguments.seed,
    )


def engine(arguments: argparse.Namespace, max_num_batched_tokens: int | None) -> EngineChoice:
    from octavo.simulate.scenario import EngineChoice

    return EngineChoice(
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        page_size=arguments.page_size,
        # no two prompts begin alike without groups: an index could only cost time (a replay has its own, see what_if)
        prefix_caching=arguments.prefix_caching
        and (arguments.prefix_groups > 0 or getattr(arguments, "what_if", False)),
        kv_policy=arguments.kv_policy,
        batch_policy=arguments.batch_policy,
        static_padding=arguments.static_padding,
        target_itl_ms=arguments.target_itl_ms,
        policy=arguments.scheduling_policy,
    )


class ProgressBar:
    """`name |#####-----| 1234/19366, 12 s` on one line of stderr, four times a second, if that is a terminal."""

    _WIDTH = 24

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = sys.stderr.isatty()
        self._began_s = time.perf_counter()
        self._next_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if not self._shown or now < self._next_s:
            return
        self._next_s = now + 0.25
        full = self._WIDTH * done // max(1, total)
        bar = "#" * full + "-" * (self._WIDTH - full)
        line = f"\r\x1b[K{self._name} |{bar}| {done}/{total}, {now - self._began_s:.0f} s"
        print(line, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
