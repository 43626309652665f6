"""Every op on every ISA level gives the reference's values."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import (
    GREEDY,
    LEVELS,
    Runner,
    TinyDecoder,
    backend_of,
    random_weight,
    small_limits,
    values_of,
)
from tests.formats.random_blocks import random_blocks

from octavo.backends.kv_types import KvDtype
from octavo.backends.ops import AttentionOp, Buffer, Floats, KvSpec, Norm, Projection, Weight
from octavo.formats.blocks import quantize
from octavo.formats.ggml_types import BY_TENSOR_TYPE, is_quantised
from octavo.formats.tensor import Tensor, TensorType

FORMATS = list(TensorType)
QUANTISED = [type_ for type_ in FORMATS if is_quantised(type_)]
TOKENS = [3, 0, 7, 7, 31, 12, 1]

pytestmark = pytest.mark.parametrize("level", LEVELS)


def assert_close(actual: Floats, expected: Floats, share: float) -> None:
    """Within `share` of the largest magnitude."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


def random_matrix(rng: np.random.Generator, rows: int, columns: int, type_: TensorType) -> Weight:
    """Of a quantised type, blocks of random bits: what no encoder makes is there too."""
    if not is_quantised(type_):
        return random_weight(rng, rows, columns, type_)
    return Weight(Tensor("random", type_, (rows, columns), random_blocks(type_, rng, rows, columns)))


@pytest.mark.parametrize("type_", FORMATS)
def test_embed(level: str, type_: TensorType) -> None:
    width = max(64, BY_TENSOR_TYPE[type_].block_elements)
    table = random_matrix(np.random.default_rng(1), width, width, type_)
    expected, actual = (values_of(name, lambda b: b.embed(table, 1.7), width, TOKENS) for name in ("reference", level))
    assert_close(actual, expected, 1e-6)


