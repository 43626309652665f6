"""Mixtures of experts, on every level against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.harness import LEVELS, Runner, backend_of, open_end, random_weight, small_limits

from octavo.backends.ops import Activation, ClampedSwiglu, Expert, Floats, KvSpec, Projection, Routing, UnsupportedError
from octavo.backends.reference.experts import route
from octavo.formats.tensor import TensorType

levels = pytest.mark.parametrize("level", LEVELS)
WIDTH, HIDDEN = 64, 96
ROUTINGS = {
    "mixtral": Routing(8, 2),
    "not normalised": Routing(8, 3, normalise=False),
    "all": Routing(4, 4),
    "one": Routing(7, 1),
    "gpt-oss": Routing(8, 4, "chosen", normalise=False),
    "deepseek v3": Routing(8, 3, "sigmoid", scale=2.5, groups=4, used_groups=2),
    "deepseek v2": Routing(8, 2, "softmax", normalise=False, scale=1.5, groups=4, used_groups=2, group_score="max"),
}


class Mixture:
    """Random experts with biases, and a correction where the routing has groups."""

    def __init__(self, routing: Routing, type_: TensorType = TensorType.F32) -> None:
        rng = np.random.default_rng(1)
        self.routing = routing

        def projection(rows: int, columns: int) -> Projection:
            bias = 0.3 * rng.standard_normal(rows, np.float32)
            return Projection(random_weight(rng, rows, columns, type_), bias)

        self.table = random_weight(rng, WIDTH, WIDTH)
        self.router = Projection(
            random_weight(rng, routing.experts, WIDTH), rng.standard_normal(routing.experts, np.float32)
        )
        self.correction = 0.2 * rng.standard_normal(routing.experts, np.float32) if routing.groups > 1 else None
        self.experts = [
            Expert(projection(HIDDEN, WIDTH), projection(HIDDEN, WIDTH), projection(WIDTH, HIDDEN))
            for _ in range(routing.experts)
        ]

    def runner(self, level: str, activation: Any = "silu", threads: int = 2, activations: str = "auto") -> Runner:
        limits = small_limits(WIDTH)
        builder = backend_of(level, threads, activations).builder(limits, KvSpec(1, 1, 16, 8, "f32"))
        x = builder.embed(self.table, 20.0)
        mixed = builder.moe(x, self.router, self.correction, self.experts, self.routing, activation)
        open_end(builder, mixed, WIDTH)
        return Runner(builder.finish(), limits, 8)

    def values(self, runner: Runner, tokens: list[int]) -> Floats:
        """float32 [T, WIDTH]: of each token, all in one step."""
        for slot, token in enumerate(tokens):
            runner.add(slot, [token])
        logits = runner.plan.run(runner.fill([(slot, 1) for slot in range(len(tokens))])).logits
        assert logits is not None
        return logits.copy()


@levels
@pytest.mark.parametrize("name", ROUTINGS)
def test_routings(level: str, name: str) -> None:
    mixture, tokens = Mixture(ROUTINGS[name]), list(range(40))
    expected, actual = (mixture.values(mixture.runner(which), tokens) for which in ("reference", level))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@levels
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", ClampedSwiglu(1.702, 0.8)])
def test_activations(level: str, activation: Activation | ClampedSwiglu) -> None:
    mixture, tokens = Mixture(ROUTINGS["gpt-oss"]), [3, 5, 7]
    expected, actual = (mixture.values(mixture.runner(which, activation), tokens) for which in ("reference", level))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@levels
@pytest.mark.parametrize(
    ("type_", "activations", "share"),
    [
        (TensorType.Q8_0, "int8", 0.02),
        (TensorType.Q8_0, "f32", 1e-5),
        (TensorType.MXFP4, "int8", 0.03),
        (TensorType.MXFP4, "f32", 1e-5),
        (TensorType.BF16, "bf16", 0.02),
        (TensorType.BF16, "f32", 1e-5),
    ],
)
def test_formats(level: str, type_: TensorType, activations: str, share: float) -> None:
    """The router in f32 beside experts in another type, and everything in f32."""
    mixture, tokens = Mixture(ROUTINGS["all"], type_), [3, 5, 7]
    expected = mixture.values(mixture.runner("reference"), tokens)
    actual = mixture.values(mixture.runner(level, activations="f32" if activations == "f32" else "auto"), tokens)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


@levels
@pytest.mark.parametrize("type_", [TensorType.F32, TensorType.Q4_0])
def test_a_row_does_not_depend_on_the_batch(level: str, type_: TensorType) -> None:
    """Bit for bit: whatever other tokens share its experts, and with any number of threads."""
    mixture = Mixture(ROUTINGS["deepseek v3"], type_)
    crowd = mixture.values(mixture.runner(level), list(range(WIDTH)))
    alone = mixture.runner(level, threads=1)
    for token in (0, 13, 63):
        assert np.array_equal(mixture.values(alone, [token])[0], crowd[token])
    assert np.array_equal(mixture.values(alone, [9, 9, 9]), np.stack([crowd[9]] * 3))


def test_ties_go_to_the_lower_expert() -> None:
    logits = np.array([[1, 2, 2, 2], [0, 0, 0, 0]], np.float32)
    chosen, weights = route(logits, None, Routing(4, 2))
    assert chosen.tolist() == [[1, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_only_the_best_groups_take_part() -> None:
    logits = np.array([[9, -9, 5, 6, 4, 4.5, 0, 0]], np.float32)
    chosen, _ = route(logits, None, Routing(8, 3, "softmax", groups=4, used_groups=1, group_score="max"))
    assert chosen.tolist()[0][:2] == [0, 1]
    scores = Routing(8, 2, "sigmoid", groups=4, used_groups=1)
    assert route(logits, None, scores)[0].tolist() == [[2, 3]]
    correction = np.array([0, 0, -1, -1, 1, 1, 0, 0], np.float32)
    chosen, weights = route(logits, correction, scores)
    assert chosen.tolist() == [[4, 5]]
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("routing", "problem"),
    [
        (Routing(8, 9), "must use 1 to all experts"),
        (Routing(8, 2, groups=3), "groups must divide the experts"),
        (Routing(8, 3, groups=4, used_groups=1), "hold as many as a token uses"),
    ],
)
def test_impossible_routings_are_refused(routing: Routing, problem: str) -> None:
    with pytest.raises((ValueError, UnsupportedError), match=problem):
        Mixture(routing).runner(LEVELS[0])
