"""Stands in for octavo.llm.LLM: answers with what it is told to, and remembers what it was asked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from octavo.engine.params import SamplingParams


@dataclass
class FakeLLM:
    """`interrupt_after`: SIGINT comes after so many pieces. `error`: raised instead of an answer."""

    pieces: tuple[str, ...] = ("Hel", "lo", ".")
    interrupt_after: int | None = None
    error: Exception | None = None
    pause_s: float = 0.0  # before each piece
    why_no_chat: str | None = None
    asked: list[Any] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    tokens: int = 0
    open_streams: int = 0
    closed: bool = False

    @property
    def engine(self) -> Any:
        stats = SimpleNamespace(prompt_tokens=7 * len(self.asked), cached_tokens=2, generated_tokens=self.tokens)
        return SimpleNamespace(stats=lambda: stats)

    def default_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.7)

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[str]:
        self.asked.append(prompt)
        self.params.append(params)
        if self.error is not None:
            raise self.error
        self.open_streams += 1
        try:
            for index, piece in enumerate(self.pieces):
                if index == self.interrupt_after:
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(self.pause_s)
                self.tokens += 1
                yield piece
        finally:
            self.open_streams -= 1

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True
