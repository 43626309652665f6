"""What the reference keeps of K and V, which is what every backend's memory stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.ops import KvSpec
from octavo.backends.reference.kv import KvMemory, quantise_heads, scaled_heads
from octavo.formats.blocks import bf16_to_f32

PAGES, OFFSETS = np.array([1, 1, 0], np.int32), np.array([0, 3, 2], np.int32)


def rounded(heads: np.ndarray) -> np.ndarray:
    return scaled_heads(*quantise_heads(heads.astype(np.float32)))


@given(st.integers(0, 10_000), st.sampled_from([1e-25, 1e-3, 1.0, 1e4, 1e30]))
def test_a_number_is_off_by_half_a_step_at_most(seed: int, size: float) -> None:
    heads = np.random.default_rng(seed).standard_normal((5, 32)) * size
    step = np.abs(heads).max(axis=-1, keepdims=True) / 127 * (1 + 2**-8)
    assert (np.abs(rounded(heads) - heads) <= 0.5001 * step).all()


def test_ties_go_to_the_even_number() -> None:
    numbers, scales = quantise_heads(np.array([[127, 0.5, 1.5, 2.5, -0.5, -2.5, -126.5]], np.float32))
    assert bf16_to_f32(scales).tolist() == [[1.0]]
    assert numbers.tolist() == [[127, 0, 2, 2, 0, -2, -126]]


def test_each_head_has_its_own_scale() -> None:
    small, large = np.full((1, 16), 1e-3), np.full((1, 16), 1e3)
    both = np.concatenate([small, large])
    assert np.array_equal(rounded(both), np.concatenate([rounded(small), rounded(large)]))
    np.testing.assert_allclose(rounded(both), both, rtol=2**-8)


@given(st.integers(0, 10_000), st.sampled_from([64, 80, 128, 160, 256]))
def test_each_64_numbers_are_rounded_as_if_alone(seed: int, head_dim: int) -> None:
    rng = np.random.default_rng(seed)
    heads = rng.standard_normal((3, head_dim)) * np.exp(rng.uniform(-9, 9, head_dim // 16)).repeat(16)
    numbers, scales = quantise_heads(heads.astype(np.float32))
    assert numbers.shape == (3, head_dim)
    assert scales.shape == (3, -(-head_dim // 64))
    alone = [rounded(heads[:, start : start + 64]) for start in range(0, head_dim, 64)]
    assert np.array_equal(rounded(heads), np.concatenate(alone, axis=-1))


def test_a_broken_part_of_a_head_is_broken_alone() -> None:
    heads = np.ones((1, 160), np.float32)
    heads[0, 70] = np.inf
    assert np.isnan(rounded(heads))[0].tolist() == [False] * 64 + [True] * 64 + [False] * 32


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_head_that_is_no_number_reads_back_as_none(broken: float) -> None:
    heads = np.ones((3, 16), np.float32)
    heads[1, 5] = broken
    assert np.isnan(rounded(heads)).all(axis=-1).tolist() == [False, True, False]


@pytest.mark.parametrize("nothing", [0.0, -0.0, 1e-31, 1e-45])
def test_next_to_nothing_is_nothing(nothing: float) -> None:
    numbers, scales = quantise_heads(np.full((1, 16), nothing, np.float32))
    assert not numbers.any()
    assert not scales.any()


@pytest.mark.parametrize(("dtype", "share"), [("f32", 0), ("bf16", 2**-8), ("f16", 2**-11), ("int8", 1 / 250)])
def test_what_is_stored_is_what_is_read(dtype: str, share: float) -> None:
    memory = KvMemory(KvSpec(2, 2, 16, 4, dtype), 3)  # type: ignore[arg-type]
    k, v = np.random.default_rng(1).uniform(0.5, 1, (2, 3, 2, 16)).astype(np.float32)
    memory.store(1, PAGES, OFFSETS, k, v)
    memory.copy(np.array([[1, 2]], np.int32))
    for blocks in ([1, 0], [2, 0]):
        keys, values = memory.load(1, np.array(blocks, np.int32), 7)
        for read, written in ((keys, k), (values, v)):
            np.testing.assert_allclose(read[[0, 3, 6]], written, rtol=0, atol=share)
            assert not read[[1, 2, 4, 5]].any()
    assert not memory.load(0, np.array([0, 1], np.int32), 8)[0].any()


def test_f16_ends_at_65504() -> None:
    memory = KvMemory(KvSpec(1, 1, 16, 4, "f16"), 1)
    heads = np.zeros((1, 1, 16), np.float32)
    heads[0, 0, :3] = 65519, -65520, 1e-8
    memory.store(0, np.zeros(1, np.int32), np.zeros(1, np.int32), heads, heads)
    keys, _ = memory.load(0, np.zeros(1, np.int32), 1)
    assert keys[0, 0, :3].tolist() == [65504, -np.inf, 0]
