"""`octavo bench serve`, `octavo bench throughput` and `octavo bench roofline`."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from octavo.cli.options import at_least
from octavo.cli.pull import pull_dataset

if TYPE_CHECKING:
    from octavo.bench.workload import Workload

SUBJECTS = {
    "serve": "measure a server over HTTP: any that speaks the OpenAI API",
    "throughput": "measure the engine in this process, without a server",
    "roofline": "measure this machine's limits and how near each op of a model comes to them",
    "policies": "compare paging and continuous batching with what engines did before",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    for subject, summary in SUBJECTS.items():
        module = importlib.import_module(f"octavo.cli.bench_{subject}")
        module.add_arguments(subjects.add_parser(subject, help=summary, description=summary, allow_abbrev=False))


def run(arguments: argparse.Namespace) -> int:
    module = importlib.import_module(f"octavo.cli.bench_{arguments.subject}")
    status: int = module.run(arguments)
    return status


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Flags that say what the requests are."""
    count, zero = at_least(1), at_least(0)
    group = parser.add_argument_group("requests")
    group.add_argument("--num-prompts", type=count, default=128, metavar="N", help="requests (default: 128)")
    group.add_argument(
        "--num-warmups", type=zero, default=4, metavar="N", help="sent before, not measured (default: 4)"
    )
    group.add_argument(
        "--dataset", default="sharegpt", metavar="NAME", help="sharegpt, random, or a JSON file like ShareGPT's"
    )
    group.add_argument("--input-len", type=count, default=128, metavar="N", help="random: prompt tokens (default: 128)")
    group.add_argument(
        "--output-len", type=count, default=128, metavar="N", help="random: output tokens (default: 128)"
    )
    group.add_argument(
        "--prefix-len", type=zero, default=0, metavar="N", help="random: first tokens that all share (default: 0)"
    )
    group.add_argument("--seed", type=zero, default=0, metavar="N", help="of selection and arrivals (default: 0)")
    group.add_argument(
        "--salt",
        type=zero,
        metavar="N",
        help="begin each prompt with six digits made from N: a new N, and no cache of an earlier run helps",
    )


def workload(arguments: argparse.Namespace) -> Workload:
    """What `add_workload`'s flags say; its data set is fetched now if it is not here."""
    from octavo.bench.workload import Workload
    from octavo.formats.catalogue import find

    if find(arguments.dataset, "dataset") is not None:
        pull_dataset(arguments.dataset)
    return Workload(
        count=arguments.num_prompts,
        warm_up=arguments.num_warmups,
        dataset=arguments.dataset,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        prefix_len=arguments.prefix_len,
        seed=arguments.seed,
        salt=arguments.salt,
    )
