"""Promise 4 at the level of plans: a sequence's logits are bit-identical whatever shares the batch or the machine."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.harness import LEVELS, Runner, TinyDecoder

from octavo.backends.ops import Floats
from octavo.formats.ggml_types import BY_TENSOR_TYPE
from octavo.formats.tensor import TensorType

PROMPT = np.random.default_rng(20).integers(0, 160, 61).tolist()
DRAWN = 4


def bits(results: list[tuple[int, Floats]]) -> tuple[list[int], bytes]:
    return [token for token, _ in results], b"".join(logits.tobytes() for _, logits in results)


def in_a_crowd(
    runner: Runner, slot: int, chunk: int, others: int, rng: np.random.Generator
) -> list[tuple[int, Floats]]:
    """PROMPT in chunks, in a random place among sequences that prefill and decode beside it."""
    for other in range(48):
        if other != slot and len(runner.sequences) < others:
            runner.add(other, rng.integers(0, 160, int(rng.integers(1, 60))).tolist())
    runner.add(slot, PROMPT)
    results: list[tuple[int, Floats]] = []
    while len(results) < DRAWN:
        chunks = []
        for each in rng.permutation(list(runner.sequences)).tolist():
            left = len(runner.sequences[each].tokens) - runner.sequences[each].computed
            most = chunk if each == slot else int(rng.integers(1, 9))
            if sum(count for _, count in chunks) + min(left, most) <= runner.limits.max_tokens:
                chunks.append((each, min(left, most)))
        drawn = runner.step(chunks)
        if slot in drawn:
            results.append(drawn[slot])
    return results


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("matrices", "kv_dtype"),
    [
        (TensorType.Q4_1, "bf16"),
        (TensorType.Q8_0, "f32"),
        (TensorType.Q5_0, "bf16"),
        (TensorType.Q4_K, "bf16"),
        (TensorType.Q6_K, "f32"),
        (TensorType.Q4_1, "f16"),
        (TensorType.Q4_1, "int8"),
        (TensorType.BF16, "bf16"),
        (TensorType.F32, "f32"),
        (TensorType.F32, "int8"),
    ],
)
def test_alone_or_in_a_crowd(level: str, matrices: TensorType, kv_dtype: str) -> None:
    large = BY_TENSOR_TYPE[matrices].block_elements == 256
    model = TinyDecoder(matrices, hidden=256, heads=8, ffn=256) if large else TinyDecoder(matrices)
    runner = model.runner(level, threads=1, kv_dtype=kv_dtype)
    runner.add(3, PROMPT)
    alone = bits(runner.generate(3, DRAWN))
    rng = np.random.default_rng(21)
    for slot, chunk, page_size, threads in ((0, 200, 8, 2), (47, 16, 4, 2), (20, 7, 32, 3)):
        runner = model.runner(level, threads, page_size=page_size, kv_dtype=kv_dtype, seed=slot)
        assert bits(in_a_crowd(runner, slot, chunk, 24, rng)) == alone


@pytest.mark.parametrize("level", LEVELS)
def test_order_of_output_rows(level: str) -> None:
    """The last layer keeps output rows only where they ascend; else it computes all rows, to the same bits."""
    found = {}
    for order in (1, -1):
        runner = TinyDecoder().runner(level)
        for slot, length in ((0, 9), (1, 30), (2, 5)):
            runner.add(slot, PROMPT[:length])
        batch = runner.fill([(0, 9), (1, 20), (2, 5)])
        assert batch.num_outputs == 2
        batch.output_rows[:2] = batch.output_rows[:2][::order].copy()
        batch.output_slots[:2] = batch.output_slots[:2][::order].copy()
        logits = runner.plan.run(batch).logits
        assert logits is not None
        found[order] = logits[::order].tobytes()
    assert found[1] == found[-1]


def test_levels_agree_within_rounding() -> None:
    """Different levels are different scopes of the promise, but not different models."""
    found = {}
    for level in ("reference", *LEVELS):
        runner = TinyDecoder(TensorType.F32).runner(level, activations="f32", kv_dtype="f32")
        runner.add(0, PROMPT)
        found[level] = runner.step([(0, len(PROMPT))])[0][1]
    for level in LEVELS:
        np.testing.assert_allclose(found[level], found["reference"], rtol=0, atol=1e-4 * abs(found["reference"]).max())
