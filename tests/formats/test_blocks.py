"""Block formats against ggml's definitions: by hand, by properties, and against the `gguf` package if it is there."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.formats.random_blocks import random_blocks

from octavo.formats.blocks import bf16_to_f32, dequantize, dequantize_rows, f32_to_bf16, quantize, row_bytes
from octavo.formats.ggml_types import is_quantised
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.formats.tensor import Tensor, TensorType

QUANTISED = [type_ for type_ in TensorType if is_quantised(type_)]
#: Root mean square of the error that a normal distribution of width 1 may be rounded with.
ROUNDING = {
    TensorType.Q8_0: 0.006,
    TensorType.Q4_0: 0.09,
    TensorType.Q4_1: 0.085,
    TensorType.Q5_0: 0.045,
    TensorType.Q5_1: 0.04,
    TensorType.Q2_K: 0.35,
    TensorType.Q3_K: 0.17,
    TensorType.Q4_K: 0.085,
    TensorType.Q5_K: 0.042,
    TensorType.Q6_K: 0.02,
    TensorType.IQ4_NL: 0.085,
    TensorType.IQ4_XS: 0.085,
    TensorType.MXFP4: 0.13,
}


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


def test_mxfp4_has_every_power_of_two() -> None:
    """Also those that are no normal numbers of float32."""
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))
    blocks = b"".join(bytes([e]) + nibbles for e in range(255))
    with np.errstate(over="ignore"):
        values = dequantize_rows(TensorType.MXFP4, np.frombuffer(blocks, np.uint8)[None])[0].reshape(255, 32)
    e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    for e in range(255):
        with np.errstate(over="ignore"):
            expected = np.array([v * 2.0 ** (e - 127) for v in (*e2m1, *e2m1[::-1])]).astype(np.float32)
        assert np.array_equal(values[e], expected), e


@pytest.mark.parametrize(
    ("type_", "digest"),
    [
        (TensorType.Q8_0, "9915cac31535856c"),
        (TensorType.Q4_0, "937ac99c797ad416"),
        (TensorType.Q4_1, "a71b4373c98a226a"),
        (TensorType.Q5_0, "9f362906feaab61d"),
        (TensorType.Q5_1, "d16a281dadda6a8c"),
        (TensorType.Q2_K, "79995078e53e2122"),
        (TensorType.Q3_K, "8016570b21f0a833"),
        (TensorType.Q4_K, "58582ac681abeaea"),
        (TensorType.Q5_K, "1aba020e2c8a322d"),
        (TensorType.Q6_K, "0243dd1a15219835"),
        (TensorType.IQ4_NL, "ba99d72ed9093a96"),
        (TensorType.IQ4_XS, "23ebd06e9c5a311d"),
        (TensorType.MXFP4, "ffbb9b8dfedcc18b"),
    ],
)
def test_golden(type_: TensorType, digest: str) -> None:
    """Digests of gguf 0.19.0's dequantize over the same bytes."""
    values = dequantize_rows(type_, random_blocks(type_, np.random.default_rng(7), 4, 1024))
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest


@pytest.mark.oracle
@given(st.sampled_from(QUANTISED), st.integers(0, 2**32))
@settings(max_examples=120)
def test_equal_to_gguf_package(type_: TensorType, seed: int) -> None:
    gguf = pytest.importorskip("gguf")
    theirs_type = gguf.GGMLQuantizationType[type_.name]
    rng = np.random.default_rng(seed)
    data = random_blocks(type_, rng, 4, 512)
    theirs = gguf.dequantize(data, theirs_type)
    assert dequantize_rows(type_, data).tobytes() == theirs.astype(np.float32).tobytes()
    values = rng.standard_normal((3, 256), np.float32)
    try:
        theirs = gguf.quantize(values, theirs_type)
    except NotImplementedError:  # the package reads these, and writes none
        return
    assert np.array_equal(quantize("x", values, type_).data, theirs)


@given(st.sampled_from(QUANTISED), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_rounding_error(type_: TensorType, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((64, 256), np.float32)
    tensor = quantize("x", values, type_)
    assert (tensor.shape, tensor.data.shape) == ((64, 256), (64, row_bytes(type_, 256)))
    assert np.sqrt(np.mean((dequantize(tensor) - values) ** 2)) < ROUNDING[type_]


@given(
    st.sampled_from([TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1, TensorType.Q5_0, TensorType.Q5_1]),
    st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_rounding_error_is_within_half_a_step(type_: TensorType, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((5, 64), np.float32)
    blocks = values.reshape(5, 2, 32)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    span = blocks.max(-1, keepdims=True) - blocks.min(-1, keepdims=True)
    symmetric = {TensorType.Q8_0: 127, TensorType.Q4_0: 8, TensorType.Q5_0: 16}
    step = peak / symmetric[type_] if type_ in symmetric else span / {TensorType.Q4_1: 15, TensorType.Q5_1: 31}[type_]
    # Q4_0 and Q5_0 have one value fewer on the side opposite to the peak; f16 scales add a little.
    bound = step * (1.0 if type_ in (TensorType.Q4_0, TensorType.Q5_0) else 0.5) + peak * 2e-3
    assert (np.abs(dequantize(quantize("x", values, type_)).reshape(blocks.shape) - blocks) <= bound).all()


@pytest.mark.parametrize("type_", [TensorType.Q4_K, TensorType.Q6_K, TensorType.IQ4_XS, TensorType.Q2_K])
def test_a_block_of_one_value(type_: TensorType) -> None:
    """Groups of zeros beside groups of one value: no scale may divide by zero."""
    values = np.zeros((1, 512), np.float32)
    values[0, 32:64], values[0, 300:320] = 2.0, -1.5
    assert np.abs(dequantize(quantize("x", values, type_)) - values).max() < 0.02


@pytest.mark.parametrize("type_", list(TensorType))
def test_zeros_stay_zero(type_: TensorType) -> None:
    assert not dequantize(quantize("x", np.zeros((2, 256)), type_)).any()


def test_width_must_fit_the_block() -> None:
    with pytest.raises(ValueError, match="48 elements can't be Q4_0; it needs a multiple of 32"):
        quantize("x", np.zeros((2, 48)), TensorType.Q4_0)
    with pytest.raises(ValueError, match="288 elements can't be Q6_K; it needs a multiple of 256"):
        quantize("x", np.zeros((2, 288)), TensorType.Q6_K)


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
