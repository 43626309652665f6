"""What `octavo run` and `octavo chat` share: a model in this process, and one answer streamed to the terminal."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from octavo.cli.options import Sources, add_settings, at_least
from octavo.cli.pull import pull
from octavo.config import EngineConfig, ServerConfig
from octavo.engine.params import OFFLINE_MAX_TOKENS

if TYPE_CHECKING:
    from octavo.engine.params import SamplingParams
    from octavo.llm import LLM, Message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags for sampling, and the engine's settings."""
    group = parser.add_argument_group("answer")
    group.add_argument("--system", metavar="TEXT", help="system message (default: the model's own)")
    group.add_argument(
        "--max-tokens", type=at_least(1), metavar="N", help=f"longest answer (default: {OFFLINE_MAX_TOKENS})"
    )
    group.add_argument("--temperature", type=at_least(0, float), metavar="T", help="0 always takes the likeliest token")
    group.add_argument("--top-p", type=at_least(0, float), metavar="P", help="share of probability to draw from")
    group.add_argument("--top-k", type=at_least(0), metavar="K", help="number of tokens to draw from")
    group.add_argument("--seed", type=at_least(0), metavar="N", help="the same seed gives the same answer")
    group.add_argument("--no-stats", action="store_true", help="no line with figures after an answer")
    add_settings(parser, EngineConfig)
    add_settings(parser, ServerConfig, only=("log_level",))


def open_llm(arguments: argparse.Namespace) -> LLM:
    """The model that the settings name, fetched first if it is not here."""
    config = Sources.read(arguments, os.environ).build(EngineConfig)
    pull(config.model)
    from octavo.llm import LLM

    return LLM(**{item.name: getattr(config, item.name) for item in dataclasses.fields(config)})


def sampling(arguments: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """The model's defaults with what the flags change. Raises ParamError."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return dataclasses.replace(defaults, **given)


class Interrupt:
    """Inside the block the first Ctrl-C only sets `requested`, so that no step is cut in two; a second one raises."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An answer's text and figures; `stopped`: by Ctrl-C. cut: it reached the limit on its tokens."""

    text: str
    stopped: bool
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    first_s: float
    total_s: float
    cut: bool

    @property
    def statistics(self) -> str:
        """One line: prompt, answer, time to the first text, speed after it."""
        rest_s = self.total_s - self.first_s
        ending = "; stopped" if self.stopped else "; cut off by --max-tokens" if self.cut else ""
        speed = f", {(self.tokens - 1) / rest_s:.1f} tokens/s" if self.tokens > 1 and rest_s > 0 else ""
        return (
            f"[prompt {self.prompt_tokens} tokens, {self.cached_tokens} cached; answer {self.tokens} tokens; "
            f"first after {self.first_s:.2f} s{speed}{ending}]"
        )


def stream_answer(llm: LLM, prompt: str | Sequence[Message], params: SamplingParams) -> Answer:
    """Print the answer to `prompt` (a text or messages) as it comes.

    Ctrl-C ends it; what was printed until then is the answer.
    """
    before = llm.engine.stats()
    begin = time.perf_counter()
    first_s = 0.0
    pieces: list[str] = []
    # Leaving a stream early ends its request: that must not wait for the garbage collector.
    with Interrupt() as interrupt, closing(llm.stream(prompt, params)) as stream:
        for piece in stream:
            first_s = first_s or time.perf_counter() - begin
            pieces.append(piece)
            print(piece, end="", flush=True)
            if interrupt.requested:
                break
    total_s = time.perf_counter() - begin
    if not pieces or not pieces[-1].endswith("\n"):
        print(flush=True)
    after = llm.engine.stats()
    tokens = after.generated_tokens - before.generated_tokens
    return Answer(
        text="".join(pieces),
        stopped=interrupt.requested,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        cached_tokens=after.cached_tokens - before.cached_tokens,
        tokens=tokens,
        first_s=first_s or total_s,
        total_s=total_s,
        cut=tokens >= (params.max_tokens or OFFLINE_MAX_TOKENS),
    )


def show_statistics(answer: Answer, arguments: argparse.Namespace) -> None:
    """The line with figures, on stderr, so that stdout holds the answer only."""
    if not arguments.no_stats:
        print(answer.statistics, file=sys.stderr, flush=True)
