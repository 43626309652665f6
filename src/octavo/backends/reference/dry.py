"""DRY, "don't repeat yourself": penalties for tokens that would go on with a repetition.

For the tokens of prompt and output so far, `h` (the last `last_n` of them if that is not -1):

1. A repetition of length m is followed by token t at a place where h holds t, and the m tokens before it are also the
   last m tokens of h. It may overlap with the end of h. Its length is at most the number of tokens of the whole history
   after the last breaker (a token sequence); a token that is a breaker by itself is never penalised.
2. For every t that follows repetitions of at least `allowed_length` tokens, with m the longest, its logit is lowered by
   `multiplier * base ** (m - allowed_length)`: computed in float64, at most the largest float32, rounded to float32.

Source: the sampler of that name by p-e-w (text-generation-webui, pull request 5677), with llama.cpp's parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.ops import Dry

LARGEST = float(np.finfo(np.float32).max)


def penalties(history: Sequence[int], dry: Dry) -> dict[int, float]:
    """Token id -> what its logit is lowered by, for the tokens that may follow `history`."""
    after_break = since_break(history, dry.breakers)
    window = list(history if dry.last_n < 0 else history[max(0, len(history) - dry.last_n) :])
    breakers = {sequence[0] for sequence in dry.breakers if len(sequence) == 1}
    longest: dict[int, int] = {}
    for at in range(1, len(window)):
        length = 0
        while length < at and window[at - 1 - length] == window[-1 - length]:
            length += 1
        length = min(length, after_break)
        if length >= dry.allowed_length and window[at] not in breakers:
            longest[window[at]] = max(longest.get(window[at], 0), length)
    return {token: _penalty(dry, length) for token, length in longest.items()}


def since_break(history: Sequence[int], breakers: Sequence[tuple[int, ...]]) -> int:
    """Tokens after the last breaker."""
    known = {length: {b for b in breakers if len(b) == length} for length in {len(b) for b in breakers}}
    for end in range(len(history), 0, -1):
        if any(length <= end and tuple(history[end - length : end]) in of for length, of in known.items()):
            return len(history) - end
    return len(history)


def _penalty(dry: Dry, length: int) -> float:
    try:
        value = dry.multiplier * dry.base ** (length - dry.allowed_length)
    except OverflowError:
        value = LARGEST
    return float(np.float32(min(value, LARGEST)))
