"""The native sampler draws what the reference's rule draws, at the right rates, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import LEVELS, Runner, backend_of, open_end, small_limits

from octavo.backends.ops import Dry, Floats, Ints, KvSpec, Sampled, SlotParams, Weight
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
        allowed_ids=maybe(tuple(rng.integers(0, VOCAB, rng.choice([1, 5, 300])).tolist()), None),
        bad_words=maybe(random_words(rng), ()),
        dry=maybe(random_dry(rng), None),
        xtc_probability=float(maybe(rng.choice([0.5, 1.0]), 0.0)),
        xtc_threshold=float(rng.choice([0.0, 0.02, 0.1, 0.4])),
        processed_logprobs=bool(rng.random() < 0.3),
    )


def random_words(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Some of a single token, some whose beginning a short prompt may end with."""
    singles = [(int(token),) for token in rng.integers(0, VOCAB, 30)]
    return (*singles, *((int(a), int(b)) for a in range(8) for b in rng.integers(0, VOCAB, 4)))


def random_dry(rng: np.random.Generator) -> Dry:
    return Dry(
        float(rng.uniform(0.1, 5.0)),
        float(rng.uniform(1.0, 3.0)),
        int(rng.integers(1, 4)),
        int(rng.choice([-1, -1, 0, 3, 20])),
        (*((int(token),) for token in rng.integers(0, 40, 3)), (5, 6), (1, 2, 3)),
    )


def random_prompt(rng: np.random.Generator) -> list[int]:
    """Half of them of few tokens, so that they repeat themselves."""
    return rng.integers(0, rng.choice([4, VOCAB]), rng.integers(1, 40)).tolist()


@pytest.mark.parametrize("level", LEVELS)
def test_draws_what_the_reference_draws(level: str) -> None:
    """Equal tokens, but for draws within rounding of a boundary: numpy's exp and ours differ in the last bit."""
    rng = np.random.default_rng(11)
    runner, reference = sampler(level), sampler("reference")
    differing = rows = 0
    for _ in range(30):
        params = [random_params(rng) for _ in range(ROWS)]
        prompts = [random_prompt(rng) for _ in range(ROWS)]
        native, wanted = draw(runner, params, prompts), draw(reference, params, prompts)
        differing += int((native.tokens != wanted.tokens).sum())
        rows += ROWS
        same = native.tokens == wanted.tokens
        assert native.logprobs is not None
        assert wanted.logprobs is not None
        np.testing.assert_allclose(native.logprobs[same], wanted.logprobs[same], atol=3e-5)
        assert native.top_ids is not None
        assert np.array_equal(native.top_ids[same], wanted.top_ids[same])
        np.testing.assert_allclose(native.top_logprobs[same], wanted.top_logprobs[same], atol=3e-5)
    assert rows == 1200
    assert differing <= 2


