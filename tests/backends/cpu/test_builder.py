"""What lowering asks of the native plan: fused rows, reused buffers, each matrix packed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.harness import TinyDecoder, random_weight, small_limits

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.builder import CpuBuilder
from octavo.backends.cpu.packing import BF16_AS_F32, KINDS
from octavo.backends.kv_types import KV_TYPES, KvDtype
from octavo.backends.ops import KvSpec, Norm, Projection, UnsupportedError, Weight
from octavo.config import EngineConfig, settings
from octavo.formats.blocks import quantize
from octavo.formats.tensor import TensorType


class FakeNative:
    """Takes a native plan's place: hands out handles and remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._handles: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> int:
            self.calls.append((name, (*arguments, *named.values())))
            self._handles[name] = self._handles.get(name, -1) + 1
            return self._handles[name]

        return call

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [arguments for name, arguments in self.calls if name in names]

    @property
    def ops(self) -> list[str]:
        return [name for name, _ in self.calls if not name.startswith("add_") and name != "next_op"]


def recording(activations: str = "auto", level: str = "avx512_bf16") -> tuple[Any, CpuBuilder]:
    native: Any = FakeNative()
    return native, CpuBuilder(native, small_limits(64), level, activations)


def test_a_decoder_layer_is_eight_ops() -> None:
    """Norms and gates are fused with quantising; only attention's output is quantised by an op of its own."""
    native, builder = recording()
    TinyDecoder(layers=1).record(builder)
    builder.finish()
    assert native.ops == [
        "embed",
        *("rows_prepared", "linear", "rope_and_store", "attention", "keep_outputs", "rows_prepared", "linear"),
        *("rows_prepared", "linear", "rows_prepared", "linear"),
        "head",
    ]


def test_output_rows_are_kept_after_the_last_attention() -> None:
    """Of the residual and of attention's output, which are all that is read from there on."""
    native, builder = recording()
    TinyDecoder(layers=3).record(builder)
    builder.finish()
    assert native.ops.count("keep_outputs") == 1
    assert native.ops[native.ops.index("keep_outputs") - 1] == "attention"
    assert native.ops.count("attention") == native.ops[: native.ops.index("keep_outputs")].count("attention") == 3
    ((rows,),) = native.named("keep_outputs")
    assert len(set(rows)) == len(rows) == 2


def test_buffers_do_not_grow_with_layers() -> None:
    counts = []
    for layers in (2, 12):
        native, builder = recording()
        TinyDecoder(layers=layers).record(builder)
        builder.finish()
        counts.append((len(native.named("add_rows")), len(native.named("add_prepared"))))
    assert counts[0] == counts[1]
    assert counts[0][0] <= 7  # the residual, q, k, v, attention's output; gate and up


def test_a_tied_embedding_is_packed_once() -> None:
    native, builder = recording()
    TinyDecoder(layers=1).record(builder)
    builder.finish()
    assert len(native.named("add_weight")) == 1 + 7


