"""What the offline API returns, and how it grows out of step outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.engine.best import best
from octavo.engine.params import SamplingParams
from octavo.engine.request import Finish, StepOutputs
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer

#: Plain ints: they are compared once for each token, and an enum is slow at that.
_RUNNING, _STOP = int(Finish.RUNNING), int(Finish.STOP)
_REASONS = {_STOP: "stop", int(Finish.LENGTH): "length", int(Finish.ABORT): "abort", int(Finish.ERROR): "error"}


@dataclass(slots=True)
class TokenLogprob:
    """One token's log-probability and the likeliest alternatives by id."""

    token_id: int
    logprob: float
    top: dict[int, float]


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's `n` answers. finish_reason: stop, length, or error (the forward pass failed).

    cumulative_logprob: the sum over token_ids; None unless log-probabilities were asked for, or needed.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    cumulative_logprob: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """What one prompt brought. cached_tokens: prompt tokens whose K and V came from the prefix index.

    prompt_logprobs: one for each prompt token if asked for; None for the first, which nothing predicts.
    """

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None


class GrowingChoice:
    """One growing answer: its tokens, and text that `take` has not given out yet."""

    def __init__(self, index: int, params: SamplingParams, output: TextOutput) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.logprob_sum = 0.0
        self.stopped_by_text = False
        self._output = output
        self._taken = 0

    def push(self, token: int, finish: int, logprob: TokenLogprob | None) -> None:
        if token >= 0:
            self.tokens.append(token)
            self.text += self._output.push(token, ends=finish == _STOP)
            if logprob is not None:
                self.logprob_sum += logprob.logprob
                if self.logprobs is not None and self._output.counts_last:
                    self.logprobs.append(logprob)
        if self._output.stopped:
            self.stopped_by_text = finish == _RUNNING
            self.finish_reason = "stop"
        elif finish != _RUNNING:
            self.text += self._output.end()
            self.finish_reason = _REASONS[finish]

    def take(self) -> str:
        """Text since the last call."""
        text, self._taken = self.text[self._taken :], len(self.text)
        return text


class ActiveRequest:
    """A request under way. open: its choices that have not ended; tokens: drawn so far, over all choices."""

    def __init__(self, request_id: int, prompt: Sequence[int], params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request_id = request_id
        self.open = params.sequences
        self.tokens = 0
        self.choices = [
            GrowingChoice(index, params, TextOutput(tokenizer, params)) for index in range(params.sequences)
        ]
        self._prompt = list(prompt)
        self._params = params
        self._asked_logprobs = params.logprobs
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * len(self._prompt)
        self._cached_tokens = 0

    def push(self, number: int, token: int, finish: int, outputs: StepOutputs, row: int) -> GrowingChoice:
        """One more token of choice `number`, which is entry `row` of a step's outputs; returns the choice."""
        choice = self.choices[number]
        if not choice.tokens:
            self._cached_tokens = int(outputs.cached_tokens[row])
        choice.push(token, finish, None if self._asked_logprobs is None else self._logprob(outputs, row, token))
        self.tokens += token >= 0
        self.open -= choice.finish_reason is not None
        return choice

    def push_prompt(self, position: int, logprob: float, top: dict[int, float]) -> None:
        """The log-probability of one prompt token."""
        assert self._prompt_logprobs is not None
        self._prompt_logprobs[position] = TokenLogprob(self._prompt[position], logprob, top)

    def output(self) -> RequestOutput:
        choices = self.choices
        if self._params.ranks_choices:
            choices = [choices[i] for i in best([(c.logprob_sum, len(c.tokens)) for c in choices], self._params.n)]
        answers = [
            CompletionOutput(index, c.text, c.tokens, c.finish_reason, c.logprobs, self._cumulative(c))
            for index, c in enumerate(choices)
        ]
        return RequestOutput(self._prompt, answers, self._cached_tokens, self._prompt_logprobs)

    def _cumulative(self, choice: GrowingChoice) -> float | None:
        return None if self._asked_logprobs is None else choice.logprob_sum

    def _logprob(self, outputs: StepOutputs, row: int, token: int) -> TokenLogprob | None:
        asked = self._asked_logprobs
        if asked is None or outputs.logprobs is None:
            return None
        top: dict[int, float] = {}
        if asked and outputs.top_ids is not None and outputs.top_logprobs is not None:
            ids, values = outputs.top_ids[row, :asked].tolist(), outputs.top_logprobs[row, :asked].tolist()
            top = {i: value for i, value in zip(ids, values, strict=True) if i >= 0}
        return TokenLogprob(token, float(outputs.logprobs[row]), top)
