"""What ops are said to have to do, against counting by hand and against what the native plan runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import TinyDecoder, backend_of, small_limits

from octavo.backends.ops import AttentionOp, Expert, KvSpec, Norm, Projection, Routing, Weight
from octavo.backends.work import Chunk, OpWork, StepLoad, WorkCounter
from octavo.formats.blocks import quantize
from octavo.formats.tensor import TensorType


@pytest.mark.parametrize("window", [0, 1, 3, 5, 40])
@pytest.mark.parametrize(("new", "context"), [(1, 1), (1, 9), (4, 4), (4, 9), (7, 30), (30, 30)])
def test_pairs_and_keys_are_those_of_a_mask(new: int, context: int, window: int) -> None:
    positions = np.arange(context - new, context)[:, None]
    keys = np.arange(context)[None]
    seen = (keys <= positions) & ((keys > positions - window) | (window == 0))
    assert Chunk(new, context).pairs(window) == seen.sum()
    assert Chunk(new, context).keys(window) == seen.any(axis=0).sum()


def counter(kv: KvSpec | None = None) -> WorkCounter:
    return WorkCounter(
        kv or KvSpec(2, 2, 32, 4, "bf16"),
        lambda weight: "int8" if weight.tensor.type >= TensorType.Q8_0 else "f32",
        "bf16",
    )


def matrix(rows: int, columns: int, type_: TensorType, name: str = "blk.3.ffn_up.weight") -> Weight:
    return Weight(quantize(name, np.ones((rows, columns)), type_))


LOAD = StepLoad((Chunk(3, 10), Chunk(1, 7)), outputs=2)


def test_a_linear_group_reads_its_stored_bytes_once() -> None:
    count = counter()
    x = count.embed(matrix(50, 64, TensorType.F32), 1.0)
    weights = [matrix(32, 64, TensorType.Q4_1), matrix(16, 64, TensorType.F32, "model.layers.3.mlp.up_proj.weight")]
    count.linear(x, [Projection(weight) for weight in weights])
    work = count.ops[1].of(LOAD)
    assert count.ops[1].name == "ffn_up+up_proj 48x64 Q4_1/F32"
    assert work.memory_bytes == 32 * 64 * 20 // 32 + 16 * 64 * 4
    assert work.row_bytes == 4 * 4 * (64 + 48)
    assert work.operations == {"int8": 2 * 4 * 32 * 64, "f32": 2 * 4 * 16 * 64}


def test_a_residual_is_read_too_and_rows_picked_by_index_count_alone() -> None:
    count = counter()
    x = count.embed(matrix(50, 64, TensorType.F32), 1.0)
    picked = Weight(matrix(64, 64, TensorType.F32).tensor, np.arange(32, dtype=np.int32))
    y = count.embed(matrix(50, 32, TensorType.F32), 1.0)
    assert count.linear(x, [Projection(picked)], residual=y) == (y,)
    work = count.ops[2].of(LOAD)
    assert (work.memory_bytes, work.row_bytes) == (32 * 64 * 4, 4 * 4 * (64 + 2 * 32))


def test_attention_reads_what_is_seen() -> None:
    kv = KvSpec(2, 2, 32, 4, "bf16")
    count = counter(kv)
    q = count.embed(matrix(50, 128, TensorType.F32), 1.0)
    op = AttentionOp(0, 4, 2, 32, 1.0, np.empty(0, np.float32), window=4)
    count.attention(q, op)
    work = count.ops[1].of(LOAD)
    assert work.memory_bytes == (6 + 4) * 2 * 2 * 32 * 2
    assert work.operations == {"bf16": 4 * 4 * 32 * (3 * 4 + 4)}
    assert "window 4" in count.ops[1].name


def test_int8_kv_counts_its_scales_and_products_of_16_bits() -> None:
    kv = KvSpec(2, 2, 32, 4, "int8")
    count = WorkCounter(kv, lambda weight: "f32", "int8")
    q = count.embed(matrix(50, 128, TensorType.F32), 1.0)
    count.attention(q, AttentionOp(0, 4, 2, 32, 1.0, np.empty(0, np.float32)))
    work = count.ops[1].of(LOAD)
    assert work.memory_bytes == (10 + 7) * 2 * 2 * (32 + 2)
    assert work.operations == {"int8": 2 * 4 * 4 * 32 * (8 + 9 + 10 + 7)}
    wide = WorkCounter(KvSpec(2, 2, 160, 4, "int8"), lambda weight: "f32", "int8")
    wide.attention(q, AttentionOp(0, 4, 2, 160, 1.0, np.empty(0, np.float32)))
    assert wide.ops[0].of(LOAD).memory_bytes == (10 + 7) * 2 * 2 * (160 + 3 * 2)  # a scale for each 64 numbers


def test_the_head_works_for_outputs_only() -> None:
    count = counter()
    x = count.embed(matrix(50, 64, TensorType.F32), 1.0)
    norm = Norm(np.ones(64, np.float32), 1e-5)
    count.head_and_sample(x, norm, matrix(50, 64, TensorType.Q8_0, "token_embd.weight"), 1.0, 0.0)
    head, sample = count.ops[1:]
    assert (head.op, head.sampling, sample.op, sample.sampling) == (1, False, 1, True)
    assert head.of(LOAD).operations["int8"] == 2 * 2 * 50 * 64
    assert head.of(LOAD).memory_bytes == 50 * 64 * 34 // 32
    nothing = StepLoad((Chunk(3, 3),), outputs=0)
    assert head.of(nothing).memory_bytes == sample.of(nothing).row_bytes == 0


def test_a_mixture_reads_the_experts_that_few_tokens_use_and_at_most_all() -> None:
    count = counter()
    x = count.embed(matrix(50, 64, TensorType.F32), 1.0)
    expert = Expert(*(Projection(matrix(*shape, TensorType.Q8_0)) for shape in ((96, 64), (96, 64), (64, 96))))
    router = Projection(matrix(16, 64, TensorType.F32))
    count.moe(x, router, None, [expert] * 16, Routing(16, 2), "silu")
    one = 2 * 96 * 64 * 34 // 32 + 64 * 96 * 34 // 32
    assert count.ops[1].of(LOAD).memory_bytes == 16 * 64 * 4 + 4 * 2 * one
    assert count.ops[1].of(LOAD).operations["int8"] == 4 * 2 * 2 * 3 * 96 * 64
    many = StepLoad((Chunk(30, 30),), outputs=1)
    assert count.ops[1].of(many).memory_bytes == 16 * 64 * 4 + 16 * one


def test_rows_count_what_they_read_and_write() -> None:
    count = counter()
    x = count.embed(matrix(50, 64, TensorType.F32), 1.0)
    count.add_positions(x, matrix(30, 64, TensorType.F32))
    count.add(x, count.activation(count.columns([x], np.arange(64, dtype=np.int32)), "gelu"), 0.5)
    row_bytes = [op.of(LOAD).row_bytes // (4 * 64 * LOAD.tokens) for op in count.ops]
    assert row_bytes == [1, 2, 2, 2, 3]
    assert count.ops[1].of(LOAD).memory_bytes == 4 * 64 * 4


def counted(model: TinyDecoder) -> list[OpWork]:
    count = counter(model.kv())
    model.record(count)
    return count.ops


def test_op_numbers_are_those_of_the_native_plan() -> None:
    """Nothing is timed that isn't counted; every counted op is timed, or part of the linear group that it prepares."""
    model = TinyDecoder()
    builder = backend_of("generic", threads=1).builder(small_limits(model.vocab), model.kv())
    model.record(builder)
    plan: Any = builder.finish()
    runner = model.runner("generic", threads=1)
    runner.plan = plan
    plan.set_profiling(True)
    runner.add(0, [1, 2, 3])
    runner.generate(0, 1)
    lines = plan.profile_ops()
    ops = counted(model)
    timed = {(line.op, line.name == "sample") for line in lines}
    assert timed <= {(op.op, op.sampling) for op in ops}
    for op, following in itertools.pairwise(ops):
        if (op.op, op.sampling) not in timed:
            assert op.name.split()[0] in ("norm", "silu"), op.name
            assert (following.op, "linear") in {(line.op, line.name) for line in lines}
    by_op = {
        line.op: line.name for line in lines if line.name in ("linear", "attention", "embed", "head", "rope_and_store")
    }
    for op in counted(model):
        if op.op in by_op and not op.sampling:
            assert op.name.split()[0] == by_op[op.op] or by_op[op.op] == "linear"
    for total in plan.profile():
        assert total.total_s == pytest.approx(sum(line.total_s for line in lines if line.name == total.name))


def test_works_add_up() -> None:
    ops = counted(TinyDecoder())
    total = ops[1].of(LOAD) + ops[2].of(LOAD)
    assert total.memory_bytes == ops[1].of(LOAD).memory_bytes + ops[2].of(LOAD).memory_bytes
    assert total.total_operations == ops[1].of(LOAD).total_operations + ops[2].of(LOAD).total_operations
