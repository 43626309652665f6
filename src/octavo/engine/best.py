"""Which of several answers are the best."""

from __future__ import annotations

from collections.abc import Sequence


def best(answers: Sequence[tuple[float, int]], count: int) -> list[int]:
    """Indices of the `count` answers with the highest mean log-probability, best first; ties to the lower index.

    An answer is (sum of its tokens' log-probabilities, number of tokens).
    """
    means = [total / max(1, tokens) for total, tokens in answers]
    return sorted(range(len(means)), key=lambda index: (-means[index], index))[:count]
