"""The sampling rule: known answers, its edges, and the distribution it draws from."""

import numpy as np
import pytest

from octavo.backends.ops import SlotParams
from octavo.backends.reference.sampling import SamplerSlot, keep, log_softmax, philox4x32, top, uniform

NO_TOKENS = np.empty(0, np.int32)


def draw(params: SlotParams, logits: np.ndarray, position: int = 5, tokens: np.ndarray = NO_TOKENS, prompt: int = 0):
    slot = SamplerSlot.start(params, np.asarray(tokens, np.int32), prompt, len(logits))
    return slot.draw(np.asarray(logits, np.float32), position)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that Random123 ships
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected) -> None:
    assert philox4x32(counter, key) == expected


def test_uniform_depends_on_seed_choice_and_position() -> None:
    values = {uniform(s, c, p) for s in (0, 1, 2**32, -1) for c in (0, 1) for p in (0, 1, 2**32)}
    assert len(values) == 24
    assert all(0 <= value < 1 for value in values)
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def test_greedy_ties_go_to_the_lower_id() -> None:
    assert draw(SlotParams(0, temperature=0.0), [1.0, 3.0, 3.0, 2.0]) == 1
    assert draw(SlotParams(0, temperature=9e-6), [1.0, 3.0, 3.0, 2.0]) == 1


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-3, 1e-2, 1.0, 100.0])
def test_tiny_temperatures_stay_finite(temperature: float) -> None:
    logits = np.array([-np.inf, 900.0, -900.0, 899.0], np.float32)
    token = draw(SlotParams(3, temperature=temperature, top_p=1e-4), logits)
    assert token == 1


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    counts = np.bincount([draw(SlotParams(11), logits, position) for position in range(4000)], minlength=4)
    expected = 4000 * np.array([0.5, 0.25, 0.15, 0.1])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi squared, 3 degrees of freedom, p = 0.001


def test_same_key_same_token_whatever_the_filters_find_first() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    plain = [draw(SlotParams(5), logits, p) for p in range(50)]
    assert plain == [draw(SlotParams(5, top_k=1000), logits, p) for p in range(50)]
    assert plain != [draw(SlotParams(6), logits, p) for p in range(50)]


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "expected"),
    [
        (0, 1.0, 0.0, [0, 1, 2, 3, 4]),
        (2, 1.0, 0.0, [1, 2]),  # ids 2 and 3 tie; the lower one stays
        (9, 1.0, 0.0, [0, 1, 2, 3, 4]),
        (0, 0.5, 0.0, [1]),  # exactly the first one's mass
        (0, 0.51, 0.0, [1, 2]),  # the token that crosses is kept
        (0, 0.6875, 0.0, [1, 2]),
        (2, 0.7, 0.0, [1]),  # top-p is over what top-k left: 1 of 1.375
        (0, 1.0, 0.375, [1, 2, 3]),
        (0, 1.0, 1.0, [1]),
        (0, 1e-9, 1.0, [1]),
    ],
)
def test_filters(top_k: int, top_p: float, min_p: float, expected: list[int]) -> None:
    weights = np.array([0.125, 1.0, 0.375, 0.375, 0.125], np.float32)  # sums to 2
    kept = keep(np.log(weights), weights, top_k, top_p, min_p)
    assert np.flatnonzero(kept).tolist() == expected


def test_penalties_count_the_right_tokens() -> None:
    tokens = [1, 1, 2, 3, 3]  # prompt 1 1 2, output 3 3
    slot = SamplerSlot.start(SlotParams(0, repetition=2.0), np.array(tokens, np.int32), 3, 5)
    logits = np.array([4.0, 4.0, -4.0, 4.0, 4.0], np.float32)
    assert slot._adjust(logits).tolist() == [4.0, 2.0, -8.0, 2.0, 4.0]
    slot = SamplerSlot.start(SlotParams(0, presence=0.5, frequency=1.0), np.array(tokens, np.int32), 3, 5)
    assert slot._adjust(logits).tolist() == [4.0, 4.0, -4.0, 1.5, 4.0]


def test_drawn_tokens_count_for_the_next_draw() -> None:
    slot = SamplerSlot.start(SlotParams(0, temperature=0.0, frequency=1.0), NO_TOKENS, 0, 3)
    logits = np.array([1.0, 2.5, 2.0], np.float32)
    assert [slot.draw(logits, p) for p in range(5)] == [1, 2, 1, 0, 2]


def test_eos_is_banned_until_min_tokens_and_no_bias_resurrects_it() -> None:
    params = SlotParams(0, temperature=0.0, min_tokens=2, eos_ids=(1,), logit_bias={1: 100.0})
    slot = SamplerSlot.start(params, np.array([0], np.int32), 1, 3)
    logits = np.array([1.0, 5.0, 2.0], np.float32)
    assert [slot.draw(logits, p) for p in range(3)] == [2, 2, 1]


def test_everything_masked_gives_the_greedy_token() -> None:
    assert draw(SlotParams(0, min_tokens=1, eos_ids=(0, 1)), [1.0, 2.0]) == 1
    assert draw(SlotParams(0), [np.nan, 2.0]) == 1


def test_logprobs_are_finite_and_ranked() -> None:
    logits = np.array([1000.0, 0.0, 1000.0], np.float32)
    logprobs = log_softmax(logits)
    np.testing.assert_allclose(np.exp(logprobs), [0.5, 0, 0.5], atol=1e-6)
    ids, values = top(logprobs, 2)
    assert ids.tolist() == [0, 2]
    assert values[0] == values[1]


def test_nan_counts_as_minus_infinity_and_nothing_else_changes() -> None:
    greedy = SlotParams(0, temperature=0.0)
    assert draw(greedy, [np.nan, -np.inf, np.nan]) == 0, "equals, so the lowest id"
    assert draw(greedy, [np.finfo(np.float32).max, np.nan, np.inf]) == 2
    logprobs = log_softmax(np.array([np.nan, 1.0, 1.0], np.float32))
    assert logprobs[0] == -np.inf
    np.testing.assert_allclose(np.exp(logprobs[1:]), 0.5, atol=1e-6)
    assert (log_softmax(np.array([np.nan, -np.inf], np.float32)) == -np.inf).all()