@pytest.mark.parametrize("level", LEVELS)
def test_counts_grow_with_what_is_drawn(level: str) -> None:
    """Several draws in a row see the tokens drawn before them (CASES SA-04), and so does a resumed sequence."""
    params = SlotParams(
        seed=5,
        temperature=0.9,
        repetition=1.3,
        frequency=0.7,
        presence=0.2,
        min_tokens=4,
        eos_ids=(9,),
        bad_words=tuple((first, 17) for first in range(0, VOCAB, 2)),
        dry=Dry(0.8, breakers=((30,), (4, 8))),
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


@pytest.mark.parametrize("level", ["reference", *LEVELS])
def test_masks_come_before_everything_else(level: str) -> None:
    """No bias brings back a masked id, and an id that is not allowed isn't drawn even when nothing else is left."""
    runner = sampler(level)
    bias = dict.fromkeys((3, 5, 7), 100.0)
    params = [
        SlotParams(seed=1, temperature=temperature, logit_bias=bias, **masks)
        for temperature in (0.0, 1.0)
        for masks in (
            {"allowed_ids": (10, 11, 33, 383)},
            {"bad_words": ((3,), (5,), (7,))},
            {"bad_words": ((2, 3), (9, 2, 5), (8, 2, 7))},  # the prompt is 9 2: only the last one may be said
            {"allowed_ids": (5, 6), "min_tokens": 1, "eos_ids": (5,)},
            {"allowed_ids": (5, 6), "min_tokens": 1, "eos_ids": (5, 6)},
        )
    ]
    tokens = draw(runner, params, [[9, 2]] * len(params)).tokens.tolist()
    for some in (tokens[:5], tokens[5:]):
        assert some[0] in (10, 11, 33, 383)
        assert some[1] not in bias
        assert some[2] == 7
        assert some[3] == 6
        assert some[4] == (5 if LOGITS[2, 5] > LOGITS[2, 6] else 6)


@pytest.mark.parametrize("level", ["reference", *LEVELS])
def test_a_bad_word_is_never_completed(level: str) -> None:
    """Also where its beginning was drawn, and a word that only begins alike may be said."""
    logits = np.full((VOCAB, VOCAB), -10, np.float32)
    for token in range(VOCAB):
        logits[token, (token + 1) % 8] = 5  # 0 1 2 ... 7 0 1 2 ...
        logits[token, 100] = 0
    runner = sampler(level, logits)
    runner.batch.capture_logits = True
    runner.add(0, [0], SlotParams(seed=1, temperature=0.0, bad_words=((2, 3), (5, 6, 8), (50,))))
    assert [runner.step([(0, 1)])[0][0] for _ in range(6)] == [1, 2, 100, 5, 6, 7]


@pytest.mark.parametrize("level", ["reference", *LEVELS])
def test_dry_lowers_what_would_go_on_with_a_repetition(level: str) -> None:
    """Lengths, overlaps, breakers and the window, counted by hand: logits are equal, so a penalty shows at once."""
    flat = np.zeros((VOCAB, VOCAB), np.float32)
    flat[:, 9] = 1.0

    def penalised(history: list[int], dry: Dry) -> bool:
        """Whether 9, the likeliest token by 1, is lowered by more than that."""
        params = SlotParams(seed=1, temperature=0.0, dry=dry)
        return int(draw(sampler(level, flat), [params], [history]).tokens[0]) != 9

    assert penalised([1, 2, 9, 4, 1, 2], Dry(2.0))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(0.9))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, allowed_length=3))
    assert not penalised([3, 2, 9, 4, 1, 2], Dry(2.0))
    assert penalised([3, 2, 9, 4, 1, 2], Dry(2.0, allowed_length=1))
    assert penalised([5, 1, 2, 9, 5, 1, 2], Dry(0.6, base=2.0))  # one longer than allowed: 0.6 * 2
    assert not penalised([5, 1, 2, 9, 5, 1, 2], Dry(0.4, base=2.0))
    assert penalised([9, 9, 9], Dry(2.0))  # overlaps with itself
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((1,),)))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((2,),)))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((4, 1),)))
    assert penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((4,),)))
    assert penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((1, 4),)))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, breakers=((9,),)))  # breakers may always be said
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, last_n=5))
    assert penalised([1, 2, 9, 4, 1, 2], Dry(2.0, last_n=6))
    assert not penalised([1, 2, 9, 4, 1, 2], Dry(2.0, last_n=0))
    long = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13] * 12
    assert penalised([*long, 9, *long], Dry(1e30, base=1000.0))  # beyond the largest float: as much as there is


@pytest.mark.parametrize("level", ["reference", *LEVELS])
@pytest.mark.parametrize("filters", [{}, {"top_k": 6}, {"min_p": 0.01}])
def test_xtc_takes_out_all_top_choices_but_the_last(level: str, filters: dict[str, Any]) -> None:
    logits = np.full((VOCAB, VOCAB), -30, np.float32)
    for token, probability in ((3, 0.4), (9, 0.25), (200, 0.2), (383, 0.1), (4, 0.05)):
        logits[:, token] = np.log(probability)

    def drawn(probability: float, threshold: float) -> set[int]:
        params = [
            SlotParams(seed=seed, xtc_probability=probability, xtc_threshold=threshold, **filters) for seed in range(90)
        ]
        return set(draw(sampler(level, logits), params, [[0]] * 90).tokens.tolist())

    assert drawn(1.0, 0.15) == {200, 383, 4}
    assert drawn(1.0, 0.3) == {3, 9, 200, 383, 4}  # one top choice alone stays
    assert drawn(1.0, 0.99) == {3, 9, 200, 383, 4}
    assert drawn(0.5, 0.15) == {3, 9, 200, 383, 4}
    assert drawn(0.0, 0.15) == {3, 9, 200, 383, 4}
    greedy = SlotParams(seed=1, temperature=0.0, xtc_probability=1.0, xtc_threshold=0.1)
    assert draw(sampler(level, logits), [greedy], [[0]]).tokens.tolist() == [3]


