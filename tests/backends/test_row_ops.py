"""The ops that work on each row by itself, on every level against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.harness import LEVELS, Runner, backend_of, open_end, random_weight, small_limits, values_of

from octavo.backends.ops import Activation, Buffer, KvSpec, Norm, Projection, UnsupportedError
from octavo.backends.reference import functions

TOKENS = [3, 0, 7, 7, 31, 12, 1]
ACTIVATIONS: list[Activation] = ["silu", "gelu_tanh", "gelu"]
levels = pytest.mark.parametrize("level", LEVELS)


def assert_same(level: str, record: Any, width: int, share: float) -> None:
    expected, actual = (values_of(name, record, width, TOKENS) for name in ("reference", level))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


@levels
@pytest.mark.parametrize(("width", "groups"), [(32, 1), (48, 3), (100, 1), (100, 4), (34, 2)])
@pytest.mark.parametrize("kind", ["rms", "layer", "layer without bias"])
def test_norms_in_groups(level: str, kind: str, width: int, groups: int) -> None:
    rng = np.random.default_rng(1)
    table = random_weight(rng, width, width)
    weight, bias = rng.standard_normal((2, width), np.float32)
    norm = {
        "rms": Norm(weight, 1e-5, groups=groups),
        "layer": Norm(weight, 1e-5, "layer", bias, groups),
        "layer without bias": Norm(weight, 1e-5, "layer", None, groups),
    }[kind]
    assert_same(level, lambda builder: builder.norm(builder.embed(table, 2.0), norm), width, 3e-6)


@levels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(level: str, activation: Activation) -> None:
    """As rows, and prepared for the linear group that reads them."""
    rng = np.random.default_rng(2)
    one, two, matrix = (random_weight(rng, 40, 40) for _ in range(3))

    def record(builder: Any) -> Buffer:
        x = builder.activation(builder.embed(one, 9.0), activation)
        return builder.gated(x, builder.embed(two, 5.0), activation)

    assert_same(level, record, 40, 3e-6)
    assert_same(
        level,
        lambda builder: builder.linear(builder.activation(builder.embed(one, 9.0), activation), [Projection(matrix)])[
            0
        ],
        40,
        3e-6,
    )


@levels
def test_add(level: str) -> None:
    rng = np.random.default_rng(3)
    one, two = random_weight(rng, 40, 40), random_weight(rng, 40, 40)

    def record(builder: Any) -> Buffer:
        x, y = builder.embed(one, 1.0), builder.embed(two, 1.0)
        builder.add(x, y, 0.37)
        builder.add(x, x, -0.5)
        return x

    assert_same(level, record, 40, 1e-6)


@levels
@pytest.mark.parametrize("read_again", [False, True])
def test_adding_a_norm(level: str, read_again: bool) -> None:
    """Added as it is made, unless something else reads it."""
    rng = np.random.default_rng(7)
    one, two = random_weight(rng, 40, 40), random_weight(rng, 40, 40)
    norm = Norm(rng.standard_normal(40, np.float32), 1e-5, "layer", rng.standard_normal(40, np.float32))

    def record(builder: Any) -> Buffer:
        x, y = builder.embed(one, 1.0), builder.embed(two, 1.0)
        normed = builder.norm(y, norm)
        builder.add(x, normed, 0.37)
        if read_again:
            builder.add(x, normed, -2.0)
        builder.add(x, builder.norm(x, norm), 0.5)
        return x

    assert_same(level, record, 40, 3e-6)


@levels
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_heads_norm(level: str, kind: Any) -> None:
    rng = np.random.default_rng(4)
    table, head = random_weight(rng, 40, 40), random_weight(rng, 40, 40)
    weight, bias = rng.standard_normal((2, 40), np.float32)
    norm = Norm(weight, 1e-5, kind, bias if kind == "layer" else None)
    found = []
    for name in ("reference", level):
        limits = small_limits(40)
        builder = backend_of(name).builder(limits, KvSpec(1, 1, 16, 8, "f32"))
        builder.head_and_sample(builder.embed(table, 1.0), norm, head, 1.0, 0.0)
        runner = Runner(builder.finish(), limits, 8)
        runner.add(0, [5])
        ((_, logits),) = runner.step([(0, 1)]).values()
        found.append(logits)
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=3e-6 * np.abs(found[0]).max())


@levels
def test_positions(level: str) -> None:
    """Added by absolute position, whatever the chunk; a step beyond the table is refused and computes nothing."""
    rng = np.random.default_rng(5)
    table, positions = random_weight(rng, 40, 40), random_weight(rng, 30, 40)
    found = []
    for name in ("reference", level):
        limits = small_limits(40)
        builder = backend_of(name).builder(limits, KvSpec(1, 1, 16, 8, "f32"))
        x = builder.embed(table, 1.0)
        builder.add_positions(x, positions)
        open_end(builder, x, 40)
        runner = Runner(builder.finish(), limits, 8)
        runner.add(0, list(range(27)))
        found.append([logits for _, logits in runner.generate(0, 3, chunk=5)])
        if name != "reference":
            runner.add(1, [1] * 31)
            with pytest.raises(ValueError, match=r"positions\[30\] is 30; the model has positions 0 to 29"):
                runner.step([(1, 31)])
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=2e-6 * np.abs(found[0]).max())


def test_gelu_of_the_reference() -> None:
    x = np.array([-30.0, -1.0, 0.0, 0.5, 30.0], np.float32)
    expected = [0.0, -0.15865525, 0.0, 0.34573123, 30.0]
    np.testing.assert_allclose(functions.activate(x, "gelu"), expected, atol=1e-6)


@levels
def test_groups_must_divide_the_width(level: str) -> None:
    rng = np.random.default_rng(6)
    builder = backend_of(level).builder(small_limits(40), KvSpec(1, 1, 16, 8, "f32"))
    builder.norm(builder.embed(random_weight(rng, 40, 40), 1.0), Norm(np.ones(40, np.float32), 1e-5, groups=3))
    with pytest.raises((ValueError, UnsupportedError), match="3 groups can't share a width of 40"):
        builder.finish()
