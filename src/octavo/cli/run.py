"""`octavo run "prompt"`: one answer, streamed."""

from __future__ import annotations

import argparse
import sys

from octavo.cli import answer

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = 'octavo run "PROMPT" [flags]'
    parser.add_argument(
        "prompt", nargs="*", metavar="PROMPT", help="the question; without it, or for -, read from stdin"
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without the model's chat template"
    )
    answer.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    prompt = " ".join(arguments.prompt)
    if prompt in ("", "-"):
        prompt = sys.stdin.read().strip()
    if not prompt:
        raise ValueError('the prompt is empty; give it as an argument (octavo run "Why is the sky blue?") or on stdin.')
    with answer.open_llm(arguments) as llm:
        params = answer.sampling(arguments, llm.default_params())
        asked: str | list[dict[str, str]] = prompt
        if not arguments.raw:
            system = [{"role": "system", "content": arguments.system}] if arguments.system else []
            asked = [*system, {"role": "user", "content": prompt}]
        given = answer.stream_answer(llm, asked, params)
    answer.show_statistics(given, arguments)
    return _INTERRUPTED if given.stopped else 0
