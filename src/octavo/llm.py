"""LLM: the offline API. The same engine as the server's, in the calling process, without HTTP.

from octavo import LLM, SamplingParams

with LLM("smollm2-135m-instruct") as llm:
    for answer in llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=64)):
        print(answer.outputs[0].text)
"""

from __future__ import annotations

import dataclasses
import operator
import secrets
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, SupportsIndex, TypeAlias, TypeGuard, cast

import numpy as np

from octavo.config import EngineConfig
from octavo.engine.params import OFFLINE_MAX_TOKENS, SamplingParams
from octavo.engine.request import PromptLogprobs, Request
from octavo.formats.progress_bar import Bar
from octavo.formats.resolve import resolve
from octavo.outputs import ActiveRequest, RequestOutput
from octavo.runtime.build import build_engine
from octavo.runtime.engine import Engine
from octavo.text.chat import NoChatTemplate, load_chat_template
from octavo.text.messages import checked_messages, shown
from octavo.text.tokenizer import Tokenizer
from octavo.text.words import Words

Message: TypeAlias = Mapping[str, Any]
#: A text (control tokens' texts in it are control tokens: its author speaks for all of it), or token ids.
Prompt: TypeAlias = str | Sequence[int]


class LLM:
    """A model in this process. Not for several threads at once. Close it, or use it as a context manager."""

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        """`settings` are EngineConfig's fields; sizes may be texts such as "512MiB".

        A model that is not here is fetched first; stderr shows how far that is.
        Raises ConfigError, or what build_engine raises.
        """
        known = {item.name for item in dataclasses.fields(EngineConfig)}
        if unknown := sorted(settings.keys() - known):
            raise TypeError(f"LLM has no setting {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        config = EngineConfig(**settings) if model is None else EngineConfig(model=model, **settings)
        with Bar() as bar:
            files = resolve(config.model, bar.show)
        self._config = config
        self.tokenizer = Tokenizer.load(files)
        self._words = Words(self.tokenizer)
        self._template = load_chat_template(files, self.tokenizer, remedy="generate() continues a text as it is")
        self._engine: Engine | None = build_engine(config)
        self._active: dict[int, ActiveRequest] = {}
        self._next_id = 0
        self._failure = ""

    @property
    def engine(self) -> Engine:
        """The engine, for its statistics and memory report. Raises RuntimeError after close()."""
        if self._engine is None:
            raise RuntimeError("this LLM has been closed; make a new one")
        return self._engine

    @property
    def why_no_chat(self) -> str | None:
        """A sentence about the model's chat template if it has none that works, so that conversations are refused."""
        return self._template.reason if isinstance(self._template, NoChatTemplate) else None

    def default_params(self) -> SamplingParams:
        """What requests without parameters use: the model's own sampling defaults, unless generation_config is none."""
        if self._config.generation_config == "none":
            return SamplingParams()
        said: dict[str, Any] = self.engine.facts.defaults.given
        return SamplingParams(**said)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: bool | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answers to all prompts, in their order. `params`: for all, or one for each; without max_tokens an answer ends
        after 1,024 tokens.

        progress: show a bar with tokens per second on stderr; None: if that is a terminal. priority: lower ones first,
        with scheduling_policy="priority". cache_salt: only equal ones share cached pages. Raises ParamError, or
        TypeError for what is no prompt and no parameters.
        """
        token_lists = [self._tokens(prompt) for prompt in _prompt_list(prompts)]
        return self._run(token_lists, params, progress, _Shared(priority, cache_salt))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        progress: bool | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Like `generate` for one conversation (messages with `role` and `content`), or a list of them.

        What messages say never becomes a control token. Raises TypeError or ValueError for messages that are none, and
        ChatTemplateError, also if the model has no template.
        """
        if not _are_conversations(messages):
            alone = [self._conversation(cast(Sequence[Message], messages))]
            return self._run(alone, params, progress, _Shared(priority, cache_salt))
        token_lists = [self._conversation(one, f"messages[{index}]") for index, one in enumerate(messages)]
        return self._run(token_lists, params, progress, _Shared(priority, cache_salt))

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """The text of one answer to a prompt or a conversation, piece by piece.

        The request begins with the first piece, where also ParamError is raised. Leaving early ends it: at once with
        `close()`, else when the generator is collected.
        """
        tokens = self._conversation(prompt) if _is_conversation(prompt) else self._tokens(cast(Prompt, prompt))
        (own,) = self._params(params, 1)
        if own.use_beam_search:
            raise ValueError("a beam search has no text before its end, so it can't be streamed; use generate")
        if own.sequences != 1:
            raise ValueError(f"a stream has one answer, but this asks for {own.sequences} sequences; use generate")
        active = self._add(tokens, own)
        choice = active.choices[0]
        try:
            while True:
                if text := choice.take():
                    yield text
                elif not active.open:
                    break
                else:
                    self._step()
            if choice.finish_reason == "error":
                raise RuntimeError(self._failure or "The engine gave up on this request.")
        finally:
            self._drop(active)

    def close(self) -> None:
        """End what still runs and give the memory back. May be called again."""
        self._active.clear()
        self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        token_lists: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool | None,
        shared: _Shared,
    ) -> list[RequestOutput]:
        actives: list[ActiveRequest] = []
        try:
            for tokens, own in zip(token_lists, self._params(params, len(token_lists)), strict=True):
                actives.append(self._add(tokens, own, shared))
            with _ProgressBar(actives, sys.stderr.isatty() if progress is None else progress) as bar:
                left = actives[::-1]
                while left:
                    self._step()
                    while left and not left[-1].open:
                        left.pop()
                    bar.update()
        finally:
            for active in actives:
                self._drop(active)
        return [active.output() for active in actives]

    def _params(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        """One for each prompt, validated; where max_tokens is not given, it is OFFLINE_MAX_TOKENS."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.default_params()] * count
        if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
            raise TypeError(f"params is {shown(params)}; it must be SamplingParams(...), or a list with one each.")
        if len(params) != count:
            raise ValueError(f"there are {count} prompts but {len(params)} sampling parameters")
        vocab = self.engine.facts.vocab
        return [self._words.resolved(_limited(one).validate(vocab)) for one in params]

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        try:
            if isinstance(prompt, (bytes, Mapping)):
                raise TypeError
            return [operator.index(token) for token in prompt]
        except TypeError:
            raise TypeError(f"a prompt is {shown(prompt)}; it must be a text, or a list of token ids.") from None

    def _conversation(self, messages: Sequence[Message], where: str = "messages") -> list[int]:
        return self._template.encode(checked_messages(messages, where)).ids

    def _add(self, tokens: Sequence[int], params: SamplingParams, shared: _Shared | None = None) -> ActiveRequest:
        vocab = self.engine.facts.vocab
        kept = params.prompt_tokens_kept(self.engine.facts.max_model_len)
        tokens = tokens if kept is None else tokens[-kept:]
        if any(not 0 <= token < vocab for token in tokens):
            raise ValueError(f"a prompt holds a token id outside the vocabulary; ids are from 0 to {vocab - 1}")
        active = ActiveRequest(self._next_id, tokens, params, self.tokenizer)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        shared = shared or _Shared()
        prompt = np.array(tokens, np.int32)
        request = Request(
            active.request_id, prompt, params, seed, time.monotonic(), priority=shared.priority, salt=shared.salt
        )
        self.engine.add(request)
        self._active[active.request_id] = active
        self._next_id += 1
        return active

    def _step(self) -> None:
        """One forward pass; its tokens go to whoever waits for them, also to streams left open meanwhile."""
        if not self.engine.busy:
            raise RuntimeError("a step was interrupted, and this answer with it")
        outputs = self.engine.step()
        if outputs is None:
            return
        self._failure = outputs.message or self._failure
        if outputs.prompt is not None:
            self._take_prompt(outputs.prompt)
        columns = (outputs.request_ids, outputs.choices, outputs.tokens, outputs.finish)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (request_id, number, token, finish) in enumerate(rows):
            choice = self._active[request_id].push(number, token, finish, outputs, row)
            if choice.stopped_by_text:
                self.engine.abort(request_id, choice.index)

    def _take_prompt(self, found: PromptLogprobs) -> None:
        columns = (found.request_ids, found.positions, found.logprobs, found.top_ids, found.top_logprobs)
        for request_id, position, logprob, ids, values in zip(*(one.tolist() for one in columns), strict=True):
            top = {token: value for token, value in zip(ids, values, strict=True) if token >= 0}
            self._active[request_id].push_prompt(position, logprob, top)

    def _drop(self, active: ActiveRequest) -> None:
        if self._active.pop(active.request_id, None) is not None and active.open and self._engine is not None:
            self._engine.abort(active.request_id)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shared:
    """What the requests of one call have in common besides parameters."""

    priority: int = 0
    cache_salt: str | None = None

    @property
    def salt(self) -> tuple[tuple[str, str], ...]:
        return () if self.cache_salt is None else (("salt", self.cache_salt),)


class _ProgressBar:
    """`12/64 requests |#####---------| 1234 tokens, 312 tokens/s` on one line of stderr, ten times a second at most."""

    _WIDTH = 24
    _INTERVAL_S = 0.1

    def __init__(self, requests: Sequence[ActiveRequest], shown: bool) -> None:
        self._requests = requests
        self._shown = shown
        self._began_s = time.perf_counter()
        self._next_s = 0.0

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._draw()
            print(file=sys.stderr)

    def update(self) -> None:
        """After a step."""
        if self._shown and time.perf_counter() >= self._next_s:
            self._next_s = time.perf_counter() + self._INTERVAL_S
            self._draw()

    def _draw(self) -> None:
        total, done = len(self._requests), sum(not request.open for request in self._requests)
        tokens = sum(request.tokens for request in self._requests)
        speed = tokens / max(time.perf_counter() - self._began_s, 1e-9)
        full = self._WIDTH * done // max(total, 1)
        bar = "#" * full + "-" * (self._WIDTH - full)
        print(
            f"\r{done}/{total} requests |{bar}| {tokens} tokens, {speed:.0f} tokens/s",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _limited(params: SamplingParams) -> SamplingParams:
    """With an end, and with the log-probabilities that choosing the best answers needs."""
    if params.max_tokens is None:
        params = dataclasses.replace(params, max_tokens=max(OFFLINE_MAX_TOKENS, params.min_tokens))
    if params.ranks_choices and params.logprobs is None:
        params = dataclasses.replace(params, logprobs=0)
    return params


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list; a flat list of integers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {shown(prompts)}; it must be a text, a list of token ids, or a list of those.")
    listed: list[Any] = list(prompts)
    return [listed] if listed and all(isinstance(item, SupportsIndex) for item in listed) else listed


def _is_conversation(value: object) -> TypeGuard[Sequence[Message]]:
    """Messages, not a text, ids, or several conversations."""
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(item, Mapping) for item in value)


def _are_conversations(value: object) -> TypeGuard[Sequence[Sequence[Message]]]:
    """Several conversations: a list of lists. Whatever else is not one conversation either is told so as one."""
    return (
        isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(item, (list, tuple)) for item in value)
    )