@pytest.mark.parametrize("level", ["reference", *LEVELS])
def test_processed_logprobs_are_of_what_is_drawn_from(level: str) -> None:
    """They add up to one over what is left, and what is not left is nobody's alternative."""
    base = SlotParams(seed=3, temperature=0.7, top_k=6, logprobs=8, logit_bias={17: 9.0}, bad_words=((30,),))
    params = [replace(base, processed_logprobs=True), base, replace(base, processed_logprobs=True, temperature=0.0)]
    sampled = draw(sampler(level), params, [[5]] * 3)
    assert sampled.logprobs is not None
    assert sampled.top_logprobs is not None
    adjusted = LOGITS[5].astype(np.float64)
    adjusted[17] += 9.0
    adjusted[30] = -np.inf
    best = np.argsort(-adjusted, kind="stable")[:8]
    wanted = adjusted[best[:6]] / 0.7
    wanted -= np.log(np.exp(wanted).sum())
    assert sampled.top_ids is not None
    assert sampled.top_ids[0, :6].tolist() == best[:6].tolist()
    np.testing.assert_allclose(sampled.top_logprobs[0, :6], wanted, atol=2e-5)
    assert (sampled.top_logprobs[0, 6:] < -1e30).all()
    assert sampled.tokens[0] == sampled.tokens[1]
    assert sampled.top_ids[1, 0] == int(LOGITS[5].argmax())
    greedy = adjusted[best] - np.log(np.exp(adjusted).sum())
    np.testing.assert_allclose(sampled.top_logprobs[2], greedy, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_with_a_target_report_it_and_draw_nothing(level: str) -> None:
    """More of them than sequences, beside rows that draw; the sampler's state is as if they had not been."""
    rng = np.random.default_rng(14)
    prompt = rng.integers(0, VOCAB, 80).tolist()
    params = SlotParams(seed=3, temperature=0.9, frequency=1.0, prompt_logprobs=4, logprobs=1, processed_logprobs=True)
    outcomes = []
    for which in (level, "reference"):
        runner = sampler(which)
        runner.add(0, prompt, params)
        runner.add(1, [7], SlotParams(seed=4))
        batch = runner.fill([(0, 80), (1, 1)])
        rows = np.arange(79)
        batch.output_rows[2:81], batch.output_slots[2:81], batch.output_targets[2:81] = rows, 0, prompt[1:]
        batch.num_outputs = 81
        sampled = runner.plan.run(batch)
        assert sampled.logprobs is not None
        assert sampled.top_ids is not None
        assert sampled.top_logprobs is not None
        assert sampled.tokens[2:].tolist() == prompt[1:]
        logits = LOGITS[prompt[:-1]].astype(np.float64)
        wanted = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        np.testing.assert_allclose(sampled.logprobs[2:], wanted[rows, prompt[1:]], atol=3e-5)
        assert np.array_equal(sampled.top_ids[2:, :4], np.argsort(-logits, 1, kind="stable")[:, :4])
        assert (sampled.top_ids[0, 1:] == -1).all()
        runner.sequences[0].computed, runner.sequences[1].computed = 80, 1
        for slot in (0, 1):
            runner.sequences[slot].tokens.append(int(sampled.tokens[slot]))
        batch.output_targets[:] = -1
        batch.capture_logits = True
        outcomes.append([sampled.tokens[:2].tolist(), *(runner.step([(0, 1), (1, 1)])[0][0] for _ in range(20))])
    assert outcomes[0] == outcomes[1]