@pytest.mark.parametrize("width", [32, 48, 100])
def test_norm(level: str, width: int) -> None:
    rng = np.random.default_rng(2)
    table, weight = random_weight(rng, width, width), rng.standard_normal(width, np.float32)

    def record(builder: Any) -> Buffer:
        return builder.norm(builder.embed(table, 2.0), Norm(weight, 1e-5))

    assert_close(values_of(level, record, width, TOKENS), values_of("reference", record, width, TOKENS), 2e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(level: str, activation: str) -> None:
    rng = np.random.default_rng(3)
    one, two = random_weight(rng, 40, 40), random_weight(rng, 40, 40)

    def record(builder: Any) -> Buffer:
        return builder.gated(builder.embed(one, 9.0), builder.embed(two, 5.0), activation)

    assert_close(values_of(level, record, 40, TOKENS), values_of("reference", record, 40, TOKENS), 3e-6)


# What a backend may lose to the rounding of activations: nothing, 8 bits of mantissa, or 1/254 of a group's largest.
@pytest.mark.parametrize(
    ("type_", "activations", "share"),
    [(type_, "f32", 3e-6) for type_ in FORMATS]
    + [(type_, "int8", 0.02) for type_ in QUANTISED]
    + [(type_, "bf16", 0.01) for type_ in FORMATS],
)
def test_linear(level: str, type_: TensorType, activations: str, share: float) -> None:
    rng = np.random.default_rng(4)
    width = max(96, BY_TENSOR_TYPE[type_].block_elements)
    table = random_weight(rng, width, width)
    matrix = random_matrix(rng, 100, width, type_)
    permuted = Weight(matrix.tensor, rng.permutation(100)[:64].astype(np.int32))
    back = random_weight(rng, width, 64)
    biases = rng.standard_normal((2, 100), np.float32)

    def record(builder: Any) -> Buffer:
        """A group with and without bias and row order; both results end up added to a residual."""
        x = builder.embed(table, 1.0)
        normed = builder.norm(x, Norm(np.ones(width, np.float32), 1e-6))
        _, picked = builder.linear(normed, [Projection(matrix, biases[0]), Projection(permuted, biases[1, :64])])
        (out,) = builder.linear(picked, [Projection(back)], residual=x)
        return out

    # auto: `table` and `back` stay f32
    actual = values_of(level, record, width, TOKENS, "auto" if activations == "int8" else activations)
    assert_close(actual, values_of("reference", record, width, TOKENS), share)


def test_linear_group_of_mixed_formats(level: str) -> None:
    """Projections of one input that are multiplied in different activation types."""
    rng = np.random.default_rng(5)
    table, bias = random_weight(rng, 256, 256), rng.standard_normal(256, np.float32)
    types = (TensorType.Q8_0, TensorType.F16, TensorType.Q4_K, TensorType.Q6_K)
    group = [random_weight(rng, 256, 256, type_) for type_ in types]

    def record(builder: Any) -> Buffer:
        x = builder.embed(table, 1.0)
        one, two, three, four = builder.linear(x, [Projection(group[0], bias), *map(Projection, group[1:])])
        return builder.gated(builder.gated(builder.gated(one, two, "silu"), three, "silu"), four, "silu")

    assert_close(values_of(level, record, 256, TOKENS), values_of("reference", record, 256, TOKENS), 0.03)


HEADS = AttentionOp(0, 6, 2, 32, 32**-0.5, (1e4 ** (-np.arange(16) / 16)).astype(np.float32))


RNG = np.random.default_rng(8)
SHAPES = {
    "plain": HEADS,
    "window": replace(HEADS, window=33),
    "softcap": replace(HEADS, softcap=5.0),
    "sinks": replace(HEADS, sinks=RNG.standard_normal(6).astype(np.float32)),
    "qk_norm": replace(
        HEADS, q_norm=RNG.uniform(0.5, 2, 32).astype(np.float32), k_norm=RNG.uniform(0.5, 2, 32).astype(np.float32)
    ),
    "no rotation": replace(HEADS, inv_freq=np.empty(0, np.float32)),
    "half rotated": replace(HEADS, inv_freq=HEADS.inv_freq[:8], amplitude=1.3),
    "heads of 80": replace(HEADS, head_dim=80, scale=80**-0.5),
    "heads of 256": replace(HEADS, head_dim=256, scale=256**-0.5, heads=2),
}
STEPS = [[(0, 1), (1, 300), (2, 17)], [(2, 1), (1, 1), (0, 250), (3, 5)], [(0, 40), (1, 1), (2, 9), (3, 1)]]


@cache
def attention_logits(level: str, shape: str, kv: KvSpec) -> list[Floats]:
    """Attention over mixed chunks and decodes: the last row of each sequence in each of STEPS."""
    op = SHAPES[shape]
    rng = np.random.default_rng(6)
    hidden, vocab = op.heads * op.head_dim, op.heads * op.head_dim
    table = random_weight(rng, vocab, hidden)
    inputs = [random_weight(rng, rows * op.head_dim, hidden) for rows in (op.heads, op.kv_heads, op.kv_heads)]
    limits = small_limits(vocab, max_tokens=512)
    builder = backend_of(level, activations="f32").builder(limits, kv)
    q, k, v = builder.linear(builder.embed(table, 30.0), [Projection(weight) for weight in inputs])
    builder.rope_and_store(q, k, v, op)
    identity = Weight(quantize("identity", np.eye(vocab), TensorType.F32))
    builder.head_and_sample(builder.attention(q, op), Norm(np.ones(vocab, np.float32), 1e12), identity, 1e6, 0.0)
    runner = Runner(builder.finish(), limits, kv.page_size)
    for slot in range(4):
        runner.add(slot, rng.integers(0, vocab, 700).tolist(), GREEDY)
    found = []
    for chunks in STEPS:
        batch = runner.fill(chunks)
        batch.num_outputs = len(chunks)
        batch.output_rows[: len(chunks)] = batch.query_start[1 : len(chunks) + 1] - 1
        batch.output_slots[: len(chunks)] = [slot for slot, _ in chunks]
        logits = runner.plan.run(batch).logits
        assert logits is not None
        found.append(logits.copy())
        for slot, count in chunks:
            runner.sequences[slot].computed += count
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_attention(level: str, shape: str) -> None:
    kv = KvSpec(1, 2, SHAPES[shape].head_dim, 8, "f32")
    expected = attention_logits("reference", shape, kv)
    for actual, wanted in zip(attention_logits(level, shape, kv), expected, strict=True):
        assert_close(actual, wanted, 3e-5)


# What a level may lose to the reference: q and weights rounded to bf16, or to 16 bits; and a number on the border
# between two stored ones, which another order of sums puts on the other side.
KV_SHARES: dict[KvDtype, float] = {"f32": 3e-5, "bf16": 0.02, "f16": 2e-3, "int8": 0.01}


@pytest.mark.parametrize("dtype", KV_SHARES)
@pytest.mark.parametrize(
    ("shape", "page_size"), [(shape, 8) for shape in SHAPES if shape != "plain"] + [("plain", n) for n in (4, 16, 32)]
)
def test_attention_of_each_kv_type(level: str, shape: str, page_size: int, dtype: KvDtype) -> None:
    kv = KvSpec(1, 2, SHAPES[shape].head_dim, page_size, dtype)
    expected = attention_logits("reference", shape, kv)
    for actual, wanted in zip(attention_logits(level, shape, kv), expected, strict=True):
        assert_close(actual, wanted, KV_SHARES[dtype])


@pytest.mark.parametrize("dtype", KV_SHARES)
def test_stored_kv_of_each_type(level: str, dtype: KvDtype) -> None:
    """Alone in its sequence, a token's attention is its V as stored: what the reference stores, to the bit."""
    rng = np.random.default_rng(10)
    table = random_weight(rng, 64, 64)
    op = replace(HEADS, heads=2, inv_freq=np.empty(0, np.float32))

    def record(builder: Any) -> Buffer:
        values = builder.embed(table, 3.0)
        builder.rope_and_store(builder.embed(table, 1.0), builder.embed(table, 2.0), values, op)
        return builder.attention(values, op)

    kv = KvSpec(1, 2, 32, 8, dtype)
    assert_close(values_of(level, record, 64, TOKENS, kv=kv), values_of("reference", record, 64, TOKENS, kv=kv), 1e-6)


@pytest.mark.parametrize(("scale", "softcap"), [(1.0, 0.0), (0.25, 0.0), (2.0, 3.0)])
def test_head_in_blocks_of_rows(level: str, scale: float, softcap: float) -> None:
    """More output rows than fit one tile of logits."""
    rng = np.random.default_rng(9)
    table, head, norm = random_weight(rng, 80, 64), random_weight(rng, 80, 64), rng.standard_normal(64, np.float32)
    found = []
    for name in ("reference", level):
        limits = small_limits(80)
        builder = backend_of(name).builder(limits, KvSpec(1, 1, 16, 8, "f32"))
        builder.head_and_sample(builder.embed(table, 1.0), Norm(norm, 1e-5), head, scale, softcap)
        runner = Runner(builder.finish(), limits, 8)
        for slot in range(80):
            runner.add(slot, [slot])
        sampled = runner.plan.run(runner.fill([(slot, 1) for slot in range(80)]))
        assert sampled.logits is not None
        assert sampled.tokens.tolist() == sampled.logits.argmax(axis=1).tolist()
        found.append(sampled.logits.copy())
    assert_close(found[1], found[0], 2e-6)


def test_copied_pages_hold_the_same(level: str) -> None:
    """A sequence goes on over a copy of its page as it would have over the page itself."""
    results = []
    for copied in (False, True):
        runner = TinyDecoder().runner(level)
        runner.add(0, list(range(11)))
        runner.step([(0, 11)])
        if copied:
            blocks = runner.sequences[0].blocks
            fresh = next(page for page in range(1024) if page not in blocks)
            runner.plan.copy_pages(np.array([[blocks[1], fresh]], np.int32))
            blocks[1] = fresh
        results.append(runner.step([(0, 1)])[0])
    assert results[0][0] == results[1][0]
    assert np.array_equal(results[0][1], results[1][1])
