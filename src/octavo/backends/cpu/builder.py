"""Records a decoder's ops, then lowers them to the native plan: packed weights, fused rows, few buffers.

Lowering does three things that don't show in any value:
- A norm or gated activation whose only reader is the linear group right after it writes that group's quantised input
  straight away, so the f32 row never leaves the cache.
- A buffer whose last reader has run is used again for the next one of its width.
- A matrix that is used twice (a tied embedding) is packed once; the embedding is gathered from the head's tiles.

Activation types (`--activations`): auto multiplies quantised weights in int8, bf16 weights in bf16 on levels that have
it, everything else in f32. A named type holds for every matrix; one that can't be multiplied in it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from octavo import _native
from octavo.backends.cpu import records
from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import AttentionOp, Buffer, Floats, PlanLimits, Projection, UnsupportedError, Weight
from octavo.formats.tensor import TensorType

#: Values of csrc/kernels.h ActivationKind, and of csrc/op_rows.h RowFunction.
KINDS = {"f32": 0, "bf16": 1, "int8": 2}
_COPY, _RMS_NORM, _SILU_MUL, _GELU_TANH_MUL = range(4)
_GATED = {"silu": _SILU_MUL, "gelu_tanh": _GELU_TANH_MUL}
_NONE = -1
_QUANTISED = (TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1)
_BF16_LEVEL = "avx512_bf16"


class CpuBuilder:
    """Records ops (ops.Builder says what they mean); `finish` packs and lowers them.

    native: an empty _native.Plan for these limits.
    """

    def __init__(self, native: _native.Plan, limits: PlanLimits, level: str, activations: str) -> None:
        self._native = native
        self._limits = limits
        self._level = level
        self._activations = activations
        self._records: list[records.Record] = []
        self._widths: list[int] = []

    def embed(self, table: Weight, scale: float) -> Buffer:
        out = self._new_buffer(table.tensor.shape[1])
        self._records.append(records.Embed(table, scale, out))
        return out

    def norm(self, x: Buffer, weight: Floats, eps: float) -> Buffer:
        out = self._new_buffer(self._widths[x])
        self._records.append(records.Norm(x, weight, eps, out))
        return out

    def linear(
        self, x: Buffer, projections: Sequence[Projection], residual: Buffer | None = None
    ) -> tuple[Buffer, ...]:
        if residual is not None and len(projections) != 1:
            raise ValueError(f"a residual needs exactly one projection, not {len(projections)}")
        if residual is not None:
            outs: tuple[Buffer, ...] = (residual,)
        else:
            outs = tuple(self._new_buffer(_outputs(projection.weight)) for projection in projections)
        self._records.append(records.Linear(x, tuple(projections), outs, residual is not None))
        return outs

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        self._records.append(records.RopeAndStore(q, k, v, op))

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        out = self._new_buffer(self._widths[q])
        self._records.append(records.Attend(q, op, out))
        return out

    def gated(self, gate: Buffer, up: Buffer, activation: Literal["silu", "gelu_tanh"]) -> Buffer:
        out = self._new_buffer(self._widths[gate])
        self._records.append(records.Gated(gate, up, activation, out))
        return out

    def head_and_sample(self, x: Buffer, norm: Floats, eps: float, head: Weight, scale: float, softcap: float) -> None:
        self._records.append(records.Head(x, norm, eps, head, scale, softcap))

    def finish(
        self, progress: Callable[[float], None] | None = None, release: Callable[[str], None] | None = None
    ) -> CpuPlan:
        kinds = _Kinds(self._activations, self._level)
        packer = _Packer(self._native, kinds, _all_weights(self._records), progress, release)
        _Lowering(self._native, self._records, self._widths, packer, kinds).run()
        return CpuPlan(self._native, self._limits)

    def _new_buffer(self, width: int) -> Buffer:
        self._widths.append(width)
        return Buffer(len(self._widths) - 1)


def _outputs(weight: Weight) -> int:
    return weight.tensor.shape[0] if weight.row_index is None else len(weight.row_index)


def _all_weights(recorded: list[records.Record]) -> list[Weight]:
    weights = []
    for record in recorded:
        match record:
            case records.Embed(table=weight) | records.Head(weight=weight):
                weights.append(weight)
            case records.Linear(projections=projections):
                weights += [projection.weight for projection in projections]
    return weights


class _Kinds:
    """Which activation type a matrix is multiplied in."""

    def __init__(self, activations: str, level: str) -> None:
        self._activations = activations
        self._has_bf16 = level == _BF16_LEVEL

    def of(self, weight: Weight) -> int:
        stored = weight.tensor.type
        if self._activations != "auto":
            return KINDS[self._activations]
        if stored in _QUANTISED:
            return KINDS["int8"]
        return KINDS["bf16"] if stored == TensorType.BF16 and self._has_bf16 else KINDS["f32"]


class _Packer:
    """Packs each matrix once, and tells how far it is."""

    def __init__(
        self,
        native: _native.Plan,
        kinds: _Kinds,
        weights: list[Weight],
        progress: Callable[[float], None] | None,
        release: Callable[[str], None] | None,
    ) -> None:
        self._native = native
        self._kinds = kinds
        self._progress = progress
        self._release = release
        self._handles: dict[tuple[int, int], int] = {}
        self._total_bytes = sum({self._key(weight): weight.tensor.data.nbytes for weight in weights}.values())
        self._packed_bytes = 0

    def handle(self, weight: Weight) -> int:
        """The native handle of a matrix, packed now unless it is already."""
        key = self._key(weight)
        if key not in self._handles:
            self._handles[key] = self._pack(weight)
        return self._handles[key]

    def _pack(self, weight: Weight) -> int:
        tensor, kind = weight.tensor, self._kinds.of(weight)
        try:
            handle = self._native.add_weight(
                format=int(tensor.type),
                activation=kind,
                n=_outputs(weight),
                k=tensor.shape[1],
                data=tensor.data,
                row_index=weight.row_index,
            )
        except ValueError as error:
            name = next(name for name, value in KINDS.items() if value == kind)
            raise UnsupportedError(
                f"tensor {tensor.name!r} ({tensor.type.name}, shape {tensor.shape}) with activations {name}: {error}"
            ) from None
        self._packed_bytes += tensor.data.nbytes
        if self._release is not None:
            self._release(tensor.name)
        if self._progress is not None:
            self._progress(self._packed_bytes / self._total_bytes)
        return handle

    @staticmethod
    def _key(weight: Weight) -> tuple[int, int]:
        """Equal for the same stored bytes in the same row order."""
        index = weight.row_index
        return weight.tensor.data.ctypes.data, 0 if index is None else index.ctypes.data


class _Lowering:
    """Walks the records once and calls the native plan."""

    def __init__(
        self, native: _native.Plan, recorded: list[records.Record], widths: list[int], packer: _Packer, kinds: _Kinds
    ) -> None:
        self._native = native
        self._records = recorded
        self._widths = widths
        self._packer = packer
        self._kinds = kinds
        self._last_uses = records.last_uses(recorded)
        self._readers = records.readers(recorded)
        self._rows: dict[Buffer, int] = {}
        self._free: dict[int, list[int]] = {}
        self._prepared: dict[tuple[int, int], int] = {}
        self._already_prepared: set[Buffer] = set()

    def run(self) -> None:
        for index, record in enumerate(self._records):
            following = self._records[index + 1] if index + 1 < len(self._records) else None
            self._lower(record, following)
            for buffer in set(records.reads(record)):
                if self._last_uses[buffer] == index and buffer in self._rows:
                    self._free.setdefault(self._widths[buffer], []).append(self._rows.pop(buffer))

    def _lower(self, record: records.Record, following: records.Record | None) -> None:
        native = self._native
        match record:
            case records.Embed(table=table, scale=scale, out=out):
                native.embed(self._packer.handle(table), scale, self._new_rows(out))
            case records.Norm(x=x, weight=weight, eps=eps, out=out):
                self._rows_op(_RMS_NORM, self._rows[x], _NONE, self._vector(weight), eps, out, following)
            case records.Gated(gate=gate, up=up, activation=activation, out=out):
                self._rows_op(_GATED[activation], self._rows[gate], self._rows[up], _NONE, 0.0, out, following)
            case records.Linear():
                self._linear(record)
            case records.RopeAndStore(q=q, k=k, v=v, op=op):
                native.rope_and_store(self._rows[q], self._rows[k], self._rows[v], _shape(op))
            case records.Attend(q=q, op=op, out=out):
                native.attention(self._rows[q], self._new_rows(out), _shape(op))
            case records.Head(x=x, norm=norm, eps=eps, weight=weight, scale=scale, softcap=softcap):
                native.head(self._rows[x], self._vector(norm), eps, self._packer.handle(weight), scale, softcap)

    def _rows_op(
        self, function: int, x: int, y: int, weight: int, eps: float, out: Buffer, following: records.Record | None
    ) -> None:
        if isinstance(following, records.Linear) and following.x == out and self._readers[out] == [following]:
            for kind in self._kinds_of(following):
                prepared = self._prepared_rows(kind, self._widths[out])
                self._native.rows_prepared(function, x, y, weight, eps, prepared)
            self._already_prepared.add(out)
        else:
            self._native.rows(function, x, y, weight, eps, self._new_rows(out))

    def _linear(self, record: records.Linear) -> None:
        """One native op for each activation type among the projections; nearly always that is one."""
        width = self._widths[record.x]
        for kind in self._kinds_of(record):
            prepared = self._prepared_rows(kind, width)
            if record.x not in self._already_prepared:
                self._native.rows_prepared(_COPY, self._rows[record.x], _NONE, _NONE, 0.0, prepared)
            group = []
            for projection, out in zip(record.projections, record.outs, strict=True):
                if self._kinds.of(projection.weight) == kind:
                    bias = _NONE if projection.bias is None else self._vector(projection.bias)
                    rows = self._rows[out] if record.accumulate else self._new_rows(out)
                    group.append((self._packer.handle(projection.weight), bias, rows))
            self._native.linear(prepared, group, record.accumulate)

    def _kinds_of(self, record: records.Linear) -> list[int]:
        return sorted({self._kinds.of(projection.weight) for projection in record.projections})

    def _new_rows(self, buffer: Buffer) -> int:
        width = self._widths[buffer]
        free = self._free.get(width)
        self._rows[buffer] = free.pop() if free else self._native.add_rows(width)
        return self._rows[buffer]

    def _prepared_rows(self, kind: int, width: int) -> int:
        """One buffer for each type and width: what is prepared is read by the very next op."""
        key = (kind, width)
        if key not in self._prepared:
            self._prepared[key] = self._native.add_prepared(kind, width)
        return self._prepared[key]

    def _vector(self, values: Floats) -> int:
        return self._native.add_vector(np.ascontiguousarray(values, np.float32))


def _shape(op: AttentionOp) -> _native.AttentionShape:
    def values(array: Floats | None) -> list[float]:
        return [] if array is None else array.tolist()

    return _native.AttentionShape(
        layer=op.layer,
        q_heads=op.heads,
        window=op.window,
        scale=op.scale,
        softcap=op.softcap,
        amplitude=op.amplitude,
        norm_eps=op.norm_eps,
        inv_freq=values(op.inv_freq),
        q_norm=values(op.q_norm),
        k_norm=values(op.k_norm),
        sinks=values(op.sinks),
    )
