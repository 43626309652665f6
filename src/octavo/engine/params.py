"""What a client may ask of sampling. Plain data; what exists is valid, but for token ids, which a vocabulary bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.engine.checks import ParamError, at_most, integer, listed, number, token_ids, words

__all__ = ["ParamError", "SamplingParams"]

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP = 16
MAX_BAD_WORDS = 256
MAX_BREAKERS = 32
#: Every beam is offered twice as many tokens as there are beams, and a row reports at most MAX_LOGPROBS.
MAX_BEAMS = MAX_LOGPROBS // 2
#: Kernels compute in f32, where a top_p under 1e-45 is 0; this one already keeps one token only.
LEAST_TOP_P = 1e-9
#: Where LLM, `octavo run` and `octavo chat` end an answer that names no max_tokens: a model that never stops would
#: otherwise fill its whole context. The server has the API's own rules.
OFFLINE_MAX_TOKENS = 1024
#: llama.cpp's, where DRY comes from for most people.
DRY_BREAKERS = ("\n", ":", '"', "*")
_LARGE = 2**31 - 1

#: A text, or the token ids that it has already become (text/words.py).
Word = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled and when it ends. docs/parameters.md says what each field means.

    Defaults follow the OpenAI API where it has the field (temperature 1, top_p 1) and are "off" elsewhere. `seed` None
    means: drawn fresh by whoever admits the request. `max_tokens` None means: until the context is full; LLM ends such
    requests after OFFLINE_MAX_TOKENS. `allowed_token_ids` None means all. Tuples may also be given as lists, and `stop`
    as one text. The engine wants the words of `bad_words` and `dry_sequence_breakers` as token ids.

    Raises ParamError, which names field, value and limit.
    """

    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[Word, ...] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[Word, ...] = DRY_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    use_beam_search: bool = False
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        self._take_lists()
        self._check_length()
        self._check_sampling()
        self._check_repetition()
        self._check_ends()
        self._check_beams()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 0, MAX_LOGPROBS)

    @property
    def sequences(self) -> int:
        """How many choices the engine reports."""
        return self.n if self.best_of is None else self.best_of

    @property
    def width(self) -> int:
        """How many sequences the engine runs at once."""
        return self.beam_width or self.n if self.use_beam_search else self.sequences

    @property
    def ranks_choices(self) -> bool:
        """More is generated than returned: of `best_of` choices the `n` with the highest mean log-probability."""
        return self.sequences > self.n

    def prompt_tokens_kept(self, max_model_len: int) -> int | None:
        """How many tokens from the end of a prompt `truncate_prompt_tokens` leaves; None: all.

        -1 leaves room for max_tokens in the context, or for one token if that is None, and keeps at least one.
        """
        if self.truncate_prompt_tokens != -1:
            return self.truncate_prompt_tokens
        return max(1, max_model_len - (self.max_tokens or 1))

    def validate(self, vocab_size: int) -> SamplingParams:
        """Return self, or raise ParamError for a token id that the vocabulary doesn't have."""
        token_ids("logit_bias", self.logit_bias, vocab_size)
        token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        token_ids("allowed_token_ids", self.allowed_token_ids or (), vocab_size)
        for name in ("bad_words", "dry_sequence_breakers"):
            for word in getattr(self, name):
                if not isinstance(word, str):
                    token_ids(name, word, vocab_size)
        return self

    def _take_lists(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else listed("stop", self.stop, "texts")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", listed("stop_token_ids", self.stop_token_ids, "token ids"))
        if self.allowed_token_ids is not None:
            allowed = listed("allowed_token_ids", self.allowed_token_ids, "token ids")
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "bad_words", words("bad_words", self.bad_words))
        breakers = words("dry_sequence_breakers", self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)

    def _check_length(self) -> None:
        integer("n", self.n, 1, MAX_N)
        if self.best_of is not None:
            integer("best_of", self.best_of, self.n, MAX_N)
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, 1, _LARGE)
        integer("min_tokens", self.min_tokens, 0, _LARGE)
        if self.truncate_prompt_tokens is not None:
            integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, _LARGE)
            if self.truncate_prompt_tokens == 0:
                raise ParamError(
                    "truncate_prompt_tokens",
                    f"truncate_prompt_tokens is 0; it must be -1 (as many as fit) or from 1 to {_LARGE}.",
                )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamError(
                "min_tokens", f"min_tokens is {self.min_tokens}; it must not be above max_tokens, {self.max_tokens}."
            )

    def _check_sampling(self) -> None:
        number("temperature", self.temperature, 0.0, 100.0)
        integer("top_k", self.top_k, -1, _LARGE)
        number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p < LEAST_TOP_P:
            raise ParamError("top_p", f"top_p is {self.top_p}; it must be from {LEAST_TOP_P} to 1.")
        number("min_p", self.min_p, 0.0, 1.0)
        number("xtc_probability", self.xtc_probability, 0.0, 1.0)
        number("xtc_threshold", self.xtc_threshold, 0.0, 1.0)
        if not isinstance(self.logit_bias, Mapping):
            raise ParamError("logit_bias", f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers.")
        for token, bias in self.logit_bias.items():
            number(f"logit_bias[{token}]", bias, -100.0, 100.0, param="logit_bias")
        if self.allowed_token_ids == ():
            raise ParamError("allowed_token_ids", "allowed_token_ids is empty; it must have at least 1 token id.")
        at_most("bad_words", sum(isinstance(word, str) for word in self.bad_words), MAX_BAD_WORDS, "words")
        if self.seed is not None:
            integer("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_repetition(self) -> None:
        number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        number("dry_multiplier", self.dry_multiplier, 0.0, 100.0)
        number("dry_base", self.dry_base, 1.0, 100.0)
        integer("dry_allowed_length", self.dry_allowed_length, 1, _LARGE)
        integer("dry_penalty_last_n", self.dry_penalty_last_n, -1, _LARGE)
        breakers = sum(isinstance(word, str) for word in self.dry_sequence_breakers)
        at_most("dry_sequence_breakers", breakers, MAX_BREAKERS, "texts")

    def _check_ends(self) -> None:
        at_most("stop", len(self.stop), MAX_STOP, "strings")
        for text in self.stop:
            if not isinstance(text, str):
                raise ParamError("stop", f"stop holds {text!r}; it must hold texts.")
        if any(not text for text in self.stop):
            raise ParamError("stop", "stop holds an empty string; every stop string must have at least 1 character.")

    def _check_beams(self) -> None:
        if self.beam_width is not None:
            integer("beam_width", self.beam_width, 1, MAX_BEAMS)
        number("length_penalty", self.length_penalty, -10.0, 10.0)
        if not self.use_beam_search:
            for name, neutral in (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False)):
                if (value := getattr(self, name)) != neutral:
                    raise ParamError(
                        name, f"{name} is {value}, but use_beam_search is not true; set it, or leave it out."
                    )
            return
        if self.width > MAX_BEAMS:
            raise ParamError("n", f"n is {self.n}; a beam search has at most {MAX_BEAMS} beams.")
        if self.beam_width is not None and self.beam_width < self.n:
            raise ParamError("beam_width", f"beam_width is {self.beam_width}; it must be at least n, {self.n}.")
        if self.best_of is not None:
            raise ParamError(
                "best_of",
                f"best_of is {self.best_of}; a beam search draws nothing and has beam_width. Leave it out.",
            )
        if self.stop:
            raise ParamError("stop", f"stop holds {self.stop[0]!r}; a beam search sees no text, use stop_token_ids.")
