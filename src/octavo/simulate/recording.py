"""Reads what `octavo serve --record` has written, with every field checked that a replay relies on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from octavo.engine.params import ParamError, SamplingParams
from octavo.engine.request import Request
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.runtime.record import VERSION
from octavo.simulate.fields import MAX_CONTEXT, FileError

#: The token that stands for "the answer ended here": marks are never 0.
END_TOKEN = 0
#: A scheduler larger than that was never recorded, and could not be made here.
_MOST = {
    "max_model_len": MAX_CONTEXT,
    "max_num_seqs": 1 << 16,
    "max_num_batched_tokens": 1 << 32,
    "page_size": 1 << 16,
    "num_pages": 1 << 28,
}
_MOST_GROUPS = 256


@dataclass(slots=True)
class Segment:
    """One engine's life. events: (line number, event) in order."""

    config: SchedulerConfig
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


def read_recording(path: Path) -> list[Segment]:
    """The segments of a recording. A last line that is cut off (by a killed engine) is left out. Raises FileError."""
    segments: list[Segment] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, event in _lines(path, file):
                if "octavo_record" in event:
                    segments.append(Segment(_config(path, number, event)))
                elif not segments:
                    raise FileError(f"{path}, line {number}: octavo_record is missing; this is no recording.")
                else:
                    segments[-1].events.append((number, event))
    except OSError as error:
        raise FileError(f"the recording {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"the recording {path} is not UTF-8 text.") from error
    if not segments:
        raise FileError(f"{path}, line 1: octavo_record is missing; this is no recording.")
    return segments


def _lines(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        try:
            event = json.loads(line)
        except ValueError:
            if not line.endswith("\n"):
                return
            raise FileError(f"{path}, line {number}: this is not JSON.") from None
        except RecursionError:
            raise FileError(f"{path}, line {number}: this JSON is nested too deeply.") from None
        if not isinstance(event, dict):
            raise FileError(f"{path}, line {number}: there is no JSON object.")
        yield number, event


def _config(path: Path, number: int, event: dict[str, Any]) -> SchedulerConfig:
    if event["octavo_record"] != VERSION:
        raise FileError(
            f"{path}, line {number}: octavo_record is {event['octavo_record']!r}; this Octavo reads {VERSION}."
        )
    content = event.get("config")
    known = {one.name for one in fields(SchedulerConfig)} - {"eos_ids", "prefix_key"}
    if not isinstance(content, dict) or {*content, "windows"} != known:
        raise FileError(f"{path}, line {number}: config is not a scheduler's; it must have {', '.join(sorted(known))}.")
    for name, most in _MOST.items():
        value = content[name]
        if not is_count(value) or value > most:
            raise FileError(
                f"{path}, line {number}: config.{name} is {str(value)[:60]}; it must be an integer of at most {most}."
            )
    windows = content.pop("windows", [0])  # recordings from before KV groups have none
    if not is_counts(windows) or not 0 < len(windows) <= _MOST_GROUPS:
        raise FileError(
            f"{path}, line {number}: config.windows is {str(windows)[:60]}; it must be 1 to {_MOST_GROUPS} integers."
        )
    try:
        return SchedulerConfig(**content, windows=tuple(windows), eos_ids=frozenset({END_TOKEN}), prefix_key=bytes(16))
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}, line {number}: config: {error}.") from error


def read(path: Path, number: int, event: dict[str, Any], name: str, check: Callable[[Any], bool], must: str) -> Any:
    """A field of an event. Raises FileError."""
    value = event.get(name)
    if name not in event or not check(value):
        raise FileError(f"{path}, line {number}: {name} is {str(value)[:60]!r}; it must be {must}.")
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def is_choice(value: Any) -> bool:
    return is_count(value) or value == -1


def is_marks(value: Any) -> bool:
    return is_counts(value) and all(0 < mark < 1 << 31 for mark in value)


def is_drawn(value: Any) -> bool:
    """Marks of what a step drew: NO_MARK for a sequence that ended without a token."""
    return is_counts(value) and all(mark < 1 << 31 for mark in value)


def columns(path: Path, number: int, event: dict[str, Any]) -> tuple[list[int], list[int], list[int], list[int]]:
    """requests, choices, marks and finish of an `applied`, of one length. Raises FileError."""
    counts = "a list of integers of at least 0"
    found = (
        read(path, number, event, "requests", is_counts, counts),
        read(path, number, event, "choices", is_counts, counts),
        read(path, number, event, "marks", is_drawn, "a list of marks from 0 to 2^31 - 1"),
        read(path, number, event, "finish", is_counts, counts),
    )
    if len({len(column) for column in found}) > 1:
        raise FileError(f"{path}, line {number}: requests, choices, marks and finish are not of one length.")
    return found


def request_at(path: Path, number: int, event: dict[str, Any]) -> Request:
    """The request of an `add`. Raises FileError."""

    def count(name: str) -> int:
        return int(read(path, number, event, name, is_count, "an integer of at least 0"))

    def marks(name: str) -> Any:
        return np.array(read(path, number, event, name, is_marks, "a list of marks from 1 to 2^31 - 1"), np.int32)

    limit = event.get("max_tokens")
    if limit is not None:
        limit = count("max_tokens")
    salt = read(path, number, event, "salt", lambda value: isinstance(value, list), "a list of pairs")
    scored = 0 if event.get("scores_prompt") else None
    try:
        params = SamplingParams(
            n=max(1, count("n")), max_tokens=limit, min_tokens=count("min_tokens"), prompt_logprobs=scored
        )
    except ParamError as error:
        raise FileError(f"{path}, line {number}: {error}") from error
    return Request(
        request_id=count("add"),
        prompt=marks("prompt"),
        params=params,
        seed=0,
        arrival_s=float(read(path, number, event, "arrival_s", is_number, "a number")),
        priority=int(read(path, number, event, "priority", is_number, "an integer")),
        salt=tuple((str(pair[0]), str(pair[1])) for pair in salt if isinstance(pair, list) and len(pair) == 2),
        output=marks("output"),
        choice=count("choice"),
    )
