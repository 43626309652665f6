"""What the scheduler is asked to do, and what it reports back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.engine.params import SamplingParams

Tokens = npt.NDArray[np.int32]


class Finish(IntEnum):
    """Why a sequence ended. RUNNING: it did not. ABORT covers cancelled clients; ERROR a failed step."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One client request: `params.sequences` sequences over one prompt.

    request_id: unique among live requests; chosen by the caller.
    prompt: int32 [P], P >= 1, every id inside the vocabulary (the caller has checked).
    seed: resolved (params.seed or a fresh one); with the choice index it keys the random numbers.
    output: int32 [O]; tokens this request had already produced before an engine restart (n must be 1 then, and
        `choice` says which of the original choices it is). They count as output for limits and penalties.
    arrival_s: caller's clock; the scheduler only compares and subtracts it.
    priority: lower runs first; equal ones in order of arrival.
    salt: mixed into every prefix key; requests share pages only under equal salts (tenant, adapter generation, ...).
    """

    request_id: int
    prompt: Tokens
    params: SamplingParams
    seed: int
    arrival_s: float
    priority: int = 0
    salt: tuple[tuple[str, str], ...] = ()
    output: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    choice: int = 0


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens, in columns: entry i is one token of one request's prompt.

    request_ids int64 [M]; positions int32 [M], of the token described, at least 1 (nothing predicts the first one);
    logprobs float32 [M]; top_ids int32 and top_logprobs float32 [M, L], unused entries -1 / 0.
    """

    request_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step brought, in columns: entry i is one token of one sequence.

    request_ids int64 [N]; choices int32 [N]; tokens int32 [N] (-1: the sequence ended without a token);
    finish uint8 [N] (Finish); cached_tokens int32 [N]: prompt tokens that came from the prefix index (as of admission);
    queued_s float32 [N]: seconds from the request's arrival to its first admission;
    logprobs float32 [N] and top_ids/top_logprobs [N, L] only when some sequence asked (rows of others hold -1 / 0);
    message: one sentence on why the step failed, for those with Finish.ERROR.
    prompt: of the requests that asked for `prompt_logprobs`; those of a request come in order, all before its first
    token or with it. After an engine restart they come again.
    """

    request_ids: npt.NDArray[np.int64]
    choices: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    finish: npt.NDArray[np.uint8]
    cached_tokens: npt.NDArray[np.int32]
    queued_s: npt.NDArray[np.float32]
    logprobs: npt.NDArray[np.float32] | None = None
    top_ids: npt.NDArray[np.int32] | None = None
    top_logprobs: npt.NDArray[np.float32] | None = None
    message: str = ""
    prompt: PromptLogprobs | None = None

    @property
    def empty(self) -> bool:
        return not len(self.tokens) and self.prompt is None

    def followed_by(self, more: StepOutputs) -> StepOutputs:
        """These entries, then `more`'s. Entries of one without log-probabilities hold -1 / 0."""
        return StepOutputs(
            request_ids=np.concatenate([self.request_ids, more.request_ids]),
            choices=np.concatenate([self.choices, more.choices]),
            tokens=np.concatenate([self.tokens, more.tokens]),
            finish=np.concatenate([self.finish, more.finish]),
            cached_tokens=np.concatenate([self.cached_tokens, more.cached_tokens]),
            queued_s=np.concatenate([self.queued_s, more.queued_s]),
            logprobs=_joined(self, more, "logprobs", 0),
            top_ids=_joined(self, more, "top_ids", -1),
            top_logprobs=_joined(self, more, "top_logprobs", 0),
            message=more.message or self.message,
            prompt=self.prompt,
        )


def _joined(first: StepOutputs, more: StepOutputs, name: str, filler: float) -> Any:
    """One column of both, as wide as the wider one; None if neither has it."""
    columns = [getattr(outputs, name) for outputs in (first, more)]
    known = [column for column in columns if column is not None]
    if not known:
        return None
    shape = max(column.shape[1:] for column in known)
    result = np.full((len(first.tokens) + len(more.tokens), *shape), filler, known[0].dtype)
    for column, begin in zip(columns, (0, len(first.tokens)), strict=True):
        if column is not None:
            rows = result[begin : begin + len(column)]
            rows[tuple(map(slice, column.shape))] = column
    return result
