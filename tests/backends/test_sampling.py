"""The native sampler draws what the reference's rule draws, at the right rates, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import LEVELS, Runner, backend_of, open_end, small_limits

from octavo.backends.ops import Floats, Ints, KvSpec, Sampled, SlotParams, Weight
from octavo.backends.reference.sampling import keep
from octavo.formats.blocks import quantize
from octavo.formats.tensor import TensorType

VOCAB = 384
ROWS = 40
LOGITS = (np.random.default_rng(10).standard_normal((VOCAB, VOCAB)) * 4).astype(np.float32)


def sampler(level: str, logits: Floats = LOGITS, threads: int = 2) -> Runner:
    """A plan whose logits after token t are row t of `logits` [VOCAB, VOCAB]."""
    kv = KvSpec(1, 1, 16, 8, "f32")
    limits = small_limits(len(logits))
    builder = backend_of(level, threads).builder(limits, kv)
    open_end(builder, builder.embed(Weight(quantize("logits", logits, TensorType.F32)), 1.0), len(logits))
    runner = Runner(builder.finish(), limits, kv.page_size)
    runner.batch.capture_logits = False
    return runner


def draw(runner: Runner, params: list[SlotParams], prompts: list[list[int]]) -> Sampled:
    """One draw for each row; row r has slot r, and its logits come from the last token of its prompt."""
    for slot, (settings, prompt) in enumerate(zip(params, prompts, strict=True)):
        runner.add(slot, prompt, settings)
        runner.sequences[slot].computed = len(prompt) - 1
    return runner.plan.run(runner.fill([(slot, 1) for slot in range(len(params))]))


def random_params(rng: np.random.Generator) -> SlotParams:
    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.4 else off

    return SlotParams(
        seed=int(rng.integers(0, 2**63)),
        choice=int(rng.integers(0, 5)),
        temperature=float(rng.choice([0.0, 1e-12, 1e-4, 0.3, 0.8, 1.0, 2.5])),
        top_k=int(maybe(rng.integers(1, VOCAB + 50), 0)),
        top_p=float(maybe(rng.uniform(0.01, 1.0), 1.0)),
        min_p=float(maybe(rng.uniform(0.0, 0.5), 0.0)),
        repetition=float(maybe(rng.uniform(0.5, 2.0), 1.0)),
        presence=float(maybe(rng.uniform(-2, 2), 0.0)),
        frequency=float(maybe(rng.uniform(-2, 2), 0.0)),
        logprobs=int(maybe(rng.integers(0, 21), -1)),
        min_tokens=int(maybe(3, 0)),
        eos_ids=(1, 17),
        logit_bias={int(token): float(rng.uniform(-100, 100)) for token in rng.integers(0, VOCAB, maybe(3, 0))},
    )


@pytest.mark.parametrize("level", LEVELS)
def test_draws_what_the_reference_draws(level: str) -> None:
    """Equal tokens, but for draws within rounding of a boundary: numpy's exp and ours differ in the last bit."""
    rng = np.random.default_rng(11)
    runner, reference = sampler(level), sampler("reference")
    differing = rows = 0
    for _ in range(12):
        params = [random_params(rng) for _ in range(ROWS)]
        prompts = [rng.integers(0, VOCAB, rng.integers(1, 12)).tolist() for _ in range(ROWS)]
        native, wanted = draw(runner, params, prompts), draw(reference, params, prompts)
        differing += int((native.tokens != wanted.tokens).sum())
        rows += ROWS
        same = native.tokens == wanted.tokens
        assert native.logprobs is not None
        assert wanted.logprobs is not None
        np.testing.assert_allclose(native.logprobs[same], wanted.logprobs[same], atol=3e-5)
        assert native.top_ids is not None
        assert np.array_equal(native.top_ids, wanted.top_ids)
        np.testing.assert_allclose(native.top_logprobs, wanted.top_logprobs, atol=3e-5)
    assert rows == 480
    assert differing <= 1