def test_progress_and_release() -> None:
    _, builder = recording()
    TinyDecoder(layers=2).record(builder)
    shares: list[float] = []
    released: list[str] = []
    builder.finish(shares.append, released.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(released) == len(shares) == 1 + 2 * 7


def test_a_fused_tensor_is_released_when_all_of_it_is_packed() -> None:
    native, builder = recording()
    rng = np.random.default_rng(1)
    table, fused, other = (random_weight(rng, rows, 64) for rows in (64, 96, 32))
    x = builder.embed(table, 1.0)
    first, second = (Projection(Weight(fused.tensor, np.arange(i, 96, 2, dtype=np.int32))) for i in range(2))
    released: list[tuple[str, int]] = []
    builder.linear(x, [first])
    builder.linear(x, [second, Projection(other)])
    builder.finish(release=lambda name: released.append((name, len(native.named("add_weight")))))
    assert released == [(table.tensor.name, 1), (fused.tensor.name, 3), (other.tensor.name, 4)]


def test_columns_in_another_order_are_for_decoders_to_bring_into_theirs() -> None:
    _, builder = recording()
    table, weight = (random_weight(np.random.default_rng(1), 64, 64) for _ in range(2))
    x = builder.embed(table, 1.0)
    shuffled = replace(weight.tensor, order=np.arange(64, dtype=np.int32)[::-1])
    builder.linear(x, [Projection(Weight(shuffled))])
    with pytest.raises(UnsupportedError, match=r"in the order of activations .*not experts, embeddings and heads"):
        builder.finish()


@pytest.mark.parametrize(
    ("type_", "level", "activations", "kind"),
    [
        (TensorType.Q4_1, "generic", "auto", "int8"),
        (TensorType.Q8_0, "avx2", "auto", "int8"),
        (TensorType.BF16, "avx512_bf16", "auto", "bf16"),
        (TensorType.BF16, "avx512", "auto", "f32"),
        (TensorType.F16, "avx512_bf16", "auto", "f32"),
        (TensorType.F32, "avx512_bf16", "auto", "f32"),
        (TensorType.Q4_0, "avx512_bf16", "f32", "f32"),
        (TensorType.BF16, "generic", "bf16", "bf16"),
        (TensorType.F16, "generic", "bf16", "bf16 as f32"),
        (TensorType.Q5_0, "avx512_bf16", "bf16", "bf16 as f32"),
    ],
)
def test_activation_types(type_: TensorType, level: str, activations: str, kind: str) -> None:
    native, builder = recording(activations, level)
    rng = np.random.default_rng(1)
    x = builder.embed(random_weight(rng, 64, 64, type_), 1.0)
    builder.linear(x, [Projection(random_weight(rng, 64, 64, type_))])
    builder.finish()
    value = {**KINDS, "bf16 as f32": BF16_AS_F32}[kind]
    assert [arguments[1] for arguments in native.named("add_weight")] == [value] * 2
    assert [arguments[0] for arguments in native.named("add_prepared")] == [value]


def test_a_norm_with_two_readers_keeps_its_rows() -> None:
    """Fusing would quantise it into a buffer that another group overwrites before its second reader comes."""
    native, builder = recording()
    rng = np.random.default_rng(2)
    matrices = [Projection(random_weight(rng, 64, 64)) for _ in range(3)]
    x = builder.embed(random_weight(rng, 64, 64), 1.0)
    normed = builder.norm(x, Norm(np.ones(64, np.float32), 1e-5))
    (one,) = builder.linear(normed, matrices[:1])
    (two,) = builder.linear(one, matrices[1:2])
    builder.linear(normed, matrices[2:], residual=two)
    builder.finish()
    assert native.ops == ["embed", "rows", *("rows_prepared", "linear") * 3]


def test_a_norm_read_later_keeps_its_rows() -> None:
    native, builder = recording()
    rng = np.random.default_rng(3)
    matrices = [Projection(random_weight(rng, 64, 64)) for _ in range(2)]
    x = builder.embed(random_weight(rng, 64, 64), 1.0)
    first, second = (builder.norm(x, Norm(np.ones(64, np.float32), 1e-5)) for _ in range(2))
    builder.linear(first, matrices[:1])
    builder.linear(second, matrices[1:])
    builder.finish()
    assert native.ops == ["embed", "rows", "rows", *("rows_prepared", "linear") * 2]


def test_a_norm_that_is_added_is_one_op() -> None:
    """But for one that something else reads too."""
    native, builder = recording()
    rng = np.random.default_rng(4)
    x, y = (builder.embed(random_weight(rng, 64, 64), 1.0) for _ in range(2))
    norm = Norm(np.ones(64, np.float32), 1e-5)
    builder.add(x, builder.norm(y, norm), 0.5)
    read_twice = builder.norm(y, norm)
    builder.add(x, read_twice, 0.5)
    builder.linear(read_twice, [Projection(random_weight(rng, 64, 64))], residual=x)
    builder.finish()
    assert native.ops == ["embed", "embed", "rows", "rows", "rows", "rows_prepared", "linear"]


def test_a_live_buffer_is_never_handed_out_again() -> None:
    """Replays the calls: no op writes rows that a later op still has to read from an earlier writer."""
    native, builder = recording()
    TinyDecoder(layers=3).record(builder)
    builder.finish()
    residual = native.named("embed")[0][2]
    written = [out for _, group, accumulate in native.named("linear") if not accumulate for _, _, out in group]
    written += [out for _, out, _ in native.named("attention")]
    assert residual not in written
    for (_, group, _), (q, k, v, _) in zip(native.named("linear")[::4], native.named("rope_and_store"), strict=True):
        assert [out for _, _, out in group] == [q, k, v]
        assert len({q, k, v}) == 3


def test_a_residual_needs_one_projection() -> None:
    _, builder = recording()
    rng = np.random.default_rng(4)
    x = builder.embed(random_weight(rng, 64, 64), 1.0)
    with pytest.raises(ValueError, match="exactly one projection, not 2"):
        builder.linear(x, [Projection(random_weight(rng, 64, 64))] * 2, residual=x)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
@pytest.mark.parametrize("dtype", KV_TYPES)
def test_the_kernels_pages_are_as_large_as_sizing_takes_them_to_be(dtype: KvDtype, head_dim: int) -> None:
    kv = KvSpec(3, 2, head_dim, 4, dtype)
    builder = CpuBackend(1).builder(small_limits(16), kv)
    builder.embed(random_weight(np.random.default_rng(1), 16, 16), 1.0)
    assert builder.finish().pool_bytes == small_limits(16).num_pages * kv.page_bytes


@pytest.mark.parametrize("page_size", [4, 32])
@pytest.mark.parametrize("dtype", KV_TYPES)
def test_a_plan_knows_its_memory(dtype: str, page_size: int) -> None:
    model = TinyDecoder()
    kv = model.kv(page_size, dtype)
    builder = CpuBackend(1).builder(small_limits(model.vocab), kv)
    model.record(builder)
    plan = builder.finish()
    assert plan.pool_bytes == 1024 * kv.page_bytes
    assert kv.page_size * kv.bytes_per_token <= kv.page_bytes < kv.page_size * kv.bytes_per_token + 64
    assert 0 < plan.weight_bytes < 1 << 20
    assert plan.workspace_bytes > 0


def test_kv_types_are_the_kernels_and_the_setting_s() -> None:
    assert _native.kv_types() == [
        (name, kind.element_bytes, kind.scale_bytes, kind.scale_numbers) for name, kind in KV_TYPES.items()
    ]
    (choices,) = [one.knob.choices for one in settings(EngineConfig) if one.name == "kv_cache_dtype"]
    assert choices == ("auto", *KV_TYPES)


def test_int8_halves_what_a_token_takes_but_for_its_scales() -> None:
    sizes = {dtype: KvSpec(30, 3, 64, 4, dtype).bytes_per_token for dtype in ("f32", "bf16", "f16", "int8")}
    assert sizes == {"f32": 46_080, "bf16": 23_040, "f16": 23_040, "int8": 11_880}  # 66 bytes for 128


@pytest.mark.parametrize(("head_dim", "scales"), [(16, 1), (64, 1), (80, 2), (128, 2), (160, 3), (256, 4)])
def test_each_64_numbers_of_a_head_have_a_scale(head_dim: int, scales: int) -> None:
    assert KvSpec(1, 1, head_dim, 4, "int8").bytes_per_token == 2 * (head_dim + 2 * scales)


def test_profile() -> None:
    runner = TinyDecoder().runner(CpuBackend(1).level)
    plan: Any = runner.plan
    plan.set_profiling(True)
    runner.add(0, [1, 2, 3])
    runner.generate(0, 2)
    times = {line.name: line for line in plan.profile()}
    assert times["linear"].stages == 2 * 2 * 4
    assert times["linear"].total_s > times["linear"].wait_s >= 0.0
    plan.set_profiling(False)
    runner.generate(0, 1)
    assert {line.name: line for line in plan.profile()} == times


def test_identical_rows_of_a_permuted_matrix_are_packed_apart() -> None:
    """The same tensor in another row order is another matrix."""
    native, builder = recording()
    tensor = quantize("w", np.eye(64), TensorType.F32)
    order = np.arange(63, -1, -1, dtype=np.int32)
    x = builder.embed(Weight(tensor), 1.0)
    builder.linear(x, [Projection(Weight(tensor, order)), Projection(Weight(tensor))])
    builder.finish()
    assert len(native.named("add_weight")) == 2
