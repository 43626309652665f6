"""Traffic: when requests arrive, how long prompts and answers are. CSV files are read with every value checked."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: More tokens than that in one request are a mistake in the file.
MAX_TOKENS = 1 << 24
_ARRIVALS = ("TIMESTAMP", "arrival_s")
_PROMPTS = ("ContextTokens", "prompt_tokens")
_OUTPUTS = ("GeneratedTokens", "output_tokens")


class TraceError(ValueError):
    """A trace can't be used; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of arrival. arrival_s float64 [N], from 0 on; prompt_tokens, output_tokens int64 [N], >= 1."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        return len(self.arrival_s)

    def head(self, count: int) -> Load:
        return Load(self.arrival_s[:count], self.prompt_tokens[:count], self.output_tokens[:count])

    def faster(self, factor: float) -> Load:
        """The same requests, arriving `factor` times as fast."""
        return Load(self.arrival_s / factor, self.prompt_tokens, self.output_tokens)

    def repeated(self, count: int) -> Load:
        """`count` requests: the load again and again, each round a mean gap behind the one before."""
        rounds = -(-count // len(self))
        length_s = float(self.arrival_s[-1]) * (1 + 1 / max(1, len(self) - 1))
        arrival_s = np.concatenate([self.arrival_s + i * length_s for i in range(rounds)])
        return Load(arrival_s, np.tile(self.prompt_tokens, rounds), np.tile(self.output_tokens, rounds)).head(count)

    def clipped(self, max_model_len: int) -> tuple[Load, int]:
        """Lengths that fit into a context, and how many requests were changed for that.

        A prompt keeps its last max_model_len - 1 tokens at most; an answer gets what is left of the context at most.
        """
        prompts = np.minimum(self.prompt_tokens, max_model_len - 1)
        outputs = np.minimum(self.output_tokens, max_model_len - prompts)
        changed = int(((prompts != self.prompt_tokens) | (outputs != self.output_tokens)).sum())
        return Load(self.arrival_s, prompts, outputs), changed


def poisson(count: int, rate: float, seed: int) -> Floats:
    """Arrivals of a Poisson process of `rate` a second, the first at 0; all at 0 when the rate is infinite."""
    if math.isinf(rate):
        return np.zeros(count)
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def synthetic(count: int, rate: float, prompt_tokens: int, output_tokens: int, seed: int = 0) -> Load:
    """Poisson arrivals; lengths are exponential around their means, at least 1 token each."""
    rng = np.random.default_rng(seed + 1)

    def lengths(mean: int) -> Ints:
        return np.maximum(1, rng.exponential(mean, count)).astype(np.int64)

    return Load(poisson(count, rate, seed), lengths(prompt_tokens), lengths(output_tokens))


def read_load(path: Path) -> Load:
    """A CSV file with a header: Azure's columns (TIMESTAMP, ContextTokens, GeneratedTokens) or arrival_s, prompt_tokens
    and output_tokens. Without arrivals all requests come at once. Arrivals are shifted to begin at 0.

    Raises TraceError.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            columns = _columns(path, next(rows, []))
            parsed = list(_parse(path, rows, columns))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"the trace {path} cannot be read: {reason}.") from error
    if not parsed:
        raise TraceError(f"the trace {path} has no requests, only a header.")
    table = np.array(parsed, np.float64)
    return Load(table[:, 0] - table[0, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))


def _columns(path: Path, header: list[str]) -> tuple[int | None, int, int]:
    names = [name.strip() for name in header]

    def find(spellings: tuple[str, str]) -> int | None:
        return next((names.index(name) for name in spellings if name in names), None)

    arrivals, prompts, outputs = map(find, (_ARRIVALS, _PROMPTS, _OUTPUTS))
    for found, spellings in ((prompts, _PROMPTS), (outputs, _OUTPUTS)):
        if found is None:
            raise TraceError(
                f"{path}, line 1: the column {spellings[0]} (or {spellings[1]}) is missing; "
                f"the header is {','.join(names)[:200] or 'empty'!r}."
            )
    assert prompts is not None
    assert outputs is not None
    return arrivals, prompts, outputs


def _parse(
    path: Path, rows: Iterator[list[str]], columns: tuple[int | None, int, int]
) -> Iterator[tuple[float, int, int]]:
    arrivals, prompts, outputs = columns
    before = -math.inf
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) <= max(columns[1], columns[2], arrivals or 0):
            raise TraceError(f"{path}, line {line}: there are {len(row)} fields; the header has more.")
        arrival_s = _seconds(path, line, row[arrivals]) if arrivals is not None else 0.0
        if arrival_s < before:
            raise TraceError(
                f"{path}, line {line}: the arrival {row[arrivals or 0]!r} is before that of the line above; "
                "sort the trace by time."
            )
        before = arrival_s
        yield arrival_s, _tokens(path, line, "prompt", row[prompts]), _tokens(path, line, "output", row[outputs])


def _seconds(path: Path, line: int, text: str) -> float:
    """Seconds, or a time as Azure writes it: up to seven digits of a second."""
    try:
        number = float(text)
    except ValueError:
        head, _, fraction = text.strip().partition(".")
        try:
            number = (datetime.fromisoformat(head) - datetime(1970, 1, 1)).total_seconds()
            number += float("0." + fraction) if fraction else 0.0
        except (ValueError, TypeError):
            raise TraceError(
                f"{path}, line {line}: the arrival is {text[:40]!r}; it must be seconds or a time such as "
                "2023-11-16 18:15:46.68."
            ) from None
    if not 0 <= number < 1e12:
        raise TraceError(f"{path}, line {line}: the arrival is {text[:40]!r}; it must not be negative or infinite.")
    return number


def _tokens(path: Path, line: int, what: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_TOKENS:
        raise TraceError(
            f"{path}, line {line}: the {what} tokens are {text[:40]!r}; they must be an integer from 1 to {MAX_TOKENS}."
        )
    return number
