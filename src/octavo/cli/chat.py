"""`octavo chat`: a conversation in the terminal, or one question a line from a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.cli import answer

if TYPE_CHECKING:
    from octavo.engine.params import SamplingParams
    from octavo.llm import LLM

# A second Ctrl-C ends at the prompt, too, unless something was entered between the two.
HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends, Ctrl-C stops an answer (twice: ends)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "octavo chat [flags]"
    parser.epilog = f"In the conversation: {HELP}."
    answer.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with answer.open_llm(arguments) as llm:
        if llm.why_no_chat is not None:
            raise ValueError(f"{llm.why_no_chat}; `octavo run` continues a text with it.")
        if sys.stdin.isatty():
            print(f"{HELP}.", file=sys.stderr)
        params = answer.sampling(arguments, llm.default_params())
        Conversation(llm, params, arguments).talk(_lines())
    return 0


class Conversation:
    """The messages so far, and what each new line does to them."""

    def __init__(self, llm: LLM, params: SamplingParams, arguments: argparse.Namespace) -> None:
        self._llm = llm
        self._params = params
        self._arguments = arguments
        self._start = [{"role": "system", "content": arguments.system}] if arguments.system else []
        self.messages = list(self._start)

    def talk(self, lines: Iterator[str]) -> None:
        """Answer line after line until they end or one says /exit."""
        for line in lines:
            command = line.strip()
            if command == "/exit":
                return
            if command == "/reset":
                self.messages = list(self._start)
                print("The conversation starts anew.", file=sys.stderr)
            elif command.startswith("/"):
                print(f"There is no {command.split()[0]}: {HELP}.", file=sys.stderr)
            elif command:
                self._ask(line)

    def _ask(self, text: str) -> None:
        """Add the question and its answer; a question that can't be answered leaves the conversation as it was."""
        question = {"role": "user", "content": text}
        try:
            given = answer.stream_answer(self._llm, [*self.messages, question], self._params)
        except ValueError as error:
            print(f"{error} (/reset forgets the conversation)", file=sys.stderr)
            return
        self.messages += [question, {"role": "assistant", "content": given.text}]
        answer.show_statistics(given, self._arguments)


def _lines() -> Iterator[str]:
    """Lines from a terminal (with editing and history) or a pipe, until the end of input."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    import readline  # noqa: F401  (input() edits lines once it is loaded)

    interrupted = False
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if interrupted:
                return
            interrupted = True
            print(HELP, file=sys.stderr)
        else:
            interrupted = False
            yield line
