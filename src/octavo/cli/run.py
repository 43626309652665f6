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
        "--raw", action="store_true", help="continue the prompt as it is, as with models that have no chat template"
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
        given = answer.stream_answer(llm, _asked(prompt, arguments, llm.why_no_chat), params)
    answer.show_statistics(given, arguments)
    return _INTERRUPTED if given.stopped else 0


def _asked(prompt: str, arguments: argparse.Namespace, why_no_chat: str | None) -> str | list[dict[str, str]]:
    """The prompt as a conversation; as it is if that is asked for, or if the model knows no conversations."""
    if arguments.raw:
        return prompt
    if why_no_chat is None:
        system = [{"role": "system", "content": arguments.system}] if arguments.system else []
        return [*system, {"role": "user", "content": prompt}]
    if arguments.system:
        raise ValueError(f"{why_no_chat}, so --system can't be told to it; write all of it into the prompt.")
    print(f"octavo: {why_no_chat}; it continues the prompt as it is (--raw).", file=sys.stderr, flush=True)
    return prompt
