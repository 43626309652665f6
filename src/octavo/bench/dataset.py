"""What the load is made of: ShareGPT conversations, or random text of fixed lengths."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.bench.completion import BenchRequest

CountTokens = Callable[[str], int]

PROMPT_TOKENS = (16, 512)
OUTPUT_TOKENS = (16, 256)

_CHUNK_BYTES = 4 << 20
_MAX_RECORD_CHARS = 64 << 20


def whole_records(path: Path) -> Iterator[Any]:
    """The elements of a JSON array in a file, as far as they are whole: the published ShareGPT file is cut off in one.

    Reads in pieces, so memory stays small. Raises ValueError if the file is no array, or an element is too long.
    """
    decoder = json.JSONDecoder()
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with path.open("rb") as file:
        text = utf8.decode(file.read(_CHUNK_BYTES)).lstrip()
        if not text.startswith("["):
            raise ValueError(f"{path} does not begin with `[`; it must be a JSON array of conversations.")
        position = 1
        while True:
            while position < len(text) and text[position] in " \n\r\t,":
                position += 1
            try:
                record, position = decoder.raw_decode(text, position)
            except ValueError:
                piece = file.read(_CHUNK_BYTES)
                if not piece:
                    return
                text, position = text[position:] + utf8.decode(piece), 0
                if len(text) > _MAX_RECORD_CHARS:
                    raise ValueError(f"a record of {path} is longer than {_MAX_RECORD_CHARS} characters.") from None
            else:
                yield record


def conversations(path: Path) -> list[tuple[str, str]]:
    """(first turn, second turn) of every conversation that a human opens."""
    found = []
    for record in whole_records(path):
        turns = record.get("conversations", []) if isinstance(record, dict) else []
        if len(turns) >= 2 and turns[0].get("from") == "human":
            found.append((turns[0]["value"], turns[1]["value"]))
    return found


def sharegpt(
    pairs: Sequence[tuple[str, str]],
    count: int,
    count_tokens: CountTokens,
    seed: int = 0,
    prompt_range: tuple[int, int] = PROMPT_TOKENS,
    output_range: tuple[int, int] = OUTPUT_TOKENS,
) -> list[BenchRequest]:
    """`count` requests: pairs in shuffled order whose turn and reply are within the ranges (tokens, inclusive).

    The output length is the reply's. Raises ValueError when too few fit.
    """
    order = list(pairs)
    random.Random(seed).shuffle(order)
    chosen: list[BenchRequest] = []
    for prompt, reply in order:
        if len(chosen) == count:
            break
        # A token holds at least one byte; most texts outside the ranges need no tokenizer to see it.
        prompt_tokens = count_tokens(prompt) if len(prompt) <= 64 * prompt_range[1] else 0
        if not prompt_range[0] <= prompt_tokens <= prompt_range[1]:
            continue
        output_tokens = count_tokens(reply) if len(reply) <= 64 * output_range[1] else 0
        if output_range[0] <= output_tokens <= output_range[1]:
            chosen.append(BenchRequest(prompt, prompt_tokens, output_tokens))
    if len(chosen) < count:
        raise ValueError(f"the data set has {len(chosen)} conversations of fitting length; {count} were asked for.")
    return chosen


def random_requests(
    count: int, prompt_tokens: int, output_tokens: int, words: Sequence[str], seed: int = 0, prefix_tokens: int = 0
) -> list[BenchRequest]:
    """`count` requests of `prompt_tokens` random words, the first `prefix_tokens` of which all of them share.

    words: texts that are one token each wherever they stand (see `single_token_words`).
    """
    rng = random.Random(seed)
    prefix = rng.choices(words, k=prefix_tokens)
    return [
        BenchRequest(
            "".join(prefix + rng.choices(words, k=prompt_tokens - prefix_tokens)), prompt_tokens, output_tokens
        )
        for _ in range(count)
    ]


def single_token_words(candidates: Sequence[str], count_tokens: CountTokens) -> list[str]:
    """Those of the candidates that are " word" in ASCII letters and stay one token when words are strung together."""
    words = [text for text in candidates if text[:1] == " " and text[1:].isascii() and text[1:].isalpha()]
    kept = [word for word in words if count_tokens(word) == 1]
    if len(kept) < 100 or count_tokens("".join(kept[:100])) != 100:
        raise ValueError("the tokenizer has too few plain words for random prompts; use the sharegpt data set instead.")
    return kept


def salted(requests: Sequence[BenchRequest], salt: int) -> list[BenchRequest]:
    """The requests with six digits before each prompt, so that no cache holds what an earlier run has sent.

    Every request gets its own digits (an affine walk through the million from `salt`), so they share no prefix either.
    """
    return [
        replace(request, prompt=f"{(salt * 7919 + index * 104729) % 1_000_000:06d} {request.prompt}")
        for index, request in enumerate(requests)
    ]