@pytest.mark.parametrize("level", LEVELS)
def test_counts_grow_with_what_is_drawn(level: str) -> None:
    """Several draws in a row see the tokens drawn before them (CASES SA-04), and so does a resumed sequence."""
    params = SlotParams(
        seed=5, temperature=0.9, repetition=1.3, frequency=0.7, presence=0.2, min_tokens=4, eos_ids=(9,)
    )
    runner, reference = sampler(level), sampler("reference")
    drawn = []
    for each in (runner, reference):
        each.batch.capture_logits = True
        each.add(0, [4, 4, 8], params)
        each.sequences[0].computed = 2
        drawn.append([each.step([(0, 1)])[0][0] for _ in range(60)])
    assert drawn[0] == drawn[1]
    resumed = sampler(level)
    resumed.batch.capture_logits = True
    resumed.add(0, [4, 4, 8, *drawn[0][:25]], params, prompt_len=3)
    resumed.sequences[0].computed = 27
    assert [resumed.step([(0, 1)])[0][0] for _ in range(35)] == drawn[0][25:]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "params",
    [
        SlotParams(seed=1),
        SlotParams(seed=2, temperature=0.6, top_k=12),
        SlotParams(seed=3, temperature=1.5, top_p=0.8),
        SlotParams(seed=4, temperature=2.0, min_p=0.1),
        SlotParams(seed=5, temperature=1.2, top_k=40, top_p=0.9, min_p=0.02),
    ],
    ids=str,
)
def test_distribution(level: str, params: SlotParams) -> None:
    """Pearson's chi-squared over 4,800 draws at different positions, against the probabilities of the rule."""
    runner = sampler(level)
    logits, draws = LOGITS[0], 4800
    counts = np.zeros(VOCAB)
    for round_ in range(draws // 96):
        slots = [replace(params, choice=choice + 96 * round_) for choice in range(96)]
        sampled = draw(runner, slots, [[0]] * 96)
        counts += np.bincount(sampled.tokens, minlength=VOCAB)
    weights = np.exp((logits - logits.max()) / params.temperature)
    probabilities = np.where(keep(logits, weights, params.top_k, params.top_p, params.min_p), weights, 0.0)
    probabilities /= probabilities.sum()
    assert counts[probabilities == 0.0].sum() == 0
    common = probabilities * draws >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * draws
    expected[-1] = max(expected[-1], 1e-9)
    degrees = max(int((expected >= 5).sum()) - 1, 1)
    statistic = float(((observed - expected)[expected >= 5] ** 2 / expected[expected >= 5]).sum())
    assert statistic < degrees + 6.0 * np.sqrt(2.0 * degrees)


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_does_not_depend_on_its_neighbours(level: str) -> None:
    """CASES SA-02: a seeded row draws the same alone, among others, and on one thread."""
    rng = np.random.default_rng(12)
    mine = SlotParams(seed=42, temperature=0.8, top_p=0.95, logprobs=5)

    def tokens_with(neighbours: list[SlotParams], threads: int) -> tuple[Ints, Floats]:
        runner = sampler(level, threads=threads)
        sampled = draw(runner, [mine, *neighbours], [[7]] * (1 + len(neighbours)))
        assert sampled.logprobs is not None
        return sampled.tokens[:1].copy(), sampled.logprobs[:1].copy()

    alone = tokens_with([], 1)
    for count in (1, 7, 90):
        crowd = tokens_with([random_params(rng) for _ in range(count)], 2)
        assert np.array_equal(crowd[0], alone[0])
        assert np.array_equal(crowd[1], alone[1])


@pytest.mark.parametrize("level", LEVELS)
def test_one_seed_many_choices(level: str) -> None:
    runner = sampler(level)
    slots = [SlotParams(seed=99, choice=choice, temperature=1.5) for choice in range(90)]
    first = draw(runner, slots, [[3]] * 90).tokens.tolist()
    assert draw(runner, slots, [[3]] * 90).tokens.tolist() == first
    assert len(set(first)) > 5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy(level: str, temperature: float) -> None:
    """CASES SA-01, with biases of minus 100 and rows that are greedy beside rows that are not."""
    best = int(LOGITS[2].argmax())
    bias = {token: -100.0 for token in range(VOCAB) if token != best}
    params = [SlotParams(seed=1, temperature=temperature, top_p=1e-4), SlotParams(seed=1, temperature=1.0)]
    params.append(SlotParams(seed=1, temperature=temperature, logit_bias=bias))
    tokens = draw(sampler(level), params, [[2]] * 3).tokens
    assert tokens[0] == best
    assert tokens[2] == best


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_strange_logits_give_a_token(level: str, bad: float) -> None:
    """A row of a broken model draws some token of the vocabulary, and its neighbours draw what they would have."""
    logits = np.eye(VOCAB, dtype=np.float32)  # embedded values pass a matrix product: keep other rows finite
    logits[5] = bad
    params = [SlotParams(seed=3, temperature=1.0, top_p=0.9, logprobs=2)] * 2
    sampled = draw(sampler(level, logits), params, [[5], [6]])
    assert 0 <= sampled.tokens[0] < VOCAB
    assert sampled.logprobs is not None
    assert not np.isnan(sampled.logprobs).any()
    assert sampled.tokens[1] == draw(sampler(level, np.eye(VOCAB, dtype=np.float32)), params, [[5], [6]]).tokens[1]
