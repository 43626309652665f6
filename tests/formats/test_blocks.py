"""Block formats against ggml's definitions: by hand, by properties, and against the `gguf` package if it is there."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.formats.blocks import bf16_to_f32, dequantize, dequantize_rows, f32_to_bf16, quantize, row_bytes
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.formats.tensor import Tensor, TensorType

QUANTISED = (TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1)


def random_blocks(type_: TensorType, seed: int, rows: int = 4, width: int = 128) -> np.ndarray:
    """Random bytes whose scales are finite: every such pattern is a valid block."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, row_bytes(type_, width)), np.uint8)
    blocks = data.reshape(rows, width // 32, -1)
    scales = 4 if type_ is TensorType.Q4_1 else 2
    blocks[..., :scales] = rng.standard_normal((rows, width // 32, scales // 2)).astype("<f2").view(np.uint8)
    return data


def test_blocks_by_hand() -> None:
    q8 = struct.pack("<e32b", 0.5, *range(-16, 16))
    assert dequantize_rows(TensorType.Q8_0, np.frombuffer(q8, np.uint8)[None])[0].tolist() == [
        0.5 * q for q in range(-16, 16)
    ]
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))
    q4_0 = dequantize_rows(TensorType.Q4_0, np.frombuffer(struct.pack("<e", 2.0) + nibbles, np.uint8)[None])[0]
    assert q4_0.tolist() == [2.0 * (q - 8) for q in [*range(16), *range(15, -1, -1)]]
    q4_1 = dequantize_rows(TensorType.Q4_1, np.frombuffer(struct.pack("<ee", 2.0, -3.0) + nibbles, np.uint8)[None])[0]
    assert q4_1.tolist() == [2.0 * q - 3.0 for q in [*range(16), *range(15, -1, -1)]]


@pytest.mark.parametrize(
    ("type_", "digest"),
    [
        (TensorType.Q8_0, "d37cacef604fe595"),
        (TensorType.Q4_0, "f54e58c69b6fe506"),
        (TensorType.Q4_1, "61814c3a42c68487"),
    ],
)
def test_golden(type_: TensorType, digest: str) -> None:
    """Digests of gguf 0.19.0's dequantize over the same bytes."""
    values = dequantize_rows(type_, random_blocks(type_, 7))
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest


@pytest.mark.oracle
@given(st.sampled_from(QUANTISED), st.integers(0, 2**32))
@settings(max_examples=60)
def test_equal_to_gguf_package(type_: TensorType, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    data = random_blocks(type_, seed)
    theirs = gguf.dequantize(data, gguf.GGMLQuantizationType[type_.name])
    assert dequantize_rows(type_, data).tobytes() == theirs.astype(np.float32).tobytes()
    values = np.random.default_rng(seed).standard_normal((3, 96), np.float32)
    theirs = gguf.quantize(values, gguf.GGMLQuantizationType[type_.name])
    assert np.array_equal(quantize("x", values, type_).data, theirs)


@given(st.sampled_from(QUANTISED), st.integers(0, 2**32))
@settings(max_examples=60)
def test_rounding_error_is_within_half_a_step(type_: TensorType, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((5, 64), np.float32)
    tensor = quantize("x", values, type_)
    assert (tensor.shape, tensor.data.shape) == ((5, 64), (5, row_bytes(type_, 64)))
    blocks = values.reshape(5, 2, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    step = {
        TensorType.Q8_0: peak / 127,
        TensorType.Q4_0: peak / 8,
        TensorType.Q4_1: (blocks.max(-1, keepdims=True) - blocks.min(-1, keepdims=True)) / 15,
    }[type_]
    # Q4_0 has one value fewer on the side opposite to the peak; f16 scales add a little.
    bound = step * (1.0 if type_ is TensorType.Q4_0 else 0.5) + peak * 2e-3
    assert (np.abs(dequantize(tensor).reshape(blocks.shape) - blocks) <= bound).all()


@pytest.mark.parametrize("type_", list(TensorType))
def test_zeros_stay_zero(type_: TensorType) -> None:
    assert not dequantize(quantize("x", np.zeros((2, 64)), type_)).any()


def test_width_must_fit_the_block() -> None:
    with pytest.raises(ValueError, match="48 elements can't be Q4_0; it needs a multiple of 32"):
        quantize("x", np.zeros((2, 48)), TensorType.Q4_0)


@given(hnp.arrays(np.uint16, 64))
def test_bf16_survives_float32(bits: np.ndarray) -> None:
    is_nan = (bits & 0x7FFF) > 0x7F80
    back = f32_to_bf16(bf16_to_f32(bits))
    assert np.array_equal(back[~is_nan], bits[~is_nan])
    assert np.isnan(bf16_to_f32(back[is_nan])).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_rounds_to_nearest_even(value: float) -> None:
    exact = np.array([value], np.float32)
    got = f32_to_bf16(exact)[0]
    bits = int(exact.view(np.uint32)[0])
    low, high = bits >> 16, (bits >> 16) + 1
    below, above = bits - (low << 16), (high << 16) - bits
    assert got == (low if below < above or (below == above and low % 2 == 0) else high)


def test_float_tensors() -> None:
    values = np.array([[1.0, -2.5], [0.0, 3.25]], np.float32)
    for type_ in (TensorType.F32, TensorType.F16, TensorType.BF16):
        tensor = quantize("x", values, type_)
        assert np.array_equal(dequantize(tensor), values)
    vector = dequantize(Tensor("v", TensorType.F32, (2,), values[:1].view(np.uint8)))
    assert vector.shape == (2,)


def test_real_weights(default_model: ModelFiles) -> None:
    weights = dequantize(GgufFile.open(default_model.path).tensor("blk.3.attn_q.weight"))
    assert weights.shape == (576, 576)
    assert 0.01 < weights.std() < 1.0
