"""Words in parameters become the tokens that the engine looks for."""

from __future__ import annotations

import dataclasses
import time

from octavo.engine.params import SamplingParams
from octavo.text.tokenizer import Tokenizer
from octavo.text.words import Words


def test_a_bad_word_is_found_wherever_it_stands(tokenizer: Tokenizer) -> None:
    resolved = Words(tokenizer).resolved(SamplingParams(bad_words=("morning", " evening")))
    ids = set(resolved.bad_words)
    for text in ("morning", " morning", "evening", " evening"):
        assert tuple(tokenizer.encode(text)) in ids
    assert len(ids) == len(resolved.bad_words)
    assert resolved.dry_sequence_breakers == ()  # dry is off, so nobody looks for them


def test_control_tokens_and_ids_may_be_bad_words(tokenizer: Tokenizer) -> None:
    text, token = next(iter(tokenizer.vocabulary.control.items()))
    resolved = Words(tokenizer).resolved(SamplingParams(bad_words=[text, [5, 6]]))  # type: ignore[arg-type]
    assert (token,) in resolved.bad_words
    assert (5, 6) in resolved.bad_words
    assert Words(tokenizer).resolved(resolved) == resolved


def test_every_token_that_holds_a_breaker_breaks(tokenizer: Tokenizer) -> None:
    words = Words(tokenizer)
    params = SamplingParams(dry_multiplier=0.8)
    resolved = words.resolved(params)
    singles = {word[0] for word in resolved.dry_sequence_breakers if not isinstance(word, str)}
    for token, data in enumerate(tokenizer.vocabulary.token_bytes):
        assert (token in singles) == any(mark in data for mark in (b"\n", b":", b'"', b"*"))
    began_s = time.perf_counter()
    for _ in range(20):
        words.resolved(params)  # found before
    assert time.perf_counter() - began_s < 0.5
    unknown = words.resolved(dataclasses.replace(params, dry_sequence_breakers=("qzx qzx",)))
    (sequence,) = unknown.dry_sequence_breakers
    assert not isinstance(sequence, str)
    assert len(sequence) > 1
    assert tokenizer.decode(sequence) == "qzx qzx"
